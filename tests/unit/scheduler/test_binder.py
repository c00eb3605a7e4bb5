from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest

from tessera.core.ledger import GrantState
from tessera.kube.errors import AccessError, KubeError
from tessera.scheduler import binder
from tessera.scheduler.binder import ATTEMPTS
from tessera.scheduler.pod_cycle import CycleState
from tessera.scheduler.settings import NodeLockMode
from tessera.scheduler.tenure import NOT_LEADING
from tessera.wire import keys
from tessera.wire.objects import PodStatus
from tests.support.builders import ALLOCATED, GPU, NOW, NodeBuilder, PodBuilder, gpu_pod, node, pod
from tests.support.event_loops import in_fake_time
from tests.support.fake_cluster import FakeCluster, Step, lost_answer, never_sent, refused
from tests.support.stepwise_scheduler import (
    LOCK,
    RESERVATION,
    TURN,
    World,
    answering,
    filter_body,
    serving_downward_api,
    uid,
    using_downward_api,
)

SAMPLES = Path(__file__).parents[2] / "samples" / "extender"

FREE = {"n1-0": (0, 0, 0)}
HELD = {"n1-0": (1, 1000, 10)}
POD = using_downward_api(gpu_pod("p", mem=1000, cores=10))
KEY = "default/p"


def agent(name: str = "n1", cards: int = 1) -> NodeBuilder:
    return serving_downward_api(node(name).gpus(cards))


def ready(*nodes: NodeBuilder, asking: PodBuilder = POD, on: str = "n1") -> World:
    """A world in which the pod has its reservation."""
    world = World(*(nodes or (agent(),)))
    world.create(asking)
    assert world.chosen(asking, [on]) == on
    return world


def run(case: Callable[[], Awaitable[None]]) -> None:
    in_fake_time(case)()


def seconds() -> float:
    return asyncio.get_running_loop().time()


def node_of(world: World, key: str = KEY) -> str:
    return world.api.pods[key].spec.node_name


# -- success


@in_fake_time
async def test_a_bind_is_one_write_of_node_annotations_and_labels_together() -> None:
    world = ready()
    assert await world.bound(POD) == ""
    assert world.api.calls == ["bind"]
    [write] = world.api.writes
    assert write.labels == {keys.ASSIGNED_NODE: "n1"}
    assert write.annotations == {
        keys.ASSIGNED_NODE: "n1",
        keys.ASSIGNED_TIME: str(int(NOW)),
        keys.BIND_PHASE: keys.PHASE_ALLOCATING,
        keys.BIND_TIME: str(int(NOW)),
        "hami.io/vgpu-devices-to-allocate": "n1-0,NVIDIA,1000,10:;",
        ALLOCATED: "n1-0,NVIDIA,1000,10:;",
        "tessera.io/c0.visible-devices": "n1-0",
        "tessera.io/c0.memory-limit-0": "1000m",
        "tessera.io/c0.core-limit": "10",
        "tessera.io/c0.mps-memory-limit": "n1-0=1000M",
        "tessera.io/c0.mps-thread-percentage": "10",
    }
    assert (world.state(POD), world.cards()) == (GrantState.BOUND, HELD)
    assert world.agrees()


@in_fake_time
async def test_a_bound_pod_does_not_expire_before_the_watch_shows_it() -> None:
    world = ready()
    await world.bound(POD)
    await asyncio.sleep(RESERVATION * 2)
    world.cycles.tick()
    assert world.cards() == HELD


@in_fake_time
async def test_a_bind_is_told_with_its_end() -> None:
    world = ready()
    world.api.delete_pod(KEY)
    error = await world.bound(POD)
    world.create(POD)
    world.chosen(POD)
    assert await world.bound(POD) == ""
    assert [(event.namespace, event.name, event.uid, event.node, event.error) for event in world.reports.binds] == [
        ("default", "p", "uid-p", "n1", error),
        ("default", "p", "uid-p", "n1", ""),
    ]


@in_fake_time
async def test_a_recorded_bind_request_is_answered_as_recorded() -> None:
    asking = gpu_pod("gpu1").called("gpu1", uid="9992952e-cecc-4e6a-966a-273028038635")
    world = ready(agent("node-real"), asking=asking, on="node-real")
    answer = await world.binder.answer((SAMPLES / "bind-0.request.json").read_bytes())
    assert json.loads(answer) == json.loads((SAMPLES / "bind-0.response.json").read_bytes())
    assert node_of(world, "default/gpu1") == "node-real"


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b"", "Please send a request body"),
        (b"{}", "extender binding args missing PodName, PodNamespace, PodUID, Node"),
        (b"[", "not valid ExtenderBindingArgs"),
        (b'{"PodName": 3}', "not valid ExtenderBindingArgs"),
        (b'{"PodName":"p","PodNamespace":"d","PodUID":"u"}', "extender binding args missing Node"),
    ],
)
def test_a_body_that_cannot_be_read_is_an_error_in_the_answer(body: bytes, error: str) -> None:
    async def case() -> None:
        world = ready()
        assert json.loads(await world.binder.answer(body))["Error"].startswith(error)
        assert world.api.calls == []

    run(case)


# -- without a reservation


@in_fake_time
async def test_after_a_restart_a_pod_is_placed_again_on_the_node_that_was_promised() -> None:
    world = ready(agent("n1"), agent("n2"))
    world.restart()
    assert world.cards() == FREE
    assert await world.bound(POD) == ""
    assert world.api.calls == ["get_pod", "bind"]
    assert world.cards() == HELD
    assert world.agrees()


@in_fake_time
async def test_a_bind_to_another_node_than_the_reserved_one_moves_the_reservation() -> None:
    world = ready(agent("n1"), agent("n2"))
    assert await world.bound(POD, "n2") == ""
    assert (world.cards("n1"), world.cards("n2")) == (FREE, {"n2-0": (1, 1000, 10)})
    assert world.agrees()


