"""Rules of accounting that HAMi breaks. `test_q<n>…` belongs to row Q<n> of docs/protocol.md."""

from __future__ import annotations

import pytest

from tessera.core.ledger.audit import audit
from tests.support.builders import (
    ALLOCATED,
    MEMORY,
    Cluster,
    NodeBuilder,
    cluster,
    expire,
    gpu_pod,
    node,
    pod,
)


def neuron_node(name: str, *, devices: int, cores: int) -> NodeBuilder:
    return node(name).capacity(**{"aws.amazon.com/neuron": devices, "aws.amazon.com/neuroncore": cores})


def test_q01_a_card_of_an_app_container_is_not_freed_when_an_init_container_without_one_ends() -> None:
    """HAMi leaves the init container's entry out, takes the app's entry for it and shrinks the pod to nothing."""
    world = cluster(node().gpu("G"))
    running = world.start(pod().init().container(gpu=1, mem=4000))
    assert running.annotations[ALLOCATED] == ";G,NVIDIA,4000,0:;"
    world.observe(running.after_init("init0"))
    assert world.cards() == {"G": (1, 4000, 0)}


def test_q01_an_annotation_that_hami_wrote_without_that_entry_keeps_the_card_too() -> None:
    """HAMi frees the card; here positions that cannot be right make everything count to the end."""
    hami = pod().init().container(gpu=1).on("n1", "G,NVIDIA,4000,0:;")
    world = cluster(node().gpu("G")).observe(hami, hami.after_init("init0"))
    assert world.cards() == {"G": (1, 4000, 0)}


def test_q03_apps_of_a_pod_with_an_init_container_are_added_up_against_the_quota() -> None:
    """HAMi takes their maximum and admits 8000 MiB against a quota of 5000."""
    world = cluster(node().gpus(2)).quota(memory=5000)
    two = pod().init(gpu=1, mem=10).container(gpu=1, mem=4000).container(gpu=1, mem=4000)
    assert world.refused(two) == {"n1": "2/2 ResourceQuotaNotFit"}


def test_q04_a_pod_that_was_assigned_again_is_read_again() -> None:
    """HAMi keeps the first node and cards of a pod that it has seen, for ever on followers."""
    world = cluster(node("n1").gpu("G"), node("n2").gpu("H"))
    world.observe(gpu_pod().on("n1", "G,NVIDIA,100,0:;"), gpu_pod().on("n2", "H,NVIDIA,200,0:;"))
    assert (world.cards("n1"), world.cards("n2")) == ({"G": (0, 0, 0)}, {"H": (1, 200, 0)})


def test_q05_a_terminating_pod_counts_after_a_restart() -> None:
    """HAMi ignores pods with a deletion timestamp that it sees for the first time."""
    world = cluster(node().gpu("G")).observe(gpu_pod().on("n1", "G,NVIDIA,100,0:;").terminating())
    assert world.cards() == {"G": (1, 100, 0)}


def test_q07_a_sidecar_counts_beside_the_apps() -> None:
    """HAMi takes it for an init container: the larger of the two instead of the sum."""
    world = cluster(node().gpu("G", memory=8000))
    both = pod().sidecar(gpu=1, mem=5000).container(gpu=1, mem=4000)
    assert world.refused(both) == {"n1": "1/1 CardInsufficientMemory"}
    world.start(pod().sidecar(gpu=1, mem=3000).container(gpu=1, mem=4000))
    assert world.cards() == {"G": (2, 7000, 0)}


def test_q09_an_assignment_that_is_never_bound_is_given_back() -> None:
    """HAMi keeps it until the pod is filtered again or deleted."""
    world = cluster(node().gpu("G"))
    world.place(gpu_pod(mem=81920), deadline=60)
    assert world.refused(gpu_pod("next", mem=1)) == {"n1": "1/1 CardInsufficientMemory"}
    assert expire(world.ledger, 60) == ["uid-p"]
    assert world.chosen(gpu_pod("next", mem=1)).placement.node == "n1"


def test_q11_what_one_filter_reserved_the_next_one_does_not_see_as_free() -> None:
    """HAMi serves filters in parallel from snapshots: two pods can get the same slice."""
    world = cluster(node().gpu("G", slots=1), node("n2").gpu("H", slots=1))
    assert [world.place(gpu_pod(name, mem=1)).node for name in ("a", "b")] == ["n1", "n2"]
    assert set(world.refused(gpu_pod("c", mem=1)).values()) == {"1/1 CardTimeSlicingExhausted"}


@pytest.mark.parametrize("memory", ["2Gi", "1500m", "-1"])
def test_q12_a_request_that_cannot_be_represented_is_refused(memory: str) -> None:
    """HAMi takes it for no request: the pod passes the filter and fails in kubelet."""
    assert MEMORY in gpu_pod(mem=memory).fault().text


