"""Sequences that random lives found, told again by hand: each ended in a leak, a lost wake-up or an over-allocation."""

from __future__ import annotations

import asyncio

import pytest

from tessera.core.ledger.audit import audit
from tessera.core.ledger.holders import GrantState
from tessera.scheduler.pod_cycle import SHOWN_S, UNSEEN_TICKS, CycleState
from tessera.wire import keys
from tests.support.builders import A100_40GB, MIG_ALLOCATIONS, NodeBuilder, PodBuilder, cluster, gpu_pod, node, pod
from tests.support.event_loops import in_fake_time
from tests.support.fake_cluster import Step, lost_answer
from tests.support.stepwise_scheduler import LOCK, World, serving_downward_api, using_downward_api

POD = using_downward_api(gpu_pod("p", mem=1000, cores=10))
KEY = "default/p"
FREE = {"n1-0": (0, 0, 0)}
MLU = {"limits": {"cambricon.com/vmlu": 1, "cambricon.com/mlu.smlu.vmemory": 16, "cambricon.com/mlu.smlu.vcore": 30}}


def one_card(name: str = "n1") -> NodeBuilder:
    return serving_downward_api(node(name).gpus(1))


def asked(*nodes: NodeBuilder, pod: PodBuilder = POD) -> World:
    """A pod that was filtered and is about to be bound to n1."""
    world = World(*nodes)
    world.create(pod)
    assert world.chosen(pod, ["n1"]) == "n1"
    return world


# -- writes that were never heard of again


@in_fake_time
async def test_a_pod_that_came_and_went_between_two_lists_does_not_keep_its_card() -> None:
    world = asked(one_card())
    assert await world.bound(POD) == ""
    world.api.delete_pod(KEY)
    world.api.changes.clear()  # The watch was broken, and the next list has nothing of it.
    await asyncio.sleep(SHOWN_S)
    await world.binder.look_up_unconfirmed()
    assert world.cards() == FREE
    assert world.room > 0


@in_fake_time
async def test_a_bound_pod_whose_watch_is_late_keeps_its_card() -> None:
    world = asked(one_card())
    assert await world.bound(POD) == ""
    await asyncio.sleep(SHOWN_S)
    await world.binder.look_up_unconfirmed()
    assert world.state(POD) is GrantState.BOUND
    assert world.agrees()


async def unanswered(world: World) -> None:
    """Every write is lost, and the pod is not bound when it is looked up."""
    world.api.always("bind", lost_answer())
    assert await world.bound(POD) == "no answer within 30 s"
    world.api.always("bind", None)


@in_fake_time
async def test_a_write_that_lands_after_its_bind_failed_finds_its_cards_kept() -> None:
    world = asked(one_card(), one_card("n2"))
    await unanswered(world)
    assert world.filtered(POD, ["n2"])["Error"] == "pod default/p may be bound to n1 already"
    assert world.filtered(gpu_pod("thief", mem=81920), ["n1"])["NodeNames"] is None
    [held] = [entry.facts for entry in world.ledger.pods()]
    world.api.add_pod(POD.on("n1", "n1-0,NVIDIA,1000,10:;"))
    world.watch()
    assert [entry.facts for entry in world.ledger.pods()] == [held]
    assert world.agrees()


@in_fake_time
async def test_a_write_that_can_no_longer_land_frees_its_cards() -> None:
    world = asked(one_card())
    await unanswered(world)
    assert world.cards() != FREE
    await world.binder.look_up_unconfirmed()
    assert world.cards() == FREE
    assert world.agrees()


@in_fake_time
async def test_a_write_that_may_land_is_not_void_because_its_node_lost_the_card() -> None:
    world = asked(one_card())
    await unanswered(world)
    world.api.add_node(serving_downward_api(node("n1").gpu("other")))
    world.watch()
    assert await world.bound(POD) == "node n1 lost its devices"
    assert (world.state(POD), world.cycle_state(POD)) == (GrantState.RESERVED, CycleState.UNCERTAIN)


@in_fake_time
async def test_a_bind_cut_off_after_its_pod_went_leaves_nothing_uncertain() -> None:
    world = asked(one_card())
    world.api.script("bind", Step(delay=5.0))
    task = asyncio.create_task(world.bound(POD))
    await asyncio.sleep(1)
    world.api.delete_pod(KEY)
    world.watch()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert world.agrees()


@in_fake_time
async def test_a_pod_that_ended_before_kube_scheduler_asks_again_holds_nothing() -> None:
    world = asked(one_card())
    world.api.add_pod(POD.on("n1", "n1-0,NVIDIA,1000,10:;").ended())
    world.watch()
    world.filtered(POD)
    assert await world.bound(POD) == "pod default/p has ended already"
    assert world.agrees()


# -- pods that wait


def full() -> World:
    world = World(one_card())
    world.create(gpu_pod("first").on("n1", "n1-0,NVIDIA,81920,100:;"))
    return world


@pytest.mark.parametrize("shown", [None, POD.ended("Failed"), POD.on("n1")], ids=["gone", "ended", "bound"])
def test_a_pod_that_is_asked_for_after_its_end_does_not_wait_for_ever(shown: PodBuilder | None) -> None:
    world = full()
    if shown is not None:
        world.create(shown)
    world.filtered(POD)
    for _ in range(UNSEEN_TICKS):
        world.cycles.tick()
    assert len(world.unschedulable) == 1  # kube-scheduler may be ahead of the informer.
    world.cycles.tick()
    assert len(world.unschedulable) == 0


