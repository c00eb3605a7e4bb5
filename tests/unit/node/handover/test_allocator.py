"""Allocate without a lock, the order of kubelet's calls, and which cards kubelet is steered to."""

from __future__ import annotations

import asyncio

import pytest

from tessera.node.handover.allocator import MAX_CALLS
from tessera.node.handover.assignments import TO_ALLOCATE
from tessera.node.modes.base import AllocationRefused
from tessera.wire import keys
from tests.support.event_loops import in_fake_time
from tests.support.fake_cluster import Step, refused
from tests.support.handover_node import NODE, HandoverNode, bound, entry

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
    async with HandoverNode(
        bound("p", A, B, annotations={TO_ALLOCATE: entry(A) + entry(B) + ";;;"})
    ).running() as world:
        await world.ask("GPU-a-0")
        await world.at_rest()
        assert world.api.left("p") == ";" + entry(B)


@in_fake_time
async def test_a_pod_of_two_vendors_is_finished_by_the_last_of_them() -> None:
    async with HandoverNode(bound("p", A, annotations={AMD: "x,AMDGPU,1,1:;"})).running() as world:
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


@pytest.mark.parametrize(
    ("fault", "text"),
    [(AllocationRefused("no such card"), "no such card"), (OSError("disk full"), "OSError: disk full")],
    ids=["refuses", "fails"],
)
@in_fake_time
async def test_a_mode_that_refuses_or_fails_fails_the_pod_that_was_meant(fault: Exception, text: str) -> None:
    world = HandoverNode(bound("p", A))
    world.mode.faults["p"] = fault
    async with world.running():
        with pytest.raises(AllocationRefused, match=text):
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
    async with HandoverNode(bound("p", A)).running() as world:
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
    async with HandoverNode().running() as world:
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
    async with HandoverNode(bound("p", "b/1/1 a/1/1")).running() as world:
        available = ["GPU-a::0", "GPU-a::1", "GPU-b::0", "GPU-c::0"]
        assert world.prefer(*available, count=2) == ["GPU-b::0", "GPU-a::0"]
        assert world.prefer(*available, count=2, must=["GPU-a::1"]) == ["GPU-a::1", "GPU-b::0"]
        assert world.prefer("GPU-a::0", "GPU-c::0", count=2) == []
        assert world.prefer(*available, count=1) == []


@in_fake_time
async def test_pods_that_use_the_downward_api_are_steered_as_a_hint_only() -> None:
    async with HandoverNode(bound("p", A, downward_api=[0]), bound("q", B, downward_api=[0])).running() as world:
        assert world.prefer("GPU-b::0", "GPU-a::0") == ["GPU-a::0"]
        world.api.put(bound("depends", A))
        assert (await world.ask("GPU-a::0"))["pod"] == "depends"
        assert world.mode.doubts == ["depends"]


@in_fake_time
async def test_init_containers_that_kubelet_does_not_show_are_not_taken_for_lost() -> None:
    async with HandoverNode(bound("p", A, B, inits=1), bound("q", A, B, inits=1, at=1)).running() as world:
        assert (await world.ask("GPU-a-0"))["container"] == "c0"
        assert (await world.gets("p", "c1", "GPU-a-0"))["container"] == "c1"


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


# -- allocate under HAMi's node lock: the phase, the lock, and what happens to the pod that it names


@in_fake_time
async def test_two_containers_are_handed_over_one_call_after_the_other_under_a_lock() -> None:
    async with HandoverNode(bound("p", A, B), lock="p").running() as world:
        assert (await world.ask("GPU-a-0"))["container"] == "c0"
        assert (world.api.left("p"), world.api.phase("p")) == (";" + entry(B), "allocating")
        assert world.api.lock_text is not None
        assert (await world.ask("GPU-b-0"))["container"] == "c1"
        assert (world.api.left("p"), world.api.phase("p")) == (";;", "success")
        assert world.api.lock_text is None


@in_fake_time
async def test_one_call_for_both_containers_is_one_patch() -> None:
    async with HandoverNode(bound("p", A, B), lock="p").running() as world:
        answers = await world.agent.allocator.allocate([["GPU-a-0"], ["GPU-b-0"]])
        assert [answer.env["container"] for answer in answers] == ["c0", "c1"]
        assert world.api.pod_writes() == [{TO_ALLOCATE: ";;", keys.BIND_PHASE: "success"}]


@in_fake_time
async def test_an_init_container_is_the_first_to_get_its_devices() -> None:
    async with HandoverNode(bound("p", A, "", B, inits=1)).running() as world:
        assert (await world.ask("GPU-a-0"))["container"] == "c0"
        assert (await world.ask("GPU-b-0"))["container"] == "c2"
        await world.at_rest()
        assert (world.api.left("p"), world.api.phase("p")) == (";;;", "success")


@in_fake_time
async def test_the_pod_of_the_lock_fails_where_the_number_of_devices_is_another() -> None:
    async with HandoverNode(bound("p", A), lock="p").running() as world:
        with pytest.raises(AllocationRefused, match="device number not matched"):
            await world.ask("GPU-a-0", "GPU-a-1")
        assert world.api.phase("p") == "failed"
        assert world.api.lock_text is None
        assert world.count("allocations", result="refused") == 1


@in_fake_time
async def test_another_number_of_devices_is_compared_with_that_of_the_next_container() -> None:
    async with HandoverNode(
        bound("p", A, f"{A} {B}", annotations={TO_ALLOCATE: ";" + entry(f"{A} {B}")}), lock="p"
    ).running() as world:
        with pytest.raises(AllocationRefused, match="default/p is to get 2, asked for 1"):
            await world.ask("GPU-a-0")