@in_fake_time
async def test_a_pod_whose_room_is_taken_after_a_restart_is_refused_with_the_reason() -> None:
    world = ready(serving_downward_api(node("n1").gpus(1, memory=1500)))
    world.restart()
    await world.run(using_downward_api(gpu_pod("faster", mem=1000)))
    assert await world.bound(POD) == "pod no longer fits node n1: 1/1 CardInsufficientMemory"
    assert world.state(POD) is None
    assert world.agrees()


@in_fake_time
async def test_a_node_without_devices_is_refused_after_a_restart() -> None:
    world = ready()
    world.api.delete_node("n1")
    world.restart()
    assert await world.bound(POD) == "node n1 has no registered devices"
    assert node_of(world) == ""


@in_fake_time
async def test_a_request_that_cannot_be_honoured_is_refused_after_a_restart() -> None:
    world = World(agent())
    bad = gpu_pod("p", mem="much")
    world.create(bad)
    assert "much" in await world.bound(bad)
    assert node_of(world) == ""


@in_fake_time
async def test_a_late_bind_never_takes_a_settled_pod_from_its_cards() -> None:
    world = World(agent())
    world.create(POD.on("n1", "n1-0,NVIDIA,1000,10:;"))
    world.api.pods[KEY] = POD.api()  # As no apiserver would answer.
    assert await world.bound(POD) == "pod default/p was deleted or bound meanwhile"
    assert (world.api.writes, world.cards(), world.cycle_state(POD)) == ([], HELD, None)


@pytest.mark.parametrize(("there", "error"), [("n1", ""), ("n2", "pod is bound to n2 already")])
def test_a_pod_that_is_bound_already_is_left_alone(there: str, error: str) -> None:
    async def case() -> None:
        world = ready(agent("n1"), agent("n2"))
        world.api.add_pod(POD.on(there, f"{there}-0,NVIDIA,1000,10:;"))
        world.restart()
        before = world.ledger.state()
        assert await world.bound(POD) == error
        assert (world.ledger.state(), world.api.writes) == (before, [])

    run(case)


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (refused(503), "pod default/p cannot be read: 503: scripted"),
        (never_sent(), "pod default/p cannot be read: connection refused"),
    ],
)
def test_a_pod_that_cannot_be_read_after_a_restart_is_not_bound(fault: KubeError, error: str) -> None:
    async def case() -> None:
        world = ready()
        world.restart()
        world.api.script("get_pod", fault)
        assert await world.bound(POD) == error
        assert (node_of(world), world.cards()) == ("", FREE)

    run(case)


@in_fake_time
async def test_a_pod_created_anew_between_restart_and_bind_is_not_bound() -> None:
    world = ready()
    world.restart()
    world.create(POD.called("p", uid="another"))
    assert await world.bound(POD) == "pod default/p was re-created"
    assert node_of(world) == ""


@in_fake_time
async def test_a_pod_without_devices_is_bound_and_nothing_is_written_on_it() -> None:
    world = World(node("n1"))
    plain = pod("p").container()
    world.create(plain)
    assert world.chosen(plain) == "n1"
    assert await world.bound(plain) == ""
    assert node_of(world) == "n1"
    assert (dict(world.api.writes[0].annotations), dict(world.api.writes[0].labels)) == ({}, {})
    assert world.agrees()


@in_fake_time
async def test_a_pod_without_devices_that_cannot_be_bound_is_an_error() -> None:
    world = World(node("n1"))
    world.create(pod("p").container())
    world.api.script("bind", AccessError("no token"))
    assert await world.bound(pod("p").container()) == "no token"


# -- things that change between filter and bind


@in_fake_time
async def test_a_pod_deleted_between_filter_and_bind_frees_its_card() -> None:
    world = ready()
    world.api.delete_pod(KEY)
    assert "404 NotFound" in await world.bound(POD)
    assert (world.state(POD), world.cards()) == (None, FREE)
    assert world.agrees()


@in_fake_time
async def test_a_pod_created_anew_under_its_name_does_not_get_the_old_ones_slice() -> None:
    world = ready()
    world.api.delete_pod(KEY)
    world.api.add_pod(POD.called("p", uid="another"))
    assert await world.bound(POD) == "pod default/p was re-created"
    assert (node_of(world), world.state(POD), world.cards()) == ("", None, FREE)
    assert world.agrees()


@in_fake_time
async def test_a_pod_that_is_being_deleted_keeps_no_reservation_once_the_watch_shows_it() -> None:
    world = ready()
    world.api.add_pod(POD.terminating())
    assert await world.bound(POD) == "409 Conflict: scripted"
    assert world.agrees()


@in_fake_time
async def test_a_node_that_is_gone_is_refused_and_nothing_is_written() -> None:
    world = ready()
    world.api.delete_node("n1")
    world.watch()
    assert await world.bound(POD) == "node n1 lost its devices"
    assert (world.api.writes, world.state(POD)) == ([], None)
    assert world.agrees()


@pytest.mark.parametrize("mode", list(NodeLockMode))
def test_a_vendor_that_left_the_configuration_ends_the_reservation_of_its_pods(mode: NodeLockMode) -> None:
    async def case() -> None:
        world = World(node("n1").gpus(1), mode=mode)
        world.create(POD)
        world.chosen(POD)
        world.vendors.clear()
        world.engine.forget_vendors()
        world.nodes.put("n1", world.api.nodes["n1"])
        assert await world.bound(POD) == "node n1 lost its devices"
        assert world.cycle_state(POD) is CycleState.PENDING
        assert world.ledger.pods() == []
        assert (world.queue.active, world.queue.waiting) == (0, 0)

    run(case)