def test_a_pod_that_is_pending_waits_as_long_as_it_takes() -> None:
    world = full()
    world.create(POD)
    world.filtered(POD)
    for _ in range(UNSEEN_TICKS * 3):
        world.cycles.tick()
    assert len(world.unschedulable) == 1


@in_fake_time
async def test_what_a_failed_bind_gives_up_is_room_for_others() -> None:
    world = asked(one_card())
    world.api.delete_pod(KEY)
    before = world.room
    assert await world.bound(POD) == '404 NotFound: pods "default/p" not found'
    assert world.room > before


# -- turns and locks


@in_fake_time
async def test_an_overdue_turn_takes_the_record_of_its_lock_with_it() -> None:
    plain = gpu_pod("p", mem=1000, cores=10)
    world = asked(node("n1").gpus(1), pod=plain)
    assert await world.bound(plain) == ""
    await asyncio.sleep(LOCK)
    [cycle] = world.cycles
    assert cycle.ticket is not None
    assert cycle.ticket.locks
    world.cycles.tick()
    assert cycle.ticket.locks == []
    assert world.agrees()


@in_fake_time
async def test_a_lock_from_before_does_not_let_its_pod_pass_one_that_is_handed_over_under_another_lock() -> None:
    both = node("n1").gpus(1).capacity(**{"cambricon.com/mlu.smlu.vcore": 100, "cambricon.com/mlu.smlu.vmemory": 64})
    other, plain = pod("other").container(**MLU), gpu_pod("p", mem=1000, cores=10)
    world = World(both)
    await world.run(other)
    world.create(plain)
    world.api.annotate("n1", **{keys.NODE_LOCK: "2023-11-14T22:13:20Z,default,p"})
    world.watch()
    world.chosen(plain)
    assert await world.bound(plain) == "node n1 is still handing devices to another pod"


@in_fake_time
async def test_a_lock_that_came_after_its_pod_went_is_given_back() -> None:
    plain = gpu_pod("p", mem=1000, cores=10)
    world = asked(node("n1").gpus(1), pod=plain)

    def goes() -> None:
        world.api.delete_pod(KEY)
        world.watch()

    world.api.script("annotate_node", Step(meanwhile=goes))
    assert await world.bound(plain) == "pod default/p was deleted or bound meanwhile"
    assert keys.NODE_LOCK not in world.api.nodes["n1"].annotations


@in_fake_time
async def test_a_lock_taken_for_a_handover_that_was_over_already_is_given_back() -> None:
    plain = gpu_pod("p", mem=1000, cores=10)
    world = asked(node("n1").gpus(1), pod=plain)

    def ends() -> None:
        """An earlier process' binding lands, and kubelet is quicker than the answer."""
        bound = plain.on("n1", "n1-0,NVIDIA,1000,10:;").annotate((keys.BIND_PHASE, keys.PHASE_SUCCESS))
        world.api.add_pod(bound)
        world.watch()

    world.api.script("annotate_node", Step(meanwhile=ends))
    assert await world.bound(plain) == ""
    assert keys.NODE_LOCK not in world.api.nodes["n1"].annotations
    assert (list(world.cycles), world.queue.active) == ([], 0)


@in_fake_time
async def test_a_pod_is_not_bound_anew_while_its_lost_binding_is_cleared_away() -> None:
    plain = gpu_pod("p", mem=1000, cores=10)
    world = asked(node("n1").gpus(1), pod=plain)
    world.api.always("bind", lost_answer())
    assert await world.bound(plain) == "no answer within 30 s"
    world.api.always("bind", None)
    world.api.script("annotate_node", Step(delay=5.0))  # The lock is slow to go.
    clearing = asyncio.create_task(world.binder.look_up_unconfirmed())
    await asyncio.sleep(1)
    assert world.filtered(plain)["Error"] == "pod default/p is being bound"
    assert await world.bound(plain) == "pod default/p is being bound already"
    await clearing
    assert world.chosen(plain) == "n1"
    assert await world.bound(plain) == ""
    assert world.queue.active == 1


# -- the audit's own mistakes


def test_a_full_mig_card_is_not_over_committed_because_its_profiles_are_rounded() -> None:
    card = node().gpu("M", memory=40960, mode="mig", slots=7, profiles=A100_40GB)
    places = [("2g.10gb", start, 2) for start in (0, 2, 4)] + [("1g.5gb", 6, 1)]
    holders = []
    for number, (profile, start, size) in enumerate(places):
        slot = f'{{"gpuUUID":"M","profile":"{profile}","placement":{{"start":{start},"size":{size}}}}}'
        use = "9856,29" if size == 2 else "4864,14"
        bound = gpu_pod(f"p{number}").on("n1", f"M,NVIDIA,{use}:;")
        holders.append(bound.annotate((MIG_ALLOCATIONS, f'[{{"containerIndex":0,"deviceIndex":0,{slot[1:]}]')))
    found = cluster(card).observe(*holders)
    assert found.cards() == {"M": (4, 34432, 101)}
    assert audit(found.ledger) == []


def test_an_init_container_that_ended_does_not_share_the_card_of_a_whole_one() -> None:
    ended = (
        pod("a").init(gpu=1, mem=1000).container(gpu=1, mem=1000).on("n1", "n1-0,NVIDIA,1000,0:;n1-1,NVIDIA,1000,0:;")
    )
    whole = gpu_pod("b", cores=100).on("n1", "n1-0,NVIDIA,81920,100:;")
    found = cluster(node("n1").gpus(2)).observe(ended.after_init("init0"), whole)
    assert audit(found.ledger) == []
