from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tessera.core.ledger.holders import GrantState
from tessera.kube.errors import AccessError, KubeError
from tessera.scheduler.pod_cycle import CycleState
from tessera.scheduler.settings import NodeLockMode
from tessera.scheduler.versioned_write import ATTEMPTS, PAUSES
from tessera.wire import keys
from tests.support.binding import FREE, HELD, KEY, POD, agent, node_of, ready, seconds
from tests.support.builders import ALLOCATED, NOW, gpu_pod, node, pod
from tests.support.event_loops import in_fake_time
from tests.support.fake_cluster import Step, lost_answer, never_sent, refused
from tests.support.stepwise_scheduler import (
    RESERVATION,
    World,
    serving_downward_api,
    using_downward_api,
)

SAMPLES = Path(__file__).parents[2] / "samples" / "extender"

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
@in_fake_time
async def test_a_body_that_cannot_be_read_is_an_error_in_the_answer(body: bytes, error: str) -> None:
    world = ready()
    assert json.loads(await world.binder.answer(body))["Error"].startswith(error)
    assert world.api.calls == []


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
@in_fake_time
async def test_a_pod_that_is_bound_already_is_left_alone(there: str, error: str) -> None:
    world = ready(agent("n1"), agent("n2"))
    world.api.add_pod(POD.on(there, f"{there}-0,NVIDIA,1000,10:;"))
    world.restart()
    before = world.ledger.state()
    assert await world.bound(POD) == error
    assert (world.ledger.state(), world.api.writes) == (before, [])


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (refused(503), "pod default/p cannot be read: 503: scripted"),
        (never_sent(), "pod default/p cannot be read: connection refused"),
    ],
)
@in_fake_time
async def test_a_pod_that_cannot_be_read_after_a_restart_is_not_bound(fault: KubeError, error: str) -> None:
    world = ready()
    world.restart()
    world.api.script("get_pod", fault)
    assert await world.bound(POD) == error
    assert (node_of(world), world.cards()) == ("", FREE)


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
async def test_a_pod_that_is_being_deleted_frees_its_card_at_once() -> None:
    world = ready()
    world.api.add_pod(POD.terminating())
    assert await world.bound(POD) == "409 Conflict: scripted"
    assert (world.api.calls, world.cards()) == (["bind", "get_pod"], FREE)
    assert world.agrees()


@pytest.mark.parametrize("is_node_gone", [True, False])
@in_fake_time
async def test_a_node_or_a_card_that_is_gone_is_not_given_to_a_pod(is_node_gone: bool) -> None:
    world = ready()
    if is_node_gone:
        world.api.delete_node("n1")
    else:
        world.api.add_node(serving_downward_api(node("n1").gpu("another-card")))
    world.watch()
    assert await world.bound(POD) == "node n1 lost its devices"
    assert (world.api.writes, world.state(POD)) == ([], None)
    assert world.agrees()


@pytest.mark.parametrize("mode", list(NodeLockMode))
@in_fake_time
async def test_a_vendor_that_left_the_configuration_ends_the_reservation_of_its_pods(mode: NodeLockMode) -> None:
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


@in_fake_time
async def test_a_reservation_that_expired_is_placed_again() -> None:
    world = ready()
    await asyncio.sleep(RESERVATION)
    world.cycles.tick()
    assert await world.bound(POD) == ""
    assert world.agrees()


# -- answers that are no


@pytest.mark.parametrize(("there", "error"), [("n1", ""), ("n2", "pod is bound to n2 already")])
@in_fake_time
async def test_a_pod_that_another_client_binds_meanwhile_is_bound_there(there: str, error: str) -> None:
    world = ready(agent("n1"), agent("n2"))
    elsewhere = POD.on(there, f"{there}-0,NVIDIA,1000,10:;")
    world.api.script("bind", Step(meanwhile=lambda: world.api.add_pod(elsewhere)))
    assert await world.bound(POD) == error
    assert world.agrees()
    assert world.cards("n1") == (FREE if error else HELD)


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
@in_fake_time
async def test_a_refusal_for_now_is_tried_again_after_a_pause(status: int) -> None:
    world = ready()
    world.api.script("bind", *[refused(status)] * (ATTEMPTS - 1))
    assert await world.bound(POD) == ""
    assert world.api.calls == ["bind"] * ATTEMPTS
    assert 0 < seconds() < PAUSES.cap * ATTEMPTS
    assert world.agrees()


@pytest.mark.parametrize(("jitter", "total"), [(min, 3 * PAUSES.floor), (max, 0.4 + 0.8 + 1.6)], ids=["none", "full"])
@pytest.mark.parametrize("verb", ["bind", "get_pod"])
@in_fake_time
async def test_each_pause_is_up_to_twice_as_long_as_the_one_before(
    monkeypatch: pytest.MonkeyPatch, verb: str, jitter: Callable[[float, float], float], total: float
) -> None:
    """`jitter` chooses between the shortest and the longest pause."""

    world = ready()
    monkeypatch.setattr("random.uniform", jitter)
    if verb == "get_pod":
        world.api.script("bind", Step(lost_answer(), done=True))
    world.api.script(verb, *[refused(429)] * (ATTEMPTS - 1))
    assert await world.bound(POD) == ""
    assert seconds() == pytest.approx(total)


@in_fake_time
async def test_a_server_that_asks_for_patience_gets_it_within_reason() -> None:
    world = ready()
    world.api.script("bind", refused(429, retry_after=2.0), refused(429, retry_after=1000.0))
    assert await world.bound(POD) == ""
    assert seconds() == pytest.approx(2.0 + PAUSES.cap)


@in_fake_time
async def test_a_look_up_that_is_refused_for_now_keeps_the_bind_as_short() -> None:
    world = ready()
    world.api.script("bind", Step(lost_answer(), done=True))
    world.api.script("get_pod", refused(429, retry_after=1000.0))
    assert await world.bound(POD) == ""
    assert seconds() == pytest.approx(PAUSES.cap)


@pytest.mark.parametrize(("status", "looks"), [(429, 0), (500, 1), (504, 1)])
@in_fake_time
async def test_a_bind_that_is_refused_to_the_end_becomes_a_reservation_that_ends(status: int, looks: int) -> None:
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


@pytest.mark.parametrize("earlier", [0, ATTEMPTS - 1], ids=["the next attempt", "the last attempt"])
@in_fake_time
async def test_a_server_error_after_the_effect_is_found_by_a_later_look(earlier: int) -> None:
    world = ready()
    world.api.script("bind", *[refused(504)] * earlier, Step(refused(504), done=True))
    assert await world.bound(POD) == ""
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
    assert world.cycles.checked_out == 1
    assert await world.bound(POD) == "pod default/p is being bound already"
    assert await first == ""
    assert (world.cycles.checked_out, world.api.calls) == (0, ["bind"])
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
    assert (world.state(POD), world.cards(), world.cycles.checked_out) == (GrantState.RESERVED, HELD, 0)
    assert world.cycle_state(POD) is CycleState.UNCERTAIN


@in_fake_time
async def test_a_bug_during_the_write_is_not_hidden_and_frees_nothing() -> None:
    world = ready()
    world.api.script("bind", Step(meanwhile=lambda: 1 / 0))
    with pytest.raises(ZeroDivisionError):
        await world.bound(POD)
    assert (world.state(POD), world.cycles.checked_out) == (GrantState.RESERVED, 0)
