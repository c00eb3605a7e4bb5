"""Allocate without a lock, the order of kubelet's calls, and which cards kubelet is steered to."""

from __future__ import annotations

import asyncio

import pytest

from tessera.node.handover.allocator import MAX_CALLS
from tessera.node.handover.assignments import TO_ALLOCATE
from tessera.node.modes.base import AllocationRefused
from tests.support.event_loops import in_fake_time
from tests.support.fake_cluster import Step, refused
from tests.unit.node.handover.world import HandoverNode, bound, entry

A, B = "a/3000/50", "b/4000/60"
AMD = "hami.io/amd-devices-to-allocate"


# -- without a lock


@in_fake_time
async def test_an_answer_waits_for_no_api_call_and_is_written_behind() -> None:
    world = HandoverNode(bound("p", A, B))
    world.api.fake.always("annotate_pod", Step(delay=5))
    async with world.running():
        await world.ask("GPU-a-0")
        await world.ask("GPU-b-0")
        assert world.count("allocations", result="handed_over") == 2
        assert world.api.left("p") == entry(A) + entry(B)
        await world.at_rest()
        assert (world.api.left("p"), world.api.phase("p")) == (";;", "success")


@in_fake_time
async def test_writing_is_repeated_until_the_api_takes_it() -> None:
    world = HandoverNode(bound("p", A))
    world.api.fake.script("annotate_pod", *[refused(503)] * 4)
    async with world.running():
        assert await world.ask("GPU-a-0")
        await world.at_rest(60)
        assert (world.api.left("p"), world.api.phase("p")) == (";", "success")


@in_fake_time
async def test_trailing_separators_of_other_plugins_do_not_grow() -> None:
    world = HandoverNode(bound("p", A, B, annotations={TO_ALLOCATE: entry(A) + entry(B) + ";;;"}))
    async with world.running():
        await world.ask("GPU-a-0")
        await world.at_rest()
        assert world.api.left("p") == ";" + entry(B)


@in_fake_time
async def test_a_pod_of_two_vendors_is_finished_by_the_last_of_them() -> None:
    world = HandoverNode(bound("p", A, annotations={AMD: "x,AMDGPU,1,1:;"}))
    async with world.running():
        await world.ask("GPU-a-0")
        await world.at_rest()
        assert (world.api.left("p"), world.api.phase("p")) == (";", "allocating")
        world.api.fake.mark_pod("default/p", {AMD: ";"})
        world.api.catch_up()
        await world.at_rest()
        assert world.api.phase("p") == "success"


@in_fake_time
async def test_another_vendors_plugin_that_finishes_at_the_same_moment_leaves_no_pod_behind() -> None:
    world = HandoverNode(bound("p", A, annotations={AMD: "x,AMDGPU,1,1:;"}))
    world.api.lock_for("p")
    step = Step(meanwhile=lambda: world.api.fake.mark_pod("default/p", {AMD: ";"}))
    world.api.fake.script("annotate_pod", step)
    async with world.running():
        await world.ask("GPU-a-0")
        assert (world.api.phase("p"), world.api.lock_text) == ("success", None)


@in_fake_time
async def test_a_mode_that_refuses_fails_the_pod_that_was_meant() -> None:
    world = HandoverNode(bound("p", A))
    world.mode.refusals["p"] = "no such card"
    async with world.running():
        with pytest.raises(AllocationRefused, match="no such card"):
            await world.ask("GPU-a-0")
        await world.at_rest()
        assert world.api.phase("p") == "failed"
        with pytest.raises(AllocationRefused, match="no binding pod"):
            await world.ask("GPU-a-0")


@in_fake_time
async def test_a_slice_that_is_still_being_made_ready_ends_no_handover() -> None:
    world = HandoverNode(bound("p", A))
    world.mode.gate, world.mode.refusals["p"] = asyncio.Event(), "no such card"
    async with world.running():
        asked = asyncio.create_task(world.ask("GPU-a-0"))
        await asyncio.sleep(1)
        # The agent looks through its pods meanwhile, after a change of any of them and every few seconds.
        world.api.put(bound("other", B))
        world.api.catch_up()
        await asyncio.sleep(10)
        assert (world.api.left("p"), world.api.phase("p")) == (entry(A), "allocating")
        world.mode.gate.set()
        with pytest.raises(AllocationRefused, match="no such card"):
            await asked
        await world.at_rest()
        assert (world.api.left("p"), world.api.phase("p")) == (entry(A), "failed")


@in_fake_time
async def test_a_fault_of_the_mode_is_a_refusal() -> None:
    world = HandoverNode(bound("p", A))
    world.mode.faults["p"] = OSError("disk full")
    async with world.running():
        with pytest.raises(AllocationRefused, match="OSError: disk full"):
            await world.ask("GPU-a-0")
        await world.at_rest()
        assert world.api.phase("p") == "failed"


@in_fake_time
async def test_a_refusal_for_pods_that_use_the_downward_api_fails_none_of_them() -> None:
    world = HandoverNode(bound("p", A, downward_api=[0]))
    world.mode.refusals["*"] = "driver missing"
    async with world.running():
        with pytest.raises(AllocationRefused, match="driver missing"):
            await world.ask("GPU-a-0")
        await world.at_rest()
        assert world.api.phase("p") == "allocating"


# -- kubelet and the order of calls


@in_fake_time
async def test_kubelet_gets_again_what_it_lost_in_a_restart() -> None:
    world = HandoverNode(bound("p", A))
    async with world.running():
        await world.ask("GPU-a-0")
        await world.at_rest()
        assert world.api.phase("p") == "success"
        world.agent.on_new_kubelet()
        assert (await world.ask("GPU-a-3"))["pod"] == "p"