@in_fake_time
async def test_a_card_that_is_gone_is_not_given_to_a_pod() -> None:
    world = ready(agent("n1", cards=1))
    world.api.add_node(serving_downward_api(node("n1").gpu("another-card")))
    world.watch()
    assert await world.bound(POD) == "node n1 lost its devices"
    assert (world.api.writes, world.state(POD)) == ([], None)
    assert world.agrees()


@in_fake_time
async def test_a_reservation_that_expired_is_placed_again() -> None:
    world = ready()
    await asyncio.sleep(RESERVATION)
    world.cycles.tick()
    assert await world.bound(POD) == ""
    assert world.agrees()


# -- answers that are lost


@in_fake_time
async def test_a_bind_that_took_effect_without_an_answer_is_found_and_not_repeated() -> None:
    world = ready()
    world.api.script("bind", Step(lost_answer(), done=True))
    assert await world.bound(POD) == ""
    assert world.api.calls == ["bind", "get_pod"]
    assert world.cards() == HELD
    assert world.agrees()


@in_fake_time
async def test_a_bind_that_was_lost_before_its_effect_is_sent_again() -> None:
    world = ready()
    world.api.script("bind", lost_answer())
    assert await world.bound(POD) == ""
    assert world.api.calls == ["bind", "get_pod", "bind"]
    assert world.agrees()


@in_fake_time
async def test_a_bind_that_never_left_is_sent_again_without_looking() -> None:
    world = ready()
    world.api.script("bind", never_sent())
    assert await world.bound(POD) == ""
    assert world.api.calls == ["bind", "bind"]
    assert world.agrees()


@in_fake_time
async def test_a_bind_that_is_never_answered_and_never_done_goes_back_to_a_reservation() -> None:
    world = ready()
    world.api.always("bind", lost_answer())
    assert await world.bound(POD) == "no answer within 30 s"
    assert world.api.calls.count("bind") == ATTEMPTS
    assert (world.state(POD), world.cards()) == (GrantState.RESERVED, HELD)


@in_fake_time
async def test_a_bind_whose_look_up_fails_at_first_is_looked_up_again() -> None:
    world = ready()
    world.api.script("bind", Step(lost_answer(), done=True))
    world.api.script("get_pod", never_sent(), refused(500), AccessError("no token"))
    assert await world.bound(POD) == ""
    assert world.agrees()


@in_fake_time
async def test_a_bind_that_was_lost_while_its_pod_was_deleted_frees_the_card() -> None:
    world = ready()
    world.api.script("bind", Step(lost_answer(), meanwhile=lambda: world.api.delete_pod(KEY)))
    assert await world.bound(POD) == "no answer within 30 s"
    assert world.agrees()


# -- when the effect of a write is unknown


# -- pods that another client changed after they were placed


@in_fake_time
async def test_a_change_that_the_placement_does_not_depend_on_costs_one_more_write_and_no_time() -> None:
    world = ready()
    world.api.mark_pod(KEY, {"example.com/note": "x"})
    assert await world.bound(POD) == ""
    assert (world.api.calls, seconds()) == (["bind", "get_pod", "bind"], 0.0)
    assert world.cards() == HELD


@in_fake_time
async def test_a_pod_that_accepts_other_cards_by_now_is_not_bound_to_those_that_were_found() -> None:
    world = ready()
    world.api.mark_pod(KEY, {"nvidia.com/use-gputype": "another"})
    assert await world.bound(POD) == "pod default/p was changed after it was placed"
    assert (node_of(world), world.cards()) == ("", FREE)


@in_fake_time
async def test_a_pod_that_another_replica_has_fenced_is_not_bound_here() -> None:
    world = ready()
    world.api.mark_pod(KEY, {keys.FENCE: "another"})
    assert await world.bound(POD) == "pod default/p: another replica has taken over"
    assert (node_of(world), world.cards()) == ("", FREE)
    assert await world.bound(POD) == "pod default/p: another replica has taken over", "without a reservation"
    assert node_of(world) == ""
    assert await world.bound(POD) == "", "the other one's touch was late: this replica has fenced the pod again"


@in_fake_time
async def test_a_pod_that_ended_while_its_bind_had_no_answer_frees_its_card() -> None:
    world = ready()
    ended = msgspec.structs.replace(world.api.pods[KEY], status=PodStatus(phase="Failed"))
    world.api.script("bind", lost_answer())
    world.api._store_pod(KEY, ended)
    assert await world.bound(POD) == "pod default/p has ended already"
    assert (world.api.calls, world.cards()) == (["bind", "get_pod"], FREE)


async def unknown(world: World, *, done: bool) -> None:
    world.api.always("bind", Step(lost_answer(), done=done))
    world.api.always("get_pod", never_sent())
    assert await world.bound(POD) == "no answer within 30 s"
    world.api.always("bind", None)
    world.api.always("get_pod", None)


@in_fake_time
async def test_a_bind_of_unknown_end_frees_nothing() -> None:
    world = ready()
    await unknown(world, done=True)
    assert world.cards() == HELD
    assert world.filtered(gpu_pod("thief", mem=81000))["NodeNames"] is None


@in_fake_time
async def test_a_bind_of_unknown_end_that_was_done_is_kept_when_the_watch_shows_it() -> None:
    world = ready()
    await unknown(world, done=True)
    world.watch()
    await asyncio.sleep(RESERVATION * 2)
    world.cycles.tick()
    assert (world.state(POD), world.cards()) == (GrantState.BOUND, HELD)
    assert world.agrees()


@in_fake_time
async def test_a_bind_of_unknown_end_that_was_never_done_is_freed_by_the_look_up() -> None:
    world = ready()
    await unknown(world, done=False)
    world.watch()
    sent = world.api.pods[KEY].metadata.resource_version
    await world.binder.look_up_unconfirmed()
    assert world.api.pods[KEY].metadata.resource_version != sent, "the binding could land yet"
    assert world.cards() == FREE
    assert world.agrees()