def test_q20_deleting_one_of_two_quotas_leaves_the_other() -> None:
    """HAMi keeps one limit a resource: the last event wins, and deleting any quota removes it."""
    world = cluster(node().gpus(1)).quota("loose", memory=500).quota("strict", memory=100).quota("looser", memory=900)
    assert world.refused(gpu_pod(mem=200)) == {"n1": "1/1 ResourceQuotaNotFit"}
    world.ledger.forget_quota("default", "strict")
    assert world.chosen(gpu_pod(mem=200)).placement.node == "n1"
    assert world.refused(gpu_pod(mem=501)) == {"n1": "1/1 ResourceQuotaNotFit"}


def test_q20_a_percentage_counts_against_a_quota_of_memory() -> None:
    """HAMi counts it as 0 at admission, and vendors but two are checked nowhere else."""
    world = cluster(node().annotate(("hami.io/node-dcu-register", "D,10,1000,100,DCU-K100,0,true:")))
    world.quota(hard={"limits.hygon.com/dcumem": 999})
    assert world.refused(pod().container(limits={"hygon.com/dcunum": 1})) == {"n1": "1/1 ResourceQuotaNotFit"}


def test_q23_every_node_has_its_own_number_of_neuron_cores() -> None:
    """HAMi remembers the first node's number for all of them."""
    world = cluster(neuron_node("two", devices=2, cores=4), neuron_node("four", devices=2, cores=8))
    view = {name: world.ledger.node(name) for name in ("two", "four")}
    assert {name: found.cards[0].device.slots for name, found in view.items() if found} == {"two": 2, "four": 4}


def test_q25_slices_that_a_pod_takes_are_counted_again_after_a_restart() -> None:
    """HAMi rebuilds one slot a pod, so that partitions of three slices fit more often than there are slices."""
    text = '{"devices":[{"index":"0","minor":"0","capacity":6}],"profiles":{"3g.24gb":"2","6g.48gb":"0"}}'
    world = cluster(node().annotate(("enflame.com/gcu-drs-capacity", text)))
    asking = pod().container(limits={"enflame.com/drs-gcu": 3})
    running = [world.start(asking.called(name)) for name in ("a", "b")]
    restarted = cluster(node().annotate(("enflame.com/gcu-drs-capacity", text))).observe(*running)
    assert restarted.cards() == world.cards() == {"n1-enflame-drs-0": (6, 49152, 100)}
    assert restarted.refused(asking) == {"n1": "1/1 CardTimeSlicingExhausted"}


def test_q27_a_node_that_is_no_longer_ours_takes_no_pods() -> None:
    """HAMi keeps the cards of nodes that left its label selector."""
    world = cluster(node().gpus(1))
    world.ledger.forget_node("n1")
    assert world.refused(gpu_pod(mem=1), ["n1"]) == {"n1": "node unregistered"}


def test_q34_phantom_devices_of_old_versions_are_nothing() -> None:
    """HAMi v2.4 wrote `,,0,0:` for containers without a card and later handed the phantom out."""
    old = pod().container(gpu=1).container().container(gpu=1).on("n1", "G,NVIDIA,10,0:;,,0,0:;H,NVIDIA,20,0:;")
    world = cluster(node().gpu("G").gpu("H")).observe(old)
    assert world.cards() == {"G": (1, 10, 0), "H": (1, 20, 0)}
    assert audit(world.ledger) == []


def test_q39_an_allocation_with_one_bad_field_still_counts_and_holds_its_node() -> None:
    """HAMi does not see such a pod at all and hands its cards out again."""
    world = cluster(node().gpu("G").gpu("H")).observe(gpu_pod().on("n1", "G,NVIDIA,100,0:H,NVIDIA,?,0:;"))
    assert world.cards()["G"] == (1, 100, 0)
    assert world.refused(gpu_pod("next", mem=1)) == {"n1": "node usage unavailable"}


def test_everything_of_a_pods_life_survives_a_restart() -> None:
    """The sum of the above: what is rebuilt from annotations is what was decided."""

    def fresh() -> Cluster:
        return cluster(node().gpus(4).annotate(("hami.io/node-dcu-register", "D,10,1000,100,DCU-K100,0,true:")))

    world = fresh()
    dcu = {"hygon.com/dcunum": 1, "hygon.com/dcumem": 10, "hygon.com/dcucores": 1}
    running = [
        world.start(pod("a").init(gpu=2, mem=50).sidecar(gpu=1, mem=5, limits=dcu).container(gpu=1, cores=100)),
        world.start(pod("b").container().container(gpu=2, percent=33)),
    ]
    assert fresh().observe(*running).ledger.state() == world.ledger.state()
