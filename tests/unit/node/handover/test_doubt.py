"""Several pods could be asking: each dependent one gets its own slice, or its Allocate is refused with the reason.

The scheduler keeps pods apart; what is here happens where it may not: it lets pods that use the downward API pass a
dependent pod that is stuck, and it forgets a turn that no agent ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from tessera.node.handover.allocator import OVERDUE_S
from tessera.node.modes.base import AllocationRefused
from tessera.wire.objects import Pod
from tests.support.event_loops import in_fake_time
from tests.support.handover_node import HandoverNode, bound

A, B, C = "a/3000/50", "b/4000/60", "b/1000/10"

AT_ONCE = 8


def passing(*containers: str, inits: int = 0) -> Pod:
    """A pod that uses the downward API."""
    return bound("d", *containers, inits=inits, downward_api=range(len(containers)), at=1)


# -- a stuck dependent pod that others have passed


@pytest.mark.parametrize("speaks", [True, False], ids=["kubelet says", "kubelet silent"])
@pytest.mark.parametrize("first", ["d", "p"])
@in_fake_time
async def test_a_dependent_pod_of_one_container_and_one_that_passed_it_are_both_served(
    first: str, speaks: bool
) -> None:
    async with HandoverNode(bound("p", A), passing(B), resources=speaks).running() as world:
        second = "p" if first == "d" else "d"
        assert (await world.gets(first, "c0", "GPU-a-0"))["pod"] == "p"
        answer = await world.gets(second, "c0", "GPU-a-1")
        assert answer.get("pod") == "p" or (second == "d" and answer == {"welcome": "yes"})
        for name in ("p", "d"):
            world.api.status(name, "Running")
        await world.at_rest()
        assert world.api.phase("p") == world.api.phase("d") == "success"
        assert (world.events, world.mode.doubts[0]) == ([], "p")
        assert world.count("allocations", result="uncertain") >= 1


@in_fake_time
async def test_both_end_through_a_kubelet_that_says_only_later_which_of_them_got_which_answer() -> None:
    async with HandoverNode().running() as world:
        world.api.put(bound("p", A), passing(B))
        world.resources.error = OSError("no such socket")
        await world.gets("d", "c0", "GPU-a-0")
        await world.gets("p", "c0", "GPU-a-1")
        world.resources.error = None
        await world.at_rest()
        assert (world.api.phase("p"), world.api.phase("d"), world.events) == ("success", "success", [])


@in_fake_time
async def test_kubelet_shows_which_container_of_a_dependent_pod_comes_next() -> None:
    async with HandoverNode(bound("p", A, B), passing(C)).running() as world:
        assert (await world.gets("d", "c0", "GPU-a-0"))["container"] == "c0"
        assert (await world.gets("p", "c0", "GPU-a-1"))["container"] == "c0"
        assert (await world.gets("p", "c1", "GPU-b-0"))["container"] == "c1"
        await world.at_rest()
        assert (world.api.phase("p"), world.api.phase("d"), world.events) == ("success", "success", [])


@in_fake_time
async def test_if_kubelet_does_not_show_it_the_second_container_is_refused() -> None:
    async with HandoverNode(bound("p", A, B), passing(C), resources=False).running() as world:
        await world.ask("GPU-a-0")
        with pytest.raises(AllocationRefused, match=r"1 devices could be .* different slices on node n1: default/p$"):
            await world.ask("GPU-b-1")
        await world.at_rest()
        assert world.api.phase("p") == "allocating"


@in_fake_time
async def test_an_answer_of_the_same_call_is_not_taken_for_lost() -> None:
    async with HandoverNode(bound("p", A, B), passing(C)).running() as world:
        with pytest.raises(AllocationRefused, match="different slices"):
            await world.agent.allocator.allocate([["GPU-a-0"], ["GPU-b-1"]])


@pytest.mark.parametrize("first", ["d", "p"])
@in_fake_time
async def test_devices_that_come_again_show_what_follows_an_init_container(first: str) -> None:
    """kubelet shows neither init container; but it gives their devices to the next containers of the same pod."""
    async with HandoverNode(bound("p", A, B, inits=1), passing(C, C, inits=1)).running() as world:
        second = "p" if first == "d" else "d"
        got = {}
        for name in (first, second):
            got[name, 0] = await world.ask(f"i-{name}")
            got[name, 1] = await world.gets(name, "c1", f"i-{name}")
        assert (got["p", 0]["container"], got["p", 1]["container"]) == ("c0", "c1")
        await world.at_rest()
        assert (world.api.phase("p"), world.events) == ("success", [])


@in_fake_time
async def test_devices_that_an_init_container_of_another_pod_has_given_on_are_not_expected_again() -> None:
    """Otherwise the last container would have to come with devices that went to pod `d`, and would get no slice."""
    shape = (A, f"{A} {B}", A)
    waiting = bound("e", *shape, inits=1, downward_api=range(3), at=2)
    async with HandoverNode(bound("p", *shape, inits=1), passing(*shape, inits=1), waiting).running() as world:
        for name in ("d", "p"):
            await world.ask(f"i-{name}")
            await world.gets(name, "c1", f"i-{name}", f"n-{name}")
            answer = await world.gets(name, "c2", f"m-{name}")
            world.api.status("d", "Running")
        assert answer["container"] == "c2"
        await world.at_rest()
        assert (world.api.phase("p"), world.events) == ("success", [])


@in_fake_time
async def test_devices_that_the_init_container_of_a_failed_pod_left_do_not_stand_for_the_next_container() -> None:
    """kubelet asks for no preference where a NUMA node has just as many devices as it needs."""
    async with HandoverNode(
        bound("p", f"{A} {B}", f"{A} {C}", inits=1), passing(f"{A} {B}", B, inits=1)
    ).running() as world:
        await world.ask("i", "j")
        world.api.status("d", "Failed")
        with pytest.raises(AllocationRefused, match="different slices"):
            await world.ask("i", "k")


@in_fake_time
async def test_a_pod_that_passed_unseen_takes_nothing_from_the_dependent_one() -> None:
    async with HandoverNode().running() as world:
        world.api.put(bound("p", A, B))
        await asyncio.sleep(OVERDUE_S)
        world.api.behind = True
        world.api.put(passing(C))
        await world.gets("d", "c0", "GPU-b-0")
        for position in (0, 1):
            assert (await world.gets("p", f"c{position}", f"GPU-a-{position}"))["container"] == f"c{position}"


@in_fake_time
async def test_a_pod_that_passed_and_is_gone_takes_nothing_from_the_dependent_one() -> None:
    async with HandoverNode(bound("p", A, B, inits=1), passing(C)).running() as world:
        await world.ask("GPU-a-0")
        world.api.delete("d")
        world.prefer("GPU-a-1", "GPU-a-2")
        assert (await world.ask("GPU-a-1"))["container"] == "c0"
        assert (await world.ask("GPU-a-1"))["container"] == "c1"


@in_fake_time
async def test_a_refusal_where_another_pod_may_be_asking_fails_none() -> None:
    async with HandoverNode(bound("p", A), passing(B)).running() as world:
        world.mode.refusals["p"] = "no such card"
        with pytest.raises(AllocationRefused, match="no such card"):
            await world.ask("GPU-a-0")
        await world.at_rest()
        assert world.api.phase("p") == "allocating"
        world.mode.refusals.clear()
        assert (await world.ask("GPU-a-0"))["pod"] == "p"


# -- dependent pods that the scheduler should have kept apart


@pytest.mark.parametrize("speaks", [True, False], ids=["kubelet says", "kubelet silent"])
@in_fake_time
async def test_dependent_pods_of_equal_slices_share_no_folder_and_end_on_their_own(speaks: bool) -> None:
    async with HandoverNode(bound("p", A), bound("q", A, at=1), resources=speaks).running() as world:
        first, second = await world.gets("q", "c0", "GPU-a-0"), await world.gets("p", "c0", "GPU-a-1")
        assert first["what"] == second["what"]
        world.api.status("q", "Running")
        await world.at_rest()
        assert world.api.phase("q") == "success"
        # The folder of an answer that either may have got belongs to neither: it goes with the devices.
        assert world.mode.doubts[0] == "p"
        world.api.status("p", "Running")
        await world.at_rest()
        assert (world.api.phase("p"), world.events) == ("success", [])


@in_fake_time
async def test_a_handover_does_not_end_because_an_equal_pod_asked() -> None:
    async with HandoverNode(bound("p", A), bound("q", A, at=1)).running() as world:
        await world.gets("q", "c0", "GPU-a-0")
        await world.at_rest()
        assert (world.api.phase("p"), world.api.phase("q")) == ("allocating", "success")
        assert (await world.gets("p", "c0", "GPU-a-1"))["pod"] == "p"


@in_fake_time
async def test_once_the_other_pod_is_known_to_be_over_the_remaining_one_is_served() -> None:
    async with HandoverNode(bound("p", A), bound("q", B)).running() as world:
        with pytest.raises(AllocationRefused, match=r"default/p, default/q"):
            await world.ask("GPU-a-0")
        world.api.behind = True
        world.api.status("p", "Failed")
        assert (await world.ask("GPU-b-0"))["pod"] == "q"


# -- more Allocates for a pod than it has containers, all at once: each slice is handed out once, or the call is refused


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
@in_fake_time
async def test_of_eight_calls_for_one_pod_the_first_is_answered(
    containers: list[str], inits: int, ids: list[str], speaks: bool
) -> None:
    pod = bound("p", *containers, inits=min(inits, len(containers) - 1))
    async with HandoverNode(pod, resources=speaks).running() as world:
        assert await ask_at_once(world, ids) == ["p/c0"]
        # What kubelet asks afterwards, one call after the other, is answered as always.
        world.resources.holds("p", "c0", ids[0])
        for at in range(1, len(containers)):
            assert (await world.ask(f"GPU-x-{at}"))["container"] == f"c{at}"
        with pytest.raises(AllocationRefused, match="no binding pod"):
            await world.ask("GPU-y-0")


@pytest.mark.parametrize("speaks", [True, False], ids=["kubelet says", "kubelet silent"])
@in_fake_time
async def test_an_answer_is_not_given_again_while_no_program_has_restarted(speaks: bool) -> None:
    async with HandoverNode(bound("p", A), resources=speaks).running() as world:
        assert (await world.ask("GPU-a-0"))["pod"] == "p"
        for number in range(1, 4):
            with pytest.raises(AllocationRefused, match="no binding pod"):
                await world.ask(f"GPU-a-{number}")


@pytest.mark.parametrize("speaks", [True, False], ids=["kubelet says", "kubelet silent"])
@in_fake_time
async def test_two_pods_of_equal_slices_get_one_answer_each(speaks: bool) -> None:
    async with HandoverNode(bound("p", A), bound("q", A, at=1), resources=speaks).running() as world:
        assert len(await ask_at_once(world, [f"GPU-a-{n}" for n in range(AT_ONCE)])) == 2


@in_fake_time
async def test_the_devices_of_a_container_are_not_asked_for_by_another_one_of_its_pod() -> None:
    async with HandoverNode(bound("p", A, B), resources=False).running() as world:
        assert (await world.ask("GPU-a-0"))["container"] == "c0"
        with pytest.raises(AllocationRefused, match="no binding pod"):
            await world.ask("GPU-a-0")
        assert (await world.ask("GPU-a-1"))["container"] == "c1"