@in_fake_time
async def test_what_kubelet_did_not_wait_for_is_handed_out_again() -> None:
    world = HandoverNode(bound("p", A, B))
    world.mode.gate = asyncio.Event()
    async with world.running():
        asked = asyncio.create_task(world.ask("GPU-a-0"))
        await asyncio.sleep(1)
        asked.cancel()
        await asyncio.sleep(1)
        world.mode.gate.set()
        assert (await world.ask("GPU-a-1"))["container"] == "c0"
        assert (await world.ask("GPU-b-1"))["container"] == "c1"
        await world.at_rest()
        assert world.api.phase("p") == "success"


@in_fake_time
async def test_a_call_that_was_given_up_before_its_turn_takes_nothing() -> None:
    world = HandoverNode(bound("p", A, B))
    world.mode.gate = asyncio.Event()
    async with world.running():
        first, second = (asyncio.create_task(world.ask(f"GPU-a-{n}")) for n in range(2))
        await asyncio.sleep(1)
        second.cancel()
        world.mode.gate.set()
        assert (await first)["container"] == "c0"
        assert (await world.ask("GPU-a-2"))["container"] == "c1"


@in_fake_time
async def test_a_caller_that_leaves_while_a_refusal_is_made_disturbs_no_other() -> None:
    world = HandoverNode()
    async with world.running():
        asked = asyncio.create_task(world.ask("GPU-a-0"))
        await asyncio.sleep(1)
        asked.cancel()
        await asyncio.sleep(2)
        world.api.put(bound("p", A))
        assert (await world.ask("GPU-a-0"))["pod"] == "p"


@in_fake_time
async def test_a_caller_that_leaves_while_the_lock_is_released_leaves_a_finished_pod() -> None:
    world = HandoverNode(bound("p", A))
    world.api.lock_for("p")
    world.api.fake.script("annotate_node", Step(delay=5))
    async with world.running():
        asked = asyncio.create_task(world.ask("GPU-a-0"))
        await asyncio.sleep(1)
        asked.cancel()
        await world.at_rest()
        assert (world.api.phase("p"), world.api.lock_text) == ("success", None)


@in_fake_time
async def test_an_agent_that_stops_refuses_waiting_calls() -> None:
    world = HandoverNode(bound("p", A))
    world.mode.gate = asyncio.Event()
    async with world.running():
        asked = [asyncio.create_task(world.ask(f"GPU-a-{n}")) for n in range(3)]
        await asyncio.sleep(1)
    for each in asked:
        with pytest.raises(AllocationRefused, match="stopping"):
            await each


@in_fake_time
async def test_more_calls_than_kubelet_ever_makes_are_refused() -> None:
    world = HandoverNode(bound("p", A))
    world.mode.gate = asyncio.Event()
    asked = [asyncio.create_task(world.ask(f"GPU-a-{n}")) for n in range(MAX_CALLS)]
    await asyncio.sleep(1)
    with pytest.raises(AllocationRefused, match="at once"):
        await world.ask("GPU-a-99")
    for each in asked:
        each.cancel()


# -- steering


@in_fake_time
async def test_kubelet_is_steered_to_the_cards_of_the_container_that_is_meant() -> None:
    world = HandoverNode(bound("p", "b/1/1 a/1/1"))
    async with world.running():
        available = ["GPU-a::0", "GPU-a::1", "GPU-b::0", "GPU-c::0"]
        assert world.prefer(*available, count=2) == ["GPU-b::0", "GPU-a::0"]
        assert world.prefer(*available, count=2, must=["GPU-a::1"]) == ["GPU-a::1", "GPU-b::0"]
        assert world.prefer("GPU-a::0", "GPU-c::0", count=2) == []
        assert world.prefer(*available, count=1) == []


@in_fake_time
async def test_pods_that_use_the_downward_api_are_steered_as_a_hint_only() -> None:
    world = HandoverNode(bound("p", A, downward_api=[0]), bound("q", B, downward_api=[0]))
    async with world.running():
        assert world.prefer("GPU-b::0", "GPU-a::0") == ["GPU-a::0"]
        world.api.put(bound("depends", A))
        assert (await world.ask("GPU-a::0"))["pod"] == "depends"
        assert world.mode.doubts == ["depends"]


@in_fake_time
async def test_init_containers_that_kubelet_does_not_show_are_not_taken_for_lost() -> None:
    world = HandoverNode(bound("p", A, B, inits=1), bound("q", A, B, inits=1, at=1))
    async with world.running():
        assert (await world.ask("GPU-a-0"))["container"] == "c0"
        assert (await world.gets("p", "c1", "GPU-a-0"))["container"] == "c1"


@in_fake_time
async def test_a_refusal_where_another_may_be_asking_fails_nobody() -> None:
    world = HandoverNode(bound("depends", A), bound("carries", B, downward_api=[0]))
    world.mode.refusals["depends"] = "no such card"
    async with world.running():
        with pytest.raises(AllocationRefused, match="no such card"):
            await world.ask("GPU-a-0")
        await world.at_rest()
        assert world.api.phase("depends") == "allocating"
        world.mode.refusals.clear()
        assert (await world.ask("GPU-a-0"))["pod"] == "depends"


@in_fake_time
async def test_a_refused_container_is_the_next_to_be_answered_not_the_one_after_it() -> None:
    """Two pods have the same slices, so the refusal fails neither of them; kubelet does not say what it holds."""
    world = HandoverNode(bound("p", A, B), bound("q", A, B), resources=False)
    world.mode.refusals["p"] = "no such card"
    async with world.running():
        with pytest.raises(AllocationRefused, match="no such card"):
            await world.ask("GPU-a-0")
        world.mode.refusals.clear()
        assert (await world.ask("GPU-a-0"))["container"] == "c0"
