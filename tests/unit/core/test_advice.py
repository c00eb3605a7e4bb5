"""What would help a pod that fits nowhere: numbers that are right, and changes that were seen to fit."""

from __future__ import annotations

import pytest

from tessera.core.advice import advise, mode_advice, smallest_changes
from tessera.core.misfits import CardMisfit, Reason
from tessera.core.near_misses import FewCards, NearMiss, near_miss, quick_near_miss
from tessera.core.requests import PodRequest
from tessera.vendors.node_reader import node_facts
from tests.support.builders import A100_40GB, Cluster, NodeBuilder, PodBuilder, cluster, gpu_pod, node, pod, vendors


def world() -> Cluster:
    one = cluster(node("n1").gpu("small", memory=8000), node("n2").gpu("large", memory=80000))
    one.observe(gpu_pod("x").on("n1", "small,NVIDIA,1000,70:;"), gpu_pod("y").on("n2", "large,NVIDIA,60000,0:;"))
    return one


def asked(one: PodBuilder) -> PodRequest:
    return one.request()


def test_the_nearest_card_is_the_one_with_the_least_relative_shortfall() -> None:
    one = world()
    found = near_miss(one.ledger, asked(gpu_pod(mem=21000)), ["n1", "n2"])
    card = CardMisfit("large", Reason.CARD_INSUFFICIENT_MEMORY, asked=21000, free=20000, total=80000)
    assert found == NearMiss("n2", card, "MiB")
    assert found.text == "needs 21000 MiB on one card; best is n2 / large with 20000 MiB free of 80000"


MIG_ADVICE = (
    "every NVIDIA card is in MIG mode, and a pod gets a MIG instance only with the annotation nvidia.com/vgpu-mode: mig"
)


def mig_node(name: str = "m1") -> NodeBuilder:
    return node(name).gpu(f"{name}-0", mode="mig", profiles=A100_40GB).gpu(f"{name}-1", mode="mig", profiles=A100_40GB)


@pytest.mark.parametrize(
    ("nodes", "asking", "advice"),
    [
        ([mig_node()], gpu_pod(), MIG_ADVICE),
        ([mig_node(), mig_node("m2")], gpu_pod(), MIG_ADVICE),
        ([mig_node(), node("cpu")], gpu_pod(), MIG_ADVICE),
        ([mig_node()], gpu_pod().annotate(("nvidia.com/vgpu-mode", "hami-core")), MIG_ADVICE),
        ([mig_node()], gpu_pod().annotate(("nvidia.com/vgpu-mode", "mig")), ""),
        ([mig_node(), node("n1").gpus(1, mode="hami-core")], gpu_pod(), ""),
        ([mig_node(), node("n1").gpus(1)], gpu_pod(), ""),
        ([node("n1").gpus(1)], gpu_pod(), ""),
        ([], gpu_pod(), ""),
        ([mig_node()], pod().container(), ""),
        ([mig_node()], pod().container(limits={"hygon.com/dcunum": 1}), ""),
    ],
)
def test_a_pod_that_did_not_ask_for_mig_is_told_so_where_there_is_nothing_else(
    nodes: list[NodeBuilder], asking: PodBuilder, advice: str
) -> None:
    assert mode_advice(cluster(*nodes).ledger, asked(asking)) == advice


def test_cards_that_are_gone_or_changed_their_mode_do_not_count() -> None:
    one = cluster(mig_node(), node("n1").gpus(1))
    one.ledger.forget_node("n1")
    assert mode_advice(one.ledger, asked(gpu_pod())) == MIG_ADVICE
    one.ledger.observe_node(node_facts(node("m1").gpus(1, mode="hami-core").api(), vendors()))
    assert mode_advice(one.ledger, asked(gpu_pod())) == ""


def test_cores_may_be_what_is_short() -> None:
    found = near_miss(world().ledger, asked(gpu_pod(mem=10, cores=40)), ["n1"])
    assert found is not None
    assert found.text == "needs 40 cores on one card; best is n1 / small with 30 cores free of 100"


def test_equal_shortfalls_are_decided_by_name() -> None:
    one = cluster(node("b").gpu("u", memory=10), node("a").gpu("w", memory=10).gpu("v", memory=10))
    found = near_miss(one.ledger, asked(gpu_pod(mem=11)), ["b", "a"])
    assert isinstance(found, NearMiss)
    assert (found.node, found.card.uuid) == ("a", "w")


