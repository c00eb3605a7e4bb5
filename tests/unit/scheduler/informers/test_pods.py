from __future__ import annotations

import json

import pytest
from structlog.testing import capture_logs

from tessera.core.ledger.holders import GrantState
from tessera.scheduler.pod_cycle import CycleState
from tessera.wire import keys
from tessera.wire.objects import ResourceQuota, decode_object
from tests.support.builders import MEMORY, NodeBuilder, PodBuilder, gpu_pod, node, pod
from tests.support.stepwise_scheduler import World, answering, using_downward_api

FREE = {"n1-0": (0, 0, 0), "n1-1": (0, 0, 0)}


def world(built: NodeBuilder | None = None) -> World:
    return World(built or node("n1").gpus(2))


def running(name: str = "p", allocated: str = "n1-0,NVIDIA,700,5:;") -> PodBuilder:
    return gpu_pod(name).on("n1", allocated)


def allocating(built: PodBuilder, phase: str = keys.PHASE_ALLOCATING) -> PodBuilder:
    return built.annotate((keys.BIND_PHASE, phase))


# -- what counts


def test_a_bound_pod_counts_from_the_moment_it_is_seen() -> None:
    kept = world()
    kept.create(running())
    assert kept.cards() == {"n1-0": (1, 700, 5), "n1-1": (0, 0, 0)}


def test_allocation_annotations_of_a_pod_that_is_not_bound_are_ignored() -> None:
    kept = world()
    kept.create(gpu_pod("forged").annotate(("hami.io/vgpu-devices-allocated", "n1-0,NVIDIA,700,5:;")))
    assert kept.cards() == FREE


def test_a_terminating_pod_counts_until_it_is_gone_and_after_a_restart_too() -> None:
    kept = world()
    kept.create(running().terminating())
    assert kept.cards()["n1-0"] == (1, 700, 5)
    kept.restart()
    assert kept.cards()["n1-0"] == (1, 700, 5)
    kept.api.delete_pod("default/p")
    kept.watch()
    assert kept.cards() == FREE


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_pod_that_ended_counts_no_more(phase: str) -> None:
    kept = world()
    kept.create(running())
    kept.create(running().ended(phase))
    assert kept.cards() == FREE


def test_an_assignment_that_changed_is_read_again() -> None:
    kept = world()
    kept.create(running())
    kept.create(running(allocated="n1-1,NVIDIA,900,10:;"))
    assert kept.cards() == {"n1-0": (0, 0, 0), "n1-1": (1, 900, 10)}


def test_a_reservation_gives_way_to_what_the_api_shows() -> None:
    kept = World(node("n1").gpus(1), node("n2").gpus(1))
    assert kept.chosen(gpu_pod("p", mem=100), ["n2"]) == "n2"
    kept.create(running())
    assert (kept.cards("n1"), kept.cards("n2")) == ({"n1-0": (1, 700, 5)}, {"n2-0": (0, 0, 0)})
    assert kept.state(running()) is GrantState.BOUND
    kept.cycles.tick()
    assert kept.state(running()) is GrantState.BOUND


def test_room_of_init_containers_is_free_once_they_are_done() -> None:
    kept = world()
    both = pod("p").init(gpu=1).container(gpu=1).on("n1", "n1-0,NVIDIA,5000,50:;n1-0,NVIDIA,700,5:;")
    kept.create(both)
    assert kept.cards()["n1-0"] == (1, 5000, 50)
    told = kept.room
    kept.create(both.after_init("init0"))
    assert kept.cards()["n1-0"] == (1, 700, 5)
    assert kept.room == told + 1


def test_an_app_behind_an_init_container_without_devices_keeps_its_card() -> None:
    kept = world()
    both = pod("p").init().container(gpu=1).on("n1", ";n1-0,NVIDIA,4000,50:;")
    kept.create(both)
    kept.create(both.after_init("init0"))
    assert kept.cards()["n1-0"] == (1, 4000, 50)


# -- pods that go


def test_a_pod_bound_without_devices_frees_what_was_reserved_for_it() -> None:
    kept = world()
    asking = gpu_pod("p")
    kept.create(asking)
    kept.chosen(asking)
    kept.create(asking.on("n1"))
    assert kept.cards() == FREE
    assert kept.cycle_state(asking) is None


def test_a_pod_created_anew_under_its_name_frees_what_the_old_one_held() -> None:
    kept = world()
    kept.create(running())
    kept.pods.put("default/p", gpu_pod("p").called("p", uid="another").api())
    assert kept.cards() == FREE
    kept.pods.drop("default/p")
    kept.pods.drop("default/p")
    assert kept.ledger.pods() == []


def test_a_pod_that_is_gone_leaves_nothing_behind() -> None:
    kept = world(answering(node("n1").gpus(2)))
    kept.create(allocating(running()))
    assert kept.queue.active == 1
    kept.filtered(gpu_pod("waits", mem=10**6))
    kept.create(gpu_pod("waits", mem=10**6))
    told = kept.room
    kept.pods.drop("default/p")
    kept.pods.drop("default/waits")
    assert (kept.queue.active, len(kept.unschedulable), list(kept.cycles), kept.room) == (0, 0, [], told + 1)


