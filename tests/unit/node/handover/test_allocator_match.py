"""Which pod and container an Allocate call is for, and when none is taken for it."""

from __future__ import annotations

import asyncio

import pytest

from tessera.kube.errors import KubeError
from tessera.node.handover.allocator import CHECKPOINT_S, OVERDUE_S, WATCH_LAG_S
from tessera.node.handover.assignments import TO_ALLOCATE
from tessera.node.handover.checkpoint import Record
from tessera.node.modes.base import AllocationRefused
from tessera.wire.objects import Pod
from tests.support.event_loops import in_fake_time
from tests.support.fake_cluster import Step, refused
from tests.support.handover_node import HandoverNode, bound, claims

A, B = "a/3000/50", "b/4000/60"


@in_fake_time
async def test_different_slices_are_never_guessed_between_and_nobody_is_marked_failed() -> None:
    async with HandoverNode(bound("p", A), bound("q", B)).running() as world:
        with pytest.raises(AllocationRefused, match=r"default/p, default/q"):
            await world.ask("GPU-a-0")
        await world.at_rest()
        assert world.api.fake.writes == []
        assert world.count("allocations", result="ambiguous") == 1


@in_fake_time
async def test_a_pod_that_has_its_devices_is_never_the_one_that_is_meant() -> None:
    done = bound("old", A, phase="success", annotations={TO_ALLOCATE: ";"})
    async with HandoverNode(done, bound("p", B, at=5)).running() as world:
        assert (await world.ask("GPU-b-0"))["pod"] == "p"
        await world.at_rest()
        assert world.api.phase("old") == "success"


@in_fake_time
async def test_pods_that_use_the_downward_api_get_the_same_answer_whatever_they_are() -> None:
    async with HandoverNode(bound("p", A, downward_api=[0]), bound("q", B, downward_api=[0])).running() as world:
        assert await world.gets("q", "c0", "GPU-a-0") == {"welcome": "yes"}
        assert await world.gets("p", "c0", "GPU-a-1") == {"welcome": "yes"}
        await world.at_rest()
        assert world.api.phase("p") == world.api.phase("q") == "success"
        assert (world.api.left("p"), world.api.left("q")) == (";", ";")
        assert world.events == []
        assert world.count("allocations", result="downward_api") == 2


@in_fake_time
async def test_on_a_node_without_the_downward_api_every_pod_depends_on_allocate() -> None:
    async with HandoverNode(bound("p", A, downward_api=[0]), downward_api=False).running() as world:
        assert (await world.ask("GPU-a-0"))["pod"] == "p"


@in_fake_time
async def test_a_pod_that_the_watch_shows_late_is_waited_for() -> None:
    world = HandoverNode()
    world.api.behind = True
    world.api.put(bound("p", A))
    async with world.running():
        asked = asyncio.create_task(world.ask("GPU-a-0"))
        await asyncio.sleep(1)
        world.api.behind = False
        world.api.catch_up()
        assert (await asked)["pod"] == "p"
        assert "list_pods" not in world.api.fake.calls


@pytest.mark.parametrize("is_there", [True, False], ids=["API away", "no pod"])
@in_fake_time
async def test_kubelet_waits_no_longer_than_the_watch_may_be_behind(is_there: bool) -> None:
    async with HandoverNode().running() as world:
        await asyncio.sleep(100)
        if is_there:
            world.api.put(bound("p", A))
            without_reads(world, refused(503))
        async with asyncio.timeout(WATCH_LAG_S + 0.1):
            with pytest.raises(AllocationRefused):
                await world.ask("GPU-a-0")


@in_fake_time
async def test_a_dependent_pod_that_is_not_shown_yet_is_not_taken_for_one_that_uses_the_downward_api() -> None:
    async with HandoverNode(bound("p", A, downward_api=[0]), bound("q", A, downward_api=[0])).running() as world:
        assert await world.ask("GPU-a-0") == {"welcome": "yes"}
        assert await world.ask("GPU-a-1") == {"welcome": "yes"}
        # Both run, so that their turns are over and a dependent pod is bound; the agent has not heard of it.
        world.api.behind = True
        for name in ("p", "q"):
            world.api.status(name, "Running")
        world.api.put(bound("depends", B))
        assert (await world.ask("GPU-b-0"))["pod"] == "depends"


@pytest.mark.parametrize("downward_api", [[], [0]], ids=["dependent", "downward API"])
@pytest.mark.parametrize("end", ["Running", "Failed", "deleted"])
@in_fake_time
async def test_a_pod_whose_turn_is_over_does_not_leave_its_answer_to_the_next(
    end: str, downward_api: list[int]
) -> None:
    async with HandoverNode().running() as world:
        world.api.put(bound("over", A, downward_api=downward_api))
        world.api.behind = True
        world.api.delete("over") if end == "deleted" else world.api.status("over", end)
        world.api.put(bound("next", B))
        assert (await world.ask("GPU-b-0"))["pod"] == "next"