@in_fake_time
async def test_a_bind_of_unknown_end_is_never_freed_by_time_alone() -> None:
    world = ready()
    await unknown(world, done=True)
    world.api.always("annotate_pod", refused(403, "Forbidden"))
    await asyncio.sleep(RESERVATION * 2)
    world.cycles.tick()
    await world.binder.look_up_unconfirmed()
    assert world.filtered(gpu_pod("thief", mem=81000))["NodeNames"] is None
    assert (world.cycle_state(POD), world.cards()) == (CycleState.UNCERTAIN, HELD)
    world.api.always("annotate_pod", None)
    await world.binder.look_up_unconfirmed()
    assert world.cycle_state(POD) is CycleState.BOUND
    assert world.agrees()


@in_fake_time
async def test_a_pod_of_unknown_end_is_not_written_again_after_another_replica_led() -> None:
    world = ready()
    await unknown(world, done=False)
    world.lead_again()
    world.create(gpu_pod("theirs", mem=81000).on("n1", "n1-0,NVIDIA,81000,0:;"))
    assert world.filtered(POD)["Error"] == "pod default/p may be bound to n1 already"
    assert await world.bound(POD) == "pod default/p may be bound to n1 already"
    assert node_of(world) == ""
    await world.binder.look_up_unconfirmed()
    assert world.filtered(POD)["NodeNames"] is None
    assert world.agrees()


@in_fake_time
async def test_a_reservation_from_before_another_replica_led_is_chosen_again() -> None:
    world = ready()
    world.lead_again()
    world.create(gpu_pod("theirs", mem=81000).on("n1", "n1-0,NVIDIA,81000,0:;"))
    assert (await world.bound(POD)).startswith("pod no longer fits node n1")
    assert node_of(world) == ""
    assert world.agrees()


@pytest.mark.parametrize("status", [429, 500])
def test_a_bind_is_not_sent_again_after_another_replica_led_between_two_attempts(status: int) -> None:
    async def case() -> None:
        world = ready()
        world.api.script("bind", Step(refused(status), meanwhile=world.lead_again))
        assert await world.bound(POD) == NOT_LEADING
        assert (world.api.calls.count("bind"), node_of(world)) == (1, "")

    run(case)


def unreachable_bind(world: World) -> None:
    world.api.always("bind", never_sent())


def forbidden_credentials(world: World) -> None:
    world.api.always("bind", AccessError("token cannot be read"))


def not_leading(world: World) -> None:
    world.stop_leading()


def card_gone(world: World) -> None:
    world.api.add_node(serving_downward_api(node("n1").gpu("other")))
    world.nodes.put("n1", world.api.nodes["n1"])


@pytest.mark.parametrize("trouble", [unreachable_bind, forbidden_credentials, not_leading, card_gone])
def test_a_later_bind_that_is_not_sent_says_nothing_about_the_earlier_one(trouble: Callable[[World], None]) -> None:
    async def case() -> None:
        world = ready()
        await unknown(world, done=True)
        trouble(world)
        assert await world.bound(POD) != ""
        assert (world.cycle_state(POD), world.state(POD)) == (CycleState.UNCERTAIN, GrantState.RESERVED)
        assert world.agrees()

    run(case)


@in_fake_time
async def test_a_pod_of_unknown_end_that_turns_out_bound_after_its_turn_has_another_one() -> None:
    world = ready(answering(node("n1").gpus(1)), asking=PLAIN)
    world.api.always("bind", Step(lost_answer(), done=True))
    world.api.always("get_pod", never_sent())
    assert await world.bound(PLAIN) == "no answer within 30 s"
    await asyncio.sleep(LOCK)
    world.cycles.tick()
    assert world.queue.active == 0
    world.watch()
    assert [ticket.uid for ticket in world.queue.active_on("n1")] == ["uid-p"]
    world.api.mark_pod(KEY, {keys.BIND_PHASE: keys.PHASE_SUCCESS})
    assert world.agrees()
    assert world.queue.active == 0


@in_fake_time
async def test_a_later_bind_that_gets_no_lock_says_nothing_about_the_earlier_one() -> None:
    world = ready(node("n1").gpus(1), asking=PLAIN)
    world.api.always("bind", Step(lost_answer(), done=True))
    world.api.always("get_pod", never_sent())
    assert await world.bound(PLAIN) == "no answer within 30 s"
    await asyncio.sleep(LOCK)
    world.cycles.tick()  # The turn is overdue, so the next bind asks for the lock again.
    world.api.always("get_node", never_sent())
    assert await world.bound(PLAIN) == "connection refused"
    assert (world.cycle_state(PLAIN), world.cards()) == (CycleState.UNCERTAIN, HELD)


@pytest.mark.parametrize("done", [True, False])
def test_a_pod_of_unknown_end_that_is_asked_for_again_ends_on_the_same_cards(done: bool) -> None:
    async def case() -> None:
        world = ready(agent("n1"), agent("n2"))
        await unknown(world, done=done)
        assert world.chosen(POD) == "n1"
        assert world.cards("n2") == {"n2-0": (0, 0, 0)}
        assert await world.bound(POD) == ""
        assert world.cards() == HELD
        assert world.agrees()

    run(case)


@in_fake_time
async def test_a_pod_of_unknown_end_that_turns_out_unbound_may_go_elsewhere() -> None:
    world = ready(agent("n1"), agent("n2"))
    await unknown(world, done=False)
    await world.binder.look_up_unconfirmed()
    assert world.chosen(POD, ["n2"]) == "n2"
    assert world.cards("n1") == FREE