def test_a_reserved_pod_that_another_scheduler_binds_has_no_record_left() -> None:
    kept = world()
    kept.chosen(gpu_pod("p", mem=100))
    assert kept.cycle_state(gpu_pod("p")) is CycleState.RESERVED
    kept.create(running())
    assert kept.cycle_state(gpu_pod("p")) is None


def test_a_refused_pod_that_another_scheduler_binds_is_not_woken() -> None:
    kept = world()
    kept.filtered(gpu_pod("p", mem=10**6))
    kept.create(running())
    assert len(kept.unschedulable) == 0


# -- the ends of a handover


@pytest.mark.parametrize(
    ("ending", "in_hand"),
    [
        (lambda p: allocating(p), 1),
        (lambda p: allocating(p, keys.PHASE_SUCCESS), 0),
        (lambda p: allocating(p, keys.PHASE_FAILED), 0),
        (lambda p: allocating(p).ended("Running"), 0),
        (lambda p: allocating(p).ended("Succeeded"), 0),
        (lambda p: allocating(p).ended("Failed"), 0),
        (lambda p: allocating(p).terminating(), 1),
    ],
    ids=["still", "success", "failed", "runs", "ended well", "ended badly", "terminating"],
)
def test_a_turn_ends_when_the_pods_phase_says_so(ending: type, in_hand: int) -> None:
    kept = world(answering(node("n1").gpus(2)))
    kept.create(allocating(running()))
    assert kept.queue.active == 1
    kept.create(ending(running()))
    assert kept.queue.active == in_hand


def test_downward_api_pods_and_dependent_pods_are_both_in_the_queue() -> None:
    kept = world(node("n1").gpus(2).annotate((keys.AGENT, "env")))
    kept.create(allocating(using_downward_api(running("mine"))))
    assert kept.queue.active == 1
    kept.create(allocating(running("plain")))
    assert kept.queue.active == 2


def test_a_bound_pod_whose_request_cannot_be_read_takes_its_turn() -> None:
    kept = world(node("n1").gpus(2).annotate((keys.AGENT, "env")))
    kept.create(allocating(gpu_pod("odd", mem="much").on("n1", "n1-0,NVIDIA,700,5:;")))
    assert kept.queue.active == 1


# -- what cannot be read


def test_an_allocation_that_cannot_be_read_holds_its_node_and_says_so_once() -> None:
    kept = World(node("n1").gpus(2), node("n2").gpus(1))
    with capture_logs() as logs:
        kept.create(running("odd", allocated="n1-0,NVIDIA,much,5:;"))
        kept.create(running("odd", allocated="n1-0,NVIDIA,much,5:;"))
    assert [(entry["event"], entry["node"], entry["pod"]) for entry in logs] == [("node held", "n1", "default/odd")]
    answer = kept.filtered(gpu_pod("p", mem=10), ["n1"])
    assert answer["FailedNodes"] == {"n1": "node usage unavailable"}
    assert kept.chosen(gpu_pod("p", mem=10)) == "n2"
    kept.api.delete_pod("default/odd")
    kept.watch()
    assert kept.chosen(gpu_pod("q", mem=10), ["n1"]) == "n1"


def test_another_fault_of_the_same_pod_is_said_again() -> None:
    kept = world()
    with capture_logs() as logs:
        kept.create(running("odd", allocated="n1-0,NVIDIA,5,much:;"))
        kept.create(running("odd", allocated="n1-0,NVIDIA,much,5:;"))
    assert len(logs) == 2


# -- room


def test_room_is_told_when_something_is_freed_and_not_when_nothing_is() -> None:
    kept = world()
    told = kept.room
    kept.create(running(), pod("plain").container(), gpu_pod("pending"))
    kept.create(running())
    assert kept.room == told
    kept.api.delete_pod("default/plain")
    kept.api.delete_pod("default/pending")
    kept.watch()
    assert kept.room == told
    kept.api.delete_pod("default/p")
    kept.watch()
    assert kept.room == told + 1


def test_keepers_are_synced_when_told() -> None:
    kept = world()
    assert (kept.pods.has_synced, kept.quotas.has_synced) == (False, False)
    kept.pods.synced()
    kept.quotas.synced()
    assert (kept.pods.has_synced, kept.quotas.has_synced) == (True, True)


# -- quotas


def quota(memory: int) -> ResourceQuota:
    document = {"metadata": {"name": "q", "namespace": "default"}, "spec": {"hard": {f"limits.{MEMORY}": memory}}}
    return decode_object(json.dumps(document), ResourceQuota)


def test_quotas_hold_while_they_exist_and_their_changes_are_told_as_room() -> None:
    kept = world()
    told = kept.room
    kept.quotas.put("default/q", quota(1000))
    assert kept.filtered(gpu_pod("p", mem=2000))["FailedNodes"] == {"n1": "2/2 ResourceQuotaNotFit"}
    kept.quotas.put("default/q", quota(2000))
    assert kept.chosen(gpu_pod("p", mem=2000)) == "n1"
    kept.quotas.drop("default/q")
    assert kept.chosen(gpu_pod("q", mem=5000)) == "n1"
    assert kept.room == told + 3