@in_fake_time
async def test_a_pod_that_was_refused_does_not_leave_its_answer_to_the_next() -> None:
    async with HandoverNode().running() as world:
        world.api.put(bound("p", A, downward_api=[0]))
        world.mode.refusals["*"] = "driver missing"
        with pytest.raises(AllocationRefused, match="driver missing"):
            await world.ask("GPU-a-0")
        world.mode.refusals.clear()
        world.api.behind = True
        world.api.status("p", "Failed")
        world.api.put(bound("next", B))
        assert (await world.ask("GPU-a-0"))["pod"] == "next"


@in_fake_time
async def test_a_pod_that_the_scheduler_gave_up_does_not_leave_its_slice_to_the_next() -> None:
    """Also where no pod uses the downward API: a turn that no agent ends ends by itself."""
    async with HandoverNode(downward_api=False).running() as world:
        world.api.put(bound("stuck", A))
        await asyncio.sleep(300)
        world.api.behind = True
        world.api.put(bound("next", B, at=300))
        with pytest.raises(AllocationRefused, match=r"different slices on node n1: default/stuck, default/next"):
            await world.ask("GPU-b-0")


@in_fake_time
async def test_a_stuck_pod_that_uses_the_downward_api_does_not_leave_its_answer_to_the_next() -> None:
    """The scheduler lets a dependent pod pass it in the end."""
    async with HandoverNode().running() as world:
        world.api.put(bound("stuck", A, downward_api=[0]))
        await asyncio.sleep(300)
        world.api.behind = True
        world.api.put(bound("next", B, at=300))
        assert (await world.ask("GPU-b-0"))["pod"] == "next"


@in_fake_time
async def test_a_lock_that_names_a_replaced_pod_does_not_give_its_slice_to_the_new_one() -> None:
    async with HandoverNode().running() as world:
        world.api.put(bound("web-0", A, uid="old"))
        world.api.lock_for("web-0")
        world.api.behind = True
        world.api.delete("web-0")
        world.api.put(bound("web-0", B, uid="new"))
        (own,) = claims(bound("web-0", B, uid="new"))
        assert (await world.ask("GPU-b-0"))["what"] == repr(own.what)


# A pod that kubelet never asked for held the lock until it expired, and both watches are behind.


async def the_lock_passes(world: HandoverNode, *, held: str, to: str) -> None:
    """The first pod may use the downward API; the next one depends on Allocate."""
    world.api.put(bound("stuck", A, downward_api=[0] if held == "downward API" else []))
    world.api.lock_for("stuck")
    await asyncio.sleep(OVERDUE_S)
    world.api.behind = True
    world.api.lock_for(to)
    world.api.put(bound("next", B, at=300))


@pytest.mark.parametrize("held", ["dependent", "downward API"])
@in_fake_time
async def test_a_lock_that_has_passed_to_the_next_pod_does_not_give_it_the_slice_of_the_first(held: str) -> None:
    async with HandoverNode().running() as world:
        await the_lock_passes(world, held=held, to="next")
        assert (await world.ask("GPU-b-0"))["pod"] == "next"
        world.api.behind = False
        world.api.catch_up()
        await world.at_rest()
        assert (world.api.phase("stuck"), world.api.phase("next")) == ("allocating", "success")
        assert world.api.lock_text is None


@in_fake_time
async def test_a_lock_that_has_passed_to_the_next_pod_does_not_give_it_the_answer_of_one_that_needs_no_lock() -> None:
    async with HandoverNode().running() as world:
        world.api.put(bound("stuck", f"{A} {B}"))
        world.api.lock_for("stuck")
        await asyncio.sleep(OVERDUE_S)
        world.api.put(bound("unlocked", A, downward_api=[0]))
        world.api.behind = True
        world.api.lock_for("next")
        world.api.put(bound("next", B, at=300))
        assert (await world.ask("GPU-b-0"))["pod"] == "next"


@pytest.mark.parametrize("delay", [0, 60], ids=["refused", "hangs"])
@in_fake_time
async def test_an_old_lock_that_cannot_be_read_gives_no_pod_a_slice(delay: int) -> None:
    async with HandoverNode().running() as world:
        await the_lock_passes(world, held="dependent", to="next")
        world.api.fake.always("get_node", Step(delay=delay) if delay else refused(503))
        async with asyncio.timeout(10):
            with pytest.raises(AllocationRefused, match="lock of node n1 cannot be read"):
                await world.ask("GPU-b-0")
        assert world.count("allocations", result="refused") == 1