def test_a_pod_that_no_smaller_request_would_help_has_no_near_miss() -> None:
    one = world()
    assert near_miss(one.ledger, asked(gpu_pod(mem=1).annotate(("nvidia.com/use-gputype", "T4"))), ["n1"]) is None
    assert near_miss(one.ledger, asked(gpu_pod(mem=1)), ["nowhere"]) is None
    assert near_miss(one.ledger, asked(gpu_pod(mem=1)), ["n1"]) is None
    assert near_miss(cluster(node().gpu("G", memory=0)).ledger, asked(gpu_pod(mem=1)), ["n1"]) is None


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        (gpu_pod(mem=21000), ["container c0: 20000 instead of 21000 MiB of memory would fit on n2"]),
        (gpu_pod(percent=90, cores=1), ["container c0: 87 instead of 90 % of memory would fit on n1"]),
        (gpu_pod(gpu=3, mem=10), ["container c0: 1 instead of 3 cards would fit on n1"]),
        (gpu_pod(mem=5000, cores=200).annotate(("nvidia.com/use-gpuuuid", "small")), ["30 instead of 200 cores"]),
        (
            pod().container(gpu=1, mem=15000).container(gpu=1, mem=15000),
            [
                "container c0: 5000 instead of 15000 MiB of memory would fit on n2",
                "container c1: 5000 instead of 15000 MiB of memory would fit on n2",
            ],
        ),
        (gpu_pod(mem=10).annotate(("nvidia.com/use-gputype", "T4")), []),
        (gpu_pod(gpu=2, mem=90000), []),
    ],
)
def test_the_largest_change_that_fits_is_advised(one: PodBuilder, expected: list[str]) -> None:
    found = [change.text for change in smallest_changes(world().ledger, asked(one), ["n1", "n2"])]
    assert len(found) == len(expected)
    assert all(part in text for part, text in zip(expected, found, strict=True))


@pytest.mark.parametrize("mem", [21000, 77777, 10**6])
def test_an_advised_change_fits_and_one_more_does_not(mem: int) -> None:
    one = world()
    asking = gpu_pod(mem=mem)
    assert set(one.refused(asking)) == {"n1", "n2"}
    (change,) = smallest_changes(one.ledger, asked(asking), ["n1", "n2"])
    assert one.chosen(gpu_pod(mem=change.fits)).placement.node == change.node
    assert set(one.refused(gpu_pod(mem=change.fits + 1))) == {"n1", "n2"}


def test_advice_respects_quotas_and_changes_nothing() -> None:
    one = world().quota(memory=70000)
    before = one.ledger.state()
    advice = advise(one.ledger, asked(gpu_pod(mem=30000)), ["n1", "n2"])
    assert [change.fits for change in advice.changes] == [9000]
    assert advice.near_miss is None
    assert one.ledger.state() == before


def test_only_the_request_that_is_named_is_changed() -> None:
    one = cluster(node().gpu("G", memory=1000).capacity(**{"enflame.com/gcu": 2}))
    both = pod().container(gpu=1, mem=1500, limits={"enflame.com/gcu": 2})
    (change,) = smallest_changes(one.ledger, asked(both), ["n1"])
    assert (change.field, change.asked, change.fits) == ("memory", 1500, 1000)


def test_where_some_cards_fit_the_node_with_most_of_them_comes_nearest() -> None:
    one = cluster(
        node("a").gpu("a0", memory=10).gpu("a1", memory=10).gpu("a2", memory=5),
        node("b").gpu("b0", memory=10).gpu("b1", memory=5).gpu("b2", memory=5),
    )
    found = near_miss(one.ledger, asked(pod().container(gpu=3, mem=8)), ["b", "a"])
    assert found == FewCards("a", asked=3, found=2)
    assert found.text == "needs 3 cards that fit on one node; best is a with 2"


# -- the quick answer over many nodes


def quick(one: Cluster, asking: PodBuilder) -> NearMiss | FewCards | None:
    return quick_near_miss(one.ledger, asked(asking), one.selector.candidates(one.ledger.node_names()).rows)


@pytest.mark.parametrize(
    "asking",
    [
        gpu_pod(mem=21000),
        gpu_pod(percent=95, cores=1),
        gpu_pod(mem=10, cores=100),
        gpu_pod(mem=21000, cores=80),
        gpu_pod(mem=21000).policy(device="mutex"),
        gpu_pod(mem=21000).annotate(("nvidia.com/use-gpuuuid", "small,none")),
        gpu_pod(mem=10).annotate(("nvidia.com/use-gpuuuid", "none")),
        gpu_pod(mem=10, cores=20).annotate(("nvidia.com/use-gpuuuid", "none")),
        pod().container(gpu=2, mem=15000),
        pod().container(gpu=3, mem=10),
        pod().container(gpu=2, mem=90000),
    ],
)
def test_the_quick_answer_is_the_careful_one(asking: PodBuilder) -> None:
    one = world().add(node("n0").gpu("none", memory=0, cores=0), node("n3").gpu("ill", healthy=False))
    one.add(node("n4").gpu("unsure", memory=20900).annotate(("hami.io/node-dcu-register", "nonsense")))
    assert quick(one, asking) == near_miss(one.ledger, asked(asking), one.ledger.node_names())


@pytest.mark.parametrize(
    "asking",
    [pod().container(), pod().container(limits={"enflame.com/gcu": 9}), gpu_pod(mem=1)],
)
def test_there_is_no_quick_answer_where_the_arrays_cannot_tell(asking: PodBuilder) -> None:
    assert quick(world(), asking) is None
    assert quick(cluster(), asking) is None
