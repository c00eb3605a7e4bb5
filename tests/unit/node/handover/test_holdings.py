"""What containers of the node's pods hold, whatever the API shows of it, and what is handed out beside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from tessera.node.handover.assignments import ALLOCATED, Holding
from tessera.node.modes.base import AllocationRefused
from tessera.wire import keys
from tests.support.event_loops import in_fake_time
from tests.support.handover_node import HandoverNode, bound

A, B = "a/1000/10", "b/2000/20"


def held(world: HandoverNode) -> dict[str, list[int]]:
    """The positions that hold something, by pod."""
    found = world.agent.holdings.all()
    return {each.key.name: [claim.position for claim in each.assignments] for each in found if each.assignments}


def unknown(world: HandoverNode) -> list[str]:
    return [each.key.name for each in world.agent.holdings.all() if each.problem]


@in_fake_time
async def test_a_container_holds_its_slice_from_the_answer_to_the_end_of_its_pod() -> None:
    async with HandoverNode(bound("p", A, B)).running() as world:
        assert held(world) == {}
        await world.gets("p", "c0", "i")
        assert held(world) == {"p": [0]}
        await world.gets("p", "c1", "j")
        await world.at_rest()
        world.api.status("p", "Running")
        await world.at_rest()
        assert held(world) == {"p": [0, 1]}
        world.api.status("p", "Succeeded")
        assert held(world) == {}


@in_fake_time
async def test_what_a_started_pod_holds_follows_its_annotations_and_its_records() -> None:
    async with HandoverNode(bound("p", A, status="Running")).running() as world:

        def memory() -> list[int]:
            return [part.memory for each in world.agent.holdings.all() for c in each.assignments for part in c.slices]

        assert memory() == memory() == [1000]
        world.api.put(bound("p", B, status="Running"))
        assert memory() == [2000]
    async with HandoverNode(bound("p", A)).running() as world:
        await world.gets("p", "c0", "i")
        world.api.put(bound("p", B, status="Running"))
        assert memory() == [1000]
        for record in list(world.checkpoint):
            world.checkpoint.discard(record)
        assert memory() == [2000]


@in_fake_time
async def test_what_was_refused_is_not_held() -> None:
    async with HandoverNode(bound("p", A)).running() as world:
        world.mode.refusals["p"] = "no"
        with pytest.raises(AllocationRefused, match="no"):
            await world.ask("i")
        assert held(world) == {}
        assert list(world.checkpoint) == []


@in_fake_time
async def test_any_pod_that_uses_the_downward_api_may_have_been_answered() -> None:
    async with HandoverNode(bound("p", A, downward_api=[0]), bound("q", B, downward_api=[0])).running() as world:
        assert held(world) == {"p": [0], "q": [0]}


@in_fake_time
async def test_a_pod_of_an_earlier_process_counts_with_its_record_or_with_all_that_it_may_have() -> None:
    async with HandoverNode(bound("p", A, B)).running() as world:
        await world.gets("p", "c0", "i")
    again = HandoverNode(earlier=list(world.checkpoint), api=world.api, kubelet=world.resources)
    async with again.running():
        await again.at_rest(1)
        assert held(again) == {"p": [0]}
    async with HandoverNode(api=again.api, kubelet=again.resources).running() as without_record:
        assert held(without_record) == {"p": [0, 1]}


@pytest.mark.parametrize("restarts", [False, True], ids=["seen", "while no agent was there"])
@pytest.mark.parametrize("downward_api", [[], [0]], ids=["depends on Allocate", "downward API"])
@in_fake_time
async def test_a_pod_that_is_gone_from_the_api_counts_until_kubelet_does_not_list_it(
    downward_api: list[int], restarts: bool
) -> None:
    async with HandoverNode(bound("p", A, downward_api=downward_api)).running() as world:
        await world.gets("p", "c0", "i")
        if not restarts:
            world.api.delete("p")
    if restarts:
        world.api.delete("p")
        world = HandoverNode(earlier=list(world.checkpoint), api=world.api, kubelet=world.resources)
    async with world.running():
        await world.at_rest()
        assert held(world) == {"p": [0]}
        assert not await world.agent.holdings.refresh()
        world.resources.held.clear()
        assert await world.agent.holdings.refresh()
        assert held(world) == {}


def silent(world: HandoverNode) -> None:
    world.resources.error = OSError("no")


def replaced(world: HandoverNode) -> None:
    world.api.put(bound("p", B, uid="another", status="Running"))


@pytest.mark.parametrize("happens", [silent, replaced])
@in_fake_time
async def test_a_pod_that_is_gone_from_the_api_does_not_count_for_ever(happens: Callable[[HandoverNode], None]) -> None:
    async with HandoverNode(bound("p", A)).running() as world:
        await world.gets("p", "c0", "i")
        world.api.delete("p")
        happens(world)
        await world.agent.holdings.refresh()
        assert "uid-p" not in {each.key.uid for each in world.agent.holdings.all()}


@in_fake_time
async def test_a_pod_that_ended_before_it_was_deleted_is_gone() -> None:
    async with HandoverNode(bound("p", A)).running() as world:
        await world.gets("p", "c0", "i")
        world.api.status("p", "Failed")
        world.api.delete("p")
        assert held(world) == {}


@in_fake_time
async def test_without_kubelets_list_a_pod_is_gone_when_the_api_says_so() -> None:
    async with HandoverNode(bound("p", A), resources=False).running() as world:
        await world.ask("i")
        world.api.delete("p")
        assert held(world) == {}


@in_fake_time
async def test_it_is_unknown_what_an_unreadable_pod_holds_unless_it_can_be_nothing() -> None:
    unreadable = {ALLOCATED: "x,NVIDIA,x,1:;", "hami.io/vgpu-devices-to-allocate": "x,NVIDIA,x,1:;"}
    waiting = bound("waiting", A, annotations=unreadable)
    running = bound("running", A, annotations=unreadable, status="Running", phase=keys.PHASE_SUCCESS)
    async with HandoverNode(waiting, running).running() as world:
        assert unknown(world) == ["running"]
        world.resources.holds("running", "c0", "i")
        assert not await world.agent.holdings.refresh()
        assert unknown(world) == ["running"]
        world.resources.held.clear()
        assert await world.agent.holdings.refresh()
        assert unknown(world) == []
        world.resources.error = OSError("no")
        assert unknown(world) == []


class Full:
    """An account with no room."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []

    async def admit(self, askers: Sequence[Holding], begin: Callable[[], None]) -> None:
        self.asked.append([f"{each.key.name}/{claim.container}" for each in askers for claim in each.assignments])
        raise AllocationRefused("it does not fit")


@pytest.mark.parametrize(
    ("downward_api", "phase"), [([], "failed"), ([0], "allocating")], ids=["depends on Allocate", "downward API"]
)
@in_fake_time
async def test_a_pod_that_does_not_fit_is_refused_and_gets_nothing(downward_api: list[int], phase: str) -> None:
    async with HandoverNode(bound("p", A, downward_api=downward_api)).running() as world:
        account = world.agent.allocator.admission = Full()
        with pytest.raises(AllocationRefused, match="it does not fit"):
            await world.ask("i")
        await world.at_rest()
        assert account.asked == [["p/c0"]]
        assert world.api.phase("p") == phase
        assert world.count("allocations", result="refused") == 1
        assert list(world.checkpoint) == []


@in_fake_time
async def test_a_slice_that_several_containers_can_be_meant_by_must_fit_for_each() -> None:
    async with HandoverNode(bound("p", A), bound("q", A, at=1)).running() as world:
        account = world.agent.allocator.admission = Full()
        with pytest.raises(AllocationRefused, match="it does not fit"):
            await world.ask("i")
        assert account.asked == [["p/c0", "q/c0"]]
        assert {world.api.phase(name) for name in ("p", "q")} == {"allocating"}