@in_fake_time
async def test_without_a_lock_the_node_is_not_read() -> None:
    async with HandoverNode(bound("p", A), inherited=True).running() as world:
        world.api.fake.always("get_node", refused(503))
        assert (await world.ask("GPU-a-0"))["pod"] == "p"


@in_fake_time
async def test_a_pod_that_has_held_the_lock_for_long_and_still_does_gets_its_slice() -> None:
    async with HandoverNode(bound("p", A), lock="p").running() as world:
        await asyncio.sleep(200)
        assert (await world.ask("GPU-a-0"))["pod"] == "p"
        assert (world.api.phase("p"), world.api.lock_text) == ("success", None)


def without_reads(world: HandoverNode, fault: KubeError | None) -> None:
    for verb in ("get_pod", "list_pods"):
        world.api.fake.always(verb, fault)


@in_fake_time
async def test_without_the_api_no_slice_is_answered_because_the_pod_may_be_gone() -> None:
    async with HandoverNode().running() as world:
        world.api.put(bound("gone", A))
        world.api.behind = True
        world.api.delete("gone")
        world.api.put(bound("next", B))
        without_reads(world, refused(503))
        with pytest.raises(AllocationRefused, match="API cannot be asked whether default/gone still waits"):
            await world.ask("GPU-b-0")
        assert world.count("allocations", result="refused") == 1
        without_reads(world, None)
        assert (await world.ask("GPU-b-0"))["pod"] == "next"


@in_fake_time
async def test_an_api_that_is_away_for_a_moment_refuses_no_pod() -> None:
    async with HandoverNode().running() as world:
        world.api.put(bound("p", A))
        without_reads(world, refused(503))
        asked = asyncio.create_task(world.ask("GPU-a-0"))
        await asyncio.sleep(1)
        without_reads(world, None)
        assert (await asked)["pod"] == "p"


@in_fake_time
async def test_without_the_api_pods_that_use_the_downward_api_are_still_answered() -> None:
    async with HandoverNode(bound("d", A, downward_api=[0])).running() as world:
        without_reads(world, refused(503))
        assert await world.ask("GPU-a-0") == {"welcome": "yes"}
        with pytest.raises(AllocationRefused, match="no binding pod"):
            await world.ask("GPU-a-1", "GPU-a-2")


@pytest.mark.parametrize(
    ("downward_api", "answer"), [([], ("pod", "p")), ([0], ("welcome", "yes"))], ids=["dependent", "downward API"]
)
@in_fake_time
async def test_a_pod_that_was_just_bound_is_answered_without_a_list_of_all_pods(
    downward_api: list[int], answer: tuple[str, str]
) -> None:
    async with HandoverNode(bound("p", A, downward_api=downward_api)).running() as world:
        assert answer in (await world.ask("GPU-a-0")).items()
        assert "list_pods" not in world.api.fake.calls


@in_fake_time
async def test_a_fault_in_one_call_ends_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    world = HandoverNode(bound("p", A), inherited=True)

    async def fail(_node: str) -> list[Pod]:
        raise ValueError("not to be read")

    async with world.running():
        with monkeypatch.context() as patch:
            patch.setattr(world.api, "list_pods", fail)
            with pytest.raises(AllocationRefused, match="ValueError: not to be read"):
                await world.ask("GPU-a-0")
        assert (await world.ask("GPU-a-0"))["pod"] == "p"


@in_fake_time
async def test_a_disk_that_hangs_keeps_no_answer_back(monkeypatch: pytest.MonkeyPatch) -> None:
    world = HandoverNode(bound("p", A))

    async def hang(_record: Record) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(world.checkpoint, "add", hang)
    async with world.running():
        async with asyncio.timeout(10):
            assert (await world.ask("GPU-a-0"))["pod"] == "p"


@in_fake_time
async def test_an_answer_waits_until_a_later_process_would_know_it(monkeypatch: pytest.MonkeyPatch) -> None:
    world = HandoverNode(bound("p", A))
    may_write = asyncio.Event()

    async def add(_record: Record) -> None:
        await may_write.wait()

    monkeypatch.setattr(world.checkpoint, "add", add)
    async with world.running():
        asked = asyncio.create_task(world.ask("GPU-a-0"))
        await asyncio.sleep(CHECKPOINT_S / 2)
        assert not asked.done()
        may_write.set()
        assert (await asked)["pod"] == "p"


@in_fake_time
async def test_a_call_before_the_pods_are_known_is_refused_in_the_end() -> None:
    world = HandoverNode(bound("p", A))
    world.agent.pods.ready.clear()
    async with world.running():
        with pytest.raises(AllocationRefused, match="not known yet"):
            await world.ask("GPU-a-0")
        assert world.count("allocations", result="refused") == 1