@in_fake_time
async def test_a_pod_of_unknown_end_is_not_bound_to_another_node() -> None:
    world = ready(agent("n1"), agent("n2"))
    await unknown(world, done=False)
    assert await world.bound(POD, "n2") == "pod default/p may be bound to n1 already"
    assert (world.cards("n1"), world.cards("n2")) == (HELD, {"n2-0": (0, 0, 0)})
    assert world.cycle_state(POD) is CycleState.UNCERTAIN


@pytest.mark.parametrize("bound_elsewhere", [True, False])
def test_a_conflict_that_cannot_be_looked_up_keeps_its_reservation_for_a_while(bound_elsewhere: bool) -> None:
    async def case() -> None:
        world = ready(agent("n1"), agent("n2"))
        world.api.script("bind", refused(409, "Conflict"))
        world.api.always("get_pod", never_sent())
        assert await world.bound(POD) == "409 Conflict: scripted"
        assert (world.cycle_state(POD), world.cards("n1")) == (CycleState.RESERVED, HELD)
        world.api.always("get_pod", None)
        if bound_elsewhere:
            world.api.add_pod(POD.on("n2", "n2-0,NVIDIA,1000,10:;"))
            world.watch()
        await asyncio.sleep(RESERVATION)
        world.cycles.tick()
        assert world.cards("n1") == FREE
        assert world.agrees()

    run(case)


# -- answers that are no


@in_fake_time
async def test_a_pod_that_is_bound_here_already_is_a_success() -> None:
    world = ready()
    world.api.script("bind", Step(meanwhile=lambda: world.api.add_pod(POD.on("n1", "n1-0,NVIDIA,1000,10:;"))))
    assert await world.bound(POD) == ""
    assert world.agrees()


@in_fake_time
async def test_a_pod_that_is_bound_elsewhere_frees_its_cards_here() -> None:
    world = ready(agent("n1"), agent("n2"))
    world.api.script("bind", Step(meanwhile=lambda: world.api.add_pod(POD.on("n2", "n2-0,NVIDIA,1000,10:;"))))
    assert await world.bound(POD) == "pod is bound to n2 already"
    assert world.cards("n1") == FREE
    assert world.agrees()


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
def test_a_refusal_for_now_is_tried_again_after_a_pause(status: int) -> None:
    async def case() -> None:
        world = ready()
        world.api.script("bind", *[refused(status)] * (ATTEMPTS - 1))
        assert await world.bound(POD) == ""
        assert world.api.calls == ["bind"] * ATTEMPTS
        assert 0 < seconds() < binder.LONGEST_PAUSE * ATTEMPTS
        assert world.agrees()

    run(case)


@in_fake_time
async def test_a_server_that_asks_for_patience_gets_it_within_reason() -> None:
    world = ready()
    world.api.script("bind", refused(429, retry_after=2.0), refused(429, retry_after=1000.0))
    assert await world.bound(POD) == ""
    assert seconds() == pytest.approx(2.0 + binder.LONGEST_PAUSE)


@pytest.mark.parametrize(("status", "looks"), [(429, 0), (500, 1), (504, 1)])
def test_a_bind_that_is_refused_to_the_end_becomes_a_reservation_that_ends(status: int, looks: int) -> None:
    async def case() -> None:
        world = ready()
        world.api.always("bind", refused(status))
        assert await world.bound(POD) == f"{status}: scripted"
        assert world.api.calls.count("get_pod") == looks
        assert (world.state(POD), world.cards()) == (GrantState.RESERVED, HELD)
        if looks:
            world.cycles.tick()
            assert (world.cycle_state(POD), world.cards()) == (CycleState.UNCERTAIN, HELD)
            await world.binder.look_up_unconfirmed()
        await asyncio.sleep(RESERVATION - 3)
        assert world.cards() == (FREE if looks else HELD)
        await asyncio.sleep(3.001)  # The jitter of the pauses makes the sum inexact.
        world.cycles.tick()
        assert world.cards() == FREE
        assert world.agrees()

    run(case)


@in_fake_time
async def test_a_server_error_after_the_effect_is_found_even_with_the_last_attempt() -> None:
    world = ready()
    world.api.script("bind", *[refused(504)] * (ATTEMPTS - 1), Step(refused(504), done=True))
    assert await world.bound(POD) == ""
    assert world.agrees()


@in_fake_time
async def test_a_server_error_after_the_effect_is_found_by_the_next_attempt() -> None:
    world = ready()
    world.api.script("bind", Step(refused(500), done=True))
    assert await world.bound(POD) == ""
    assert world.api.calls == ["bind", "bind", "get_pod"]
    assert world.agrees()


@in_fake_time
async def test_a_bind_that_is_forbidden_keeps_its_reservation_for_another_try() -> None:
    world = ready()
    world.api.script("bind", refused(403, "Forbidden"))
    assert await world.bound(POD) == "403 Forbidden: scripted"
    assert world.state(POD) is GrantState.RESERVED
    assert await world.bound(POD) == ""
    assert world.agrees()


@in_fake_time
async def test_credentials_that_cannot_be_had_keep_the_reservation() -> None:
    world = ready()
    world.api.script("bind", AccessError("no token"))
    assert await world.bound(POD) == "no token"
    assert world.state(POD) is GrantState.RESERVED


@in_fake_time
async def test_a_pod_that_failed_to_bind_can_be_asked_for_again() -> None:
    world = ready(agent("n1"), agent("n2"))
    world.api.always("bind", refused(429))
    await world.bound(POD)
    world.api.always("bind", None)
    assert world.chosen(POD, ["n2"]) == "n2"
    assert await world.bound(POD, "n2") == ""
    assert (world.cards("n1"), world.agrees()) == (FREE, True)


# -- while a bind runs