@in_fake_time
async def test_a_call_that_fits_another_pod_does_not_fail_the_pod_of_the_lock() -> None:
    # HAMi's scheduler takes no lock for pods that need devices in init containers only.
    async with HandoverNode(bound("p", A), bound("init-only", "a/1/1 b/1/1", "", inits=1), lock="p").running() as world:
        assert (await world.ask("GPU-a-0", "GPU-b-0"))["pod"] == "init-only"
        assert (await world.ask("GPU-a-1"))["pod"] == "p"
        await world.at_rest()
        assert world.api.phase("p") == world.api.phase("init-only") == "success"
        assert world.api.lock_text is None


@in_fake_time
async def test_without_any_pod_the_call_is_refused_and_nothing_is_written() -> None:
    async with HandoverNode().running() as world:
        with pytest.raises(AllocationRefused, match=f"no binding pod found on node {NODE}"):
            await world.ask("GPU-a-0")
        assert world.api.fake.writes == []
        assert world.count("allocations", result="no_pod") == 1


@in_fake_time
async def test_a_foreign_lock_taken_meanwhile_is_left_in_place() -> None:
    world = HandoverNode(bound("p", A))
    world.api.lock_for("p")
    other = "2026-01-01T00:00:09Z,default,other"
    world.api.fake.script("annotate_pod", Step(meanwhile=lambda: world.api.lock(other)))
    async with world.running():
        await world.ask("GPU-a-0")
        assert world.api.phase("p") == "success"
        assert world.api.lock_text == other


@in_fake_time
async def test_a_patch_that_fails_refuses_fails_the_pod_and_releases_the_lock() -> None:
    world = HandoverNode(bound("p", A))
    world.api.lock_for("p")
    world.api.fake.script("annotate_pod", refused(500))
    async with world.running():
        with pytest.raises(AllocationRefused, match="patch of the annotations"):
            await world.ask("GPU-a-0")
        assert (world.api.phase("p"), world.api.lock_text) == ("failed", None)
        assert world.api.left("p") == entry(A)


@in_fake_time
async def test_a_lock_is_released_though_no_phase_can_be_written_and_the_phase_follows() -> None:
    world = HandoverNode(bound("p", A))
    world.api.lock_for("p")
    world.api.fake.script("annotate_pod", refused(500), refused(500), refused(503))
    async with world.running():
        with pytest.raises(AllocationRefused):
            await world.ask("GPU-a-0")
        assert world.api.lock_text is None
        await world.at_rest()
        assert world.api.phase("p") == "failed"


@in_fake_time
async def test_a_lock_that_names_nobody_is_released_at_the_end() -> None:
    world = HandoverNode(bound("p", A))
    world.api.lock("2026-01-01T00:00:00Z")
    async with world.running():
        await world.ask("GPU-a-0")
        assert (world.api.phase("p"), world.api.lock_text) == ("success", None)


@in_fake_time
async def test_a_pod_that_the_lock_names_is_waited_for() -> None:
    async with HandoverNode().running() as world:
        world.api.put(bound("other", A))
        world.api.lock_for("p")
        world.api.behind = True
        world.api.put(bound("p", B))
        asked = asyncio.create_task(world.ask("GPU-b-0"))
        await asyncio.sleep(1)
        world.api.behind = False
        world.api.catch_up()
        assert (await asked)["pod"] == "p"


@in_fake_time
async def test_a_lock_of_a_pod_that_never_shows_does_not_stop_the_others() -> None:
    async with HandoverNode(bound("other", A), lock="nobody").running() as world:
        assert (await world.ask("GPU-a-0"))["pod"] == "other"


@pytest.mark.parametrize(
    ("annotations", "text"),
    [
        ({TO_ALLOCATE: "GPU-a,NVIDIA:;"}, "missing fields"),
        ({TO_ALLOCATE: "GPU-a,NVIDIA,99999999999999999999,1:;"}, "invalid memory field"),
        ({TO_ALLOCATE: "GPU-a,NVIDIA,٣,1:;"}, "invalid memory field"),
        ({TO_ALLOCATE: None}, "device request not found"),
        ({TO_ALLOCATE: entry(A) + entry(A)}, "beyond the pod's 1 containers"),
        ({keys.MIG_ALLOCATIONS: "[{]"}, "MIG"),
        ({keys.MIG_ALLOCATIONS: '[{"containerIndex":0,"gpuUUID":"g","profile":"p","migUUID":"x"}]'}, "MIG"),
    ],
)
@pytest.mark.parametrize("locked", [True, False], ids=["lock", "no lock"])
@in_fake_time
async def test_an_unreadable_pod_is_refused_with_the_reason(
    annotations: dict[str, str | None], text: str, locked: bool
) -> None:
    world = HandoverNode(bound("bad", A, annotations=annotations), bound("good", "b/1/1 c/1/1"))
    if locked:
        world.api.lock_for("bad")
    async with world.running():
        with pytest.raises(AllocationRefused, match=text) as refusal:
            await world.ask("GPU-a-0")
        assert "good" not in str(refusal.value)
        await world.at_rest()
        assert world.api.phase("bad") == ("failed" if locked else "allocating")
        assert world.api.lock_text is None
        assert (await world.ask("GPU-b-0", "GPU-c-0"))["pod"] == "good"
