"""More Allocates for a pod than it has containers, all at once: each slice is handed out once, or the call is refused.

kubelet waits for an answer before it asks for the next container of the same pod. Calls that come before the answer
cannot be told apart, so only the first of them is answered."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from tessera.node.modes.base import AllocationRefused
from tests.support.event_loops import in_fake_time
from tests.unit.node.handover.world import HandoverNode, bound

A, B, C = "a/1000/10", "b/2000/20", "c/3000/30"
AT_ONCE = 8


async def ask_at_once(world: HandoverNode, ids: Sequence[str]) -> list[str]:
    """The containers whose slices were answered, in order of the calls that got them."""
    found = await asyncio.gather(*(world.ask(each) for each in ids), return_exceptions=True)
    refused = [each for each in found if isinstance(each, BaseException)]
    assert all(isinstance(each, AllocationRefused) for each in refused), refused
    return [f"{each['pod']}/{each['container']}" for each in found if not isinstance(each, BaseException)]


@pytest.mark.parametrize("speaks", [True, False], ids=["kubelet says", "kubelet silent"])
@pytest.mark.parametrize("ids", [[f"GPU-a-{n}" for n in range(AT_ONCE)], ["GPU-a-0"] * AT_ONCE], ids=["other", "same"])
@pytest.mark.parametrize("inits", [0, 1])
@pytest.mark.parametrize("containers", [[A], [A, B, C], [A, A, A]], ids=["one", "three", "equal"])
def test_of_eight_calls_for_one_pod_the_first_is_answered(
    containers: list[str], inits: int, ids: list[str], speaks: bool
) -> None:
    @in_fake_time
    async def check() -> None:
        pod = bound("p", *containers, inits=min(inits, len(containers) - 1))
        async with HandoverNode(pod, resources=speaks).running() as world:
            assert await ask_at_once(world, ids) == ["p/c0"]
            # What kubelet asks afterwards, one call after the other, is answered as always.
            world.resources.holds("p", "c0", ids[0])
            for at in range(1, len(containers)):
                assert (await world.ask(f"GPU-x-{at}"))["container"] == f"c{at}"
            with pytest.raises(AllocationRefused, match="no binding pod"):
                await world.ask("GPU-y-0")

    check()


@pytest.mark.parametrize("speaks", [True, False], ids=["kubelet says", "kubelet silent"])
def test_an_answer_is_not_given_again_while_no_program_has_restarted(speaks: bool) -> None:
    @in_fake_time
    async def check() -> None:
        async with HandoverNode(bound("p", A), resources=speaks).running() as world:
            assert (await world.ask("GPU-a-0"))["pod"] == "p"
            for number in range(1, 4):
                with pytest.raises(AllocationRefused, match="no binding pod"):
                    await world.ask(f"GPU-a-{number}")

    check()


@pytest.mark.parametrize("speaks", [True, False], ids=["kubelet says", "kubelet silent"])
def test_two_pods_of_equal_slices_get_one_answer_each(speaks: bool) -> None:
    @in_fake_time
    async def check() -> None:
        async with HandoverNode(bound("p", A), bound("q", A, at=1), resources=speaks).running() as world:
            assert len(await ask_at_once(world, [f"GPU-a-{n}" for n in range(AT_ONCE)])) == 2

    check()


@in_fake_time
async def test_the_devices_of_a_container_are_not_asked_for_by_another_one_of_its_pod() -> None:
    async with HandoverNode(bound("p", A, B), resources=False).running() as world:
        assert (await world.ask("GPU-a-0"))["container"] == "c0"
        with pytest.raises(AllocationRefused, match="no binding pod"):
            await world.ask("GPU-a-0")
        assert (await world.ask("GPU-a-1"))["container"] == "c1"