@in_fake_time
async def test_a_watch_that_shows_the_pod_before_the_answer_changes_nothing() -> None:
    world = ready()
    world.api.script("bind", Step(lost_answer(), done=True))
    world.api.script("get_pod", Step(meanwhile=world.watch, delay=1.0))
    assert await world.bound(POD) == ""
    assert (world.state(POD), world.cards()) == (GrantState.BOUND, HELD)
    assert world.agrees()


@in_fake_time
async def test_a_filter_during_the_bind_neither_moves_nor_frees_the_pod() -> None:
    world = ready(agent("n1"), agent("n2"))
    errors: list[str] = []
    ask = Step(meanwhile=lambda: errors.append(world.filtered(POD, ["n2"])["Error"]))
    world.api.script("bind", ask)
    assert await world.bound(POD) == ""
    assert errors == ["pod default/p is being bound to n1"]
    assert (world.cards("n1"), world.cards("n2")) == (HELD, {"n2-0": (0, 0, 0)})
    assert world.agrees()


@in_fake_time
async def test_a_second_bind_of_the_same_pod_is_an_error_and_harms_nothing() -> None:
    world = ready()
    world.api.script("bind", Step(delay=5.0))
    first = asyncio.create_task(world.bound(POD))
    await asyncio.sleep(1)
    assert world.cycles.claimed == 1
    assert await world.bound(POD) == "pod default/p is being bound already"
    assert await first == ""
    assert (world.cycles.claimed, world.api.calls) == (0, ["bind"])
    assert world.agrees()


@in_fake_time
async def test_a_reservation_does_not_expire_while_its_bind_runs() -> None:
    world = ready()
    world.api.script("bind", Step(delay=RESERVATION * 2))
    task = asyncio.create_task(world.bound(POD))
    await asyncio.sleep(RESERVATION)
    world.cycles.tick()
    assert world.cards() == HELD
    assert await task == ""
    assert world.agrees()


@in_fake_time
async def test_a_bind_cancelled_during_its_write_frees_nothing() -> None:
    world = ready()
    world.api.script("bind", Step(delay=5.0))
    task = asyncio.create_task(world.bound(POD))
    await asyncio.sleep(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (world.state(POD), world.cards(), world.cycles.claimed) == (GrantState.RESERVED, HELD, 0)
    assert world.cycle_state(POD) is CycleState.UNCERTAIN


@in_fake_time
async def test_a_bug_during_the_write_is_not_hidden_and_frees_nothing() -> None:
    world = ready()
    world.api.script("bind", Step(meanwhile=lambda: 1 / 0))
    with pytest.raises(ZeroDivisionError):
        await world.bound(POD)
    assert (world.state(POD), world.cycles.claimed) == (GrantState.RESERVED, 0)


# -- turns and locks

PLAIN = gpu_pod("p", mem=1000, cores=10)


def other(name: str = "first") -> PodBuilder:
    return gpu_pod(name, mem=500)


async def queued(world: World) -> asyncio.Task[str]:
    """A bind that waits because another pod of the node is in handover."""
    await world.run(other())
    world.create(PLAIN)
    world.chosen(PLAIN, ["n1"])
    task = asyncio.create_task(world.bound(PLAIN))
    await asyncio.sleep(1)
    assert not task.done()
    return task


@in_fake_time
async def test_a_bind_waits_for_its_turn_and_goes_on_when_the_other_pod_has_its_devices() -> None:
    world = World(answering(node("n1").gpus(1)))
    task = await queued(world)
    assert node_of(world) == ""
    world.api.mark_pod("default/first", {keys.BIND_PHASE: keys.PHASE_SUCCESS})
    world.watch()
    assert await task == ""
    assert seconds() == pytest.approx(1, abs=0.01)
    assert world.agrees()


@in_fake_time
async def test_a_turn_that_does_not_come_fails_the_bind_and_keeps_the_reservation() -> None:
    world = World(answering(node("n1").gpus(1)))
    task = await queued(world)
    assert await task == "node n1 is still handing devices to another pod"
    assert seconds() == pytest.approx(TURN, abs=0.01)
    assert (world.state(PLAIN), world.queue.waiting, world.queue.active) == (GrantState.RESERVED, 0, 1)
    assert await world.bound(PLAIN) != ""
    world.api.delete_pod("default/first")
    world.watch()
    assert await world.bound(PLAIN) == ""
    assert world.agrees()


@in_fake_time
async def test_a_pod_deleted_while_it_waits_for_its_turn_is_not_written() -> None:
    world = World(answering(node("n1").gpus(1)))
    task = await queued(world)
    world.api.delete_pod("default/p")
    world.api.delete_pod("default/first")
    world.watch()
    assert await task == "pod default/p was deleted or bound meanwhile"
    assert [write.name for write in world.api.writes] == ["default/first"]
    assert (world.queue.active, world.queue.waiting) == (0, 0)
    assert world.agrees()


@in_fake_time
async def test_a_pod_deleted_while_it_waits_for_its_turn_takes_no_lock_and_ends_at_once() -> None:
    world = World(node("n1").gpus(1))
    task = await queued(world)
    world.api.delete_pod("default/p")
    world.watch()
    assert await task == "pod default/p was deleted or bound meanwhile"
    assert seconds() == pytest.approx(1, abs=0.01)
    assert world.api.nodes["n1"].annotations[keys.NODE_LOCK].endswith(",default,first")
    assert world.agrees()


@in_fake_time
async def test_a_bind_cancelled_while_it_waits_leaves_a_reservation_and_no_waiter() -> None:
    world = World(answering(node("n1").gpus(1)))
    task = await queued(world)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert world.cycle_state(PLAIN) is CycleState.RESERVED
    assert (world.queue.active, world.queue.waiting) == (1, 0)


@in_fake_time
async def test_a_bind_that_waited_while_another_replica_led_is_not_sent() -> None:
    world = World(answering(node("n1").gpus(1)))
    task = await queued(world)
    world.lead_again()
    world.api.delete_pod("default/first")
    world.watch()
    assert await task == NOT_LEADING
    assert (world.cycle_state(PLAIN), world.queue.active) == (CycleState.PENDING, 0)
    assert await world.bound(PLAIN) == ""
    assert world.agrees()


@in_fake_time
async def test_a_slow_write_keeps_its_turn_however_long_it_takes() -> None:
    world = ready(answering(node("n1").gpus(1)), asking=PLAIN)
    world.api.script("bind", Step(delay=LOCK + 1))
    task = asyncio.create_task(world.bound(PLAIN))
    await asyncio.sleep(LOCK)
    world.cycles.tick()
    assert [ticket.uid for ticket in world.queue.active_on("n1")] == ["uid-p"]
    assert await task == ""
    assert world.agrees()
    await asyncio.sleep(LOCK)
    world.cycles.tick()
    assert world.queue.active == 0


@pytest.mark.parametrize("cancelled", [True, False])
def test_a_pod_that_is_seen_in_handover_while_its_bind_waits_has_its_turn(cancelled: bool) -> None:
    async def case() -> None:
        world = World(answering(node("n1").gpus(1)))
        task = await queued(world)
        world.create(PLAIN.on("n1", "n1-0,NVIDIA,1000,0:;").annotate((keys.BIND_PHASE, keys.PHASE_ALLOCATING)))
        if cancelled:
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        else:
            assert await task == ""
        assert seconds() == pytest.approx(1, abs=0.01)
        assert [ticket.uid for ticket in world.queue.active_on("n1")] == ["uid-first", "uid-p"]
        world.api.mark_pod(KEY, {keys.BIND_PHASE: keys.PHASE_SUCCESS})
        world.api.delete_pod("default/first")
        assert world.agrees()
        assert (world.queue.active, world.queue.waiting) == (0, 0)

    run(case)


@pytest.mark.parametrize("status", [403, 409])
def test_a_bind_that_fails_gives_its_turn_and_its_lock_back(status: int) -> None:
    async def case() -> None:
        world = ready(node("n1").gpus(1), asking=PLAIN)
        world.api.script("bind", refused(status))
        assert await world.bound(PLAIN) != ""
        assert (world.queue.active, world.api.nodes["n1"].annotations.get(keys.NODE_LOCK)) == (0, None)

    run(case)


@in_fake_time
async def test_a_bound_pod_on_a_foreign_node_leaves_the_lock_for_the_plugin() -> None:
    world = ready(node("n1").gpus(1), asking=PLAIN)
    assert await world.bound(PLAIN) == ""
    assert world.api.nodes["n1"].annotations[keys.NODE_LOCK].endswith(",default,p")
    assert world.queue.active == 1
    assert world.agrees()


@in_fake_time
async def test_a_lock_that_cannot_be_released_does_not_break_the_answer() -> None:
    world = ready(node("n1").gpus(1), asking=PLAIN)
    world.api.script("bind", refused(403, "Forbidden"))
    world.api.script("get_node", Step(), refused(500))
    assert await world.bound(PLAIN) == "403 Forbidden: scripted"
    assert world.queue.active == 0


@in_fake_time
async def test_a_node_that_cannot_be_locked_fails_the_bind_and_keeps_the_reservation() -> None:
    world = ready(node("n1").gpus(1), asking=PLAIN)
    world.api.script("get_node", refused(500))
    assert await world.bound(PLAIN) == "500: scripted"
    assert (world.state(PLAIN), world.queue.active) == (GrantState.RESERVED, 0)


@in_fake_time
async def test_an_unknown_end_keeps_turn_and_lock_and_the_next_try_finds_them() -> None:
    world = ready(node("n1").gpus(1), asking=PLAIN)
    world.api.always("bind", Step(lost_answer(), done=True))
    world.api.always("get_pod", never_sent())
    assert await world.bound(PLAIN) == "no answer within 30 s"
    assert world.queue.active == 1
    world.api.always("bind", None)
    world.api.always("get_pod", None)
    assert world.chosen(PLAIN) == "n1"
    started = seconds()
    assert await world.bound(PLAIN) == ""
    assert seconds() == started
    assert world.agrees()


@in_fake_time
async def test_an_init_container_alone_is_protected_like_any_other() -> None:
    world = ready(node("n1").gpus(1), asking=pod("p").init(gpu=1).container())
    assert await world.bound(pod("p").init(gpu=1).container()) == ""
    assert keys.NODE_LOCK in world.api.nodes["n1"].annotations


@in_fake_time
async def test_a_hundred_downward_api_pods_are_bound_to_one_node_at_once() -> None:
    world = World(agent("n1", cards=10))
    many = [using_downward_api(gpu_pod(f"p{i}", mem=100 + i)) for i in range(100)]
    for asking in many:
        world.create(asking)
        world.chosen(asking)
    world.api.always("bind", Step(delay=1.0))
    assert set(await asyncio.gather(*(world.bound(asking) for asking in many))) == {""}
    assert seconds() == pytest.approx(1.0, abs=0.01)
    assert len(world.api.calls) == 100
    assert world.agrees()


@in_fake_time
async def test_a_hundred_pods_of_mixed_shapes_are_all_handed_over_one_after_the_other() -> None:
    world = World(answering(node("n1").gpus(10)))
    many = [gpu_pod(f"p{i}", mem=100 + i) for i in range(100)]
    for asking in many:
        world.create(asking)
        world.chosen(asking)
    tasks = [asyncio.create_task(world.bound(asking)) for asking in many]
    for asking in many:
        await asyncio.sleep(0.05)
        world.api.mark_pod(f"default/{asking.name}", {keys.BIND_PHASE: keys.PHASE_SUCCESS})
        world.watch()
    assert {await task for task in tasks} == {""}
    assert seconds() <= 5.01
    assert (world.queue.active, world.queue.waiting) == (0, 0)
    assert world.agrees()


# -- the version of the pod


def change(world: World, **annotations: str) -> None:
    """Another client changes the pod."""
    world.api.mark_pod(KEY, annotations)


@in_fake_time
async def test_a_binding_is_for_the_version_that_filter_saw() -> None:
    world = ready()
    seen = world.api.pods[KEY].metadata.resource_version
    assert await world.bound(POD) == ""
    assert world.api.writes[0].version == seen


@in_fake_time
async def test_a_pod_that_another_client_changed_costs_one_read_and_one_write() -> None:
    world = ready()
    change(world, note="x")
    assert await world.bound(POD) == ""
    assert world.api.calls == ["bind", "get_pod", "bind"]
    assert seconds() == 0.0
    assert world.agrees()


@in_fake_time
async def test_a_pod_that_changes_all_the_time_is_given_up_after_some_attempts() -> None:
    world = ready()
    world.api.always("bind", Step(meanwhile=lambda: change(world, note=str(len(world.api.calls)))))
    assert await world.bound(POD) == "409 Conflict: scripted"
    assert world.api.calls.count("bind") == ATTEMPTS
    assert world.cycle_state(POD) is CycleState.RESERVED


@in_fake_time
async def test_a_filter_request_without_a_version_makes_bind_read_the_pod() -> None:
    world = World(agent())
    world.create(POD)
    assert world.asked(filter_body(POD, ["n1"]))["NodeNames"] == ["n1"]
    assert await world.bound(POD) == ""
    assert world.api.calls == ["get_pod", "bind"]
    assert world.agrees()


@in_fake_time
async def test_a_pod_whose_request_changed_after_filter_is_not_given_what_it_asked_for_before() -> None:
    world = ready()
    change(world, **{"nvidia.com/use-gputype": "H100"})
    assert await world.bound(POD) == "pod default/p was changed after it was placed"
    assert (node_of(world), world.cards()) == ("", FREE)
    assert world.agrees()


@in_fake_time
async def test_a_write_that_was_not_answered_cannot_land_once_the_pod_has_another_version() -> None:
    world = ready()
    world.api.script("bind", Step(lost_answer(), meanwhile=lambda: change(world, note="x")), refused(403, "Forbidden"))
    assert await world.bound(POD) == "403 Forbidden: scripted"
    assert world.cycle_state(POD) is CycleState.RESERVED, "the first one cannot land, the second one was refused"


@in_fake_time
async def test_a_replica_that_was_deposed_does_not_write_for_the_version_that_its_successor_left() -> None:
    """Even while the lease looks valid from here: the watch that shows its end may be late."""
    world = ready()
    change(world, **{keys.FENCE: "another-replica"})
    assert await world.bound(POD) == "pod default/p: another replica has taken over"
    assert (node_of(world), world.cards()) == ("", FREE)
    world.restart()
    world.engine.tenure.begin(0, "fence-0")
    assert await world.bound(POD) == "pod default/p: another replica has taken over"
    assert node_of(world) == ""


@in_fake_time
async def test_what_this_replica_fenced_itself_is_written() -> None:
    world = ready()
    change(world, **{keys.FENCE: "fence-0.7"})
    assert await world.bound(POD) == ""
    assert world.agrees()


@in_fake_time
async def test_a_fence_that_filter_has_seen_already_is_no_reason_to_refuse() -> None:
    """Of a manifest that was copied from another pod."""
    copied = POD.annotate((keys.FENCE, "copied"))
    world = ready(asking=copied)
    change(world, note="x")
    assert await world.bound(copied) == ""
    assert world.agrees()


@in_fake_time
async def test_a_pod_with_a_foreign_fence_is_left_alone_by_a_replica_that_no_longer_leads() -> None:
    world = ready()
    world.restart()
    change(world, **{keys.FENCE: "another-replica"})
    world.api.script("get_pod", Step(meanwhile=world.stop_leading))
    await world.bound(POD)
    assert world.api.pods[KEY].annotations[keys.FENCE] == "another-replica"


@in_fake_time
async def test_the_lease_is_judged_at_the_moment_of_the_write() -> None:
    world = ready()
    world.leads = None  # Nothing has told the engine.
    assert await world.bound(POD) == NOT_LEADING
    assert (world.api.calls, node_of(world)) == ([], "")
    world.leads = 0
    assert await world.bound(POD) == ""


@in_fake_time
async def test_a_replica_that_does_not_lead_finds_out_about_its_last_write_without_touching_the_pod() -> None:
    world = ready()
    await unknown(world, done=False)
    world.stop_leading()
    world.api.calls.clear()
    await world.binder.look_up_unconfirmed()
    assert (world.api.calls, world.cycle_state(POD)) == (["get_pod"], CycleState.UNCERTAIN)
    change(world, **{keys.FENCE: "another-replica"})
    await world.binder.look_up_unconfirmed()
    assert world.cards() == FREE
    assert world.agrees()


# -- small things


@in_fake_time
async def test_the_fake_refuses_what_an_apiserver_refuses() -> None:
    api = FakeCluster()
    api.add_pod(POD)
    with pytest.raises(KubeError, match="409"):
        await api.bind("default", "p", uid="another", resource_version="1", node="n1", annotations={}, labels={})
    with pytest.raises(KubeError, match="409"):
        await api.bind("default", "p", uid=uid(POD), resource_version="0", node="n1", annotations={}, labels={})
    await api.bind("default", "p", uid=uid(POD), resource_version="1", node="n1", annotations={GPU: "x"}, labels={})
    with pytest.raises(KubeError, match="409"):
        await api.bind("default", "p", uid=uid(POD), resource_version="2", node="n1", annotations={}, labels={})
    with pytest.raises(KubeError, match="404"):
        await api.annotate_pod("default", "missing", {})
