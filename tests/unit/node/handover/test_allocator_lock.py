"""Allocate under HAMi's node lock: the phase, the lock, and what happens to the pod that it names."""

from __future__ import annotations

import asyncio

import pytest

from tessera.node.handover.assignments import TO_ALLOCATE
from tessera.node.modes.base import AllocationRefused
from tessera.wire import keys
from tests.support.event_loops import in_fake_time
from tests.support.fake_cluster import Step, refused
from tests.unit.node.handover.world import NODE, HandoverNode, bound, entry

A, B = "a/3000/50", "b/4000/60"


@in_fake_time
async def test_two_containers_are_handed_over_one_call_after_the_other_under_a_lock() -> None:
    world = HandoverNode(bound("p", A, B))
    world.api.lock_for("p")
    async with world.running():
        assert (await world.ask("GPU-a-0"))["container"] == "c0"
        assert (world.api.left("p"), world.api.phase("p")) == (";" + entry(B), "allocating")
        assert world.api.lock_text is not None
        assert (await world.ask("GPU-b-0"))["container"] == "c1"
        assert (world.api.left("p"), world.api.phase("p")) == (";;", "success")
        assert world.api.lock_text is None


@in_fake_time
async def test_one_call_for_both_containers_is_one_patch() -> None:
    world = HandoverNode(bound("p", A, B))
    world.api.lock_for("p")
    async with world.running():
        answers = await world.agent.allocator.allocate([["GPU-a-0"], ["GPU-b-0"]])
        assert [answer.env["container"] for answer in answers] == ["c0", "c1"]
        assert world.api.pod_writes() == [{TO_ALLOCATE: ";;", keys.BIND_PHASE: "success"}]


@in_fake_time
async def test_an_init_container_is_the_first_to_get_its_devices() -> None:
    world = HandoverNode(bound("p", A, "", B, inits=1))
    async with world.running():
        assert (await world.ask("GPU-a-0"))["container"] == "c0"
        assert (await world.ask("GPU-b-0"))["container"] == "c2"
        await world.at_rest()
        assert (world.api.left("p"), world.api.phase("p")) == (";;;", "success")


@in_fake_time
async def test_the_pod_of_the_lock_fails_where_the_number_of_devices_is_another() -> None:
    world = HandoverNode(bound("p", A))
    world.api.lock_for("p")
    async with world.running():
        with pytest.raises(AllocationRefused, match="device number not matched"):
            await world.ask("GPU-a-0", "GPU-a-1")
        assert world.api.phase("p") == "failed"
        assert world.api.lock_text is None
        assert world.count("allocations", result="refused") == 1


@in_fake_time
async def test_another_number_of_devices_is_compared_with_that_of_the_next_container() -> None:
    world = HandoverNode(bound("p", A, f"{A} {B}", annotations={TO_ALLOCATE: ";" + entry(f"{A} {B}")}))
    world.api.lock_for("p")
    async with world.running():
        with pytest.raises(AllocationRefused, match="default/p is to get 2, asked for 1"):
            await world.ask("GPU-a-0")


@in_fake_time
async def test_a_call_that_fits_another_pod_does_not_fail_the_pod_of_the_lock() -> None:
    # HAMi's scheduler takes no lock for pods that need devices in init containers only.
    world = HandoverNode(bound("p", A), bound("init-only", "a/1/1 b/1/1", "", inits=1))
    world.api.lock_for("p")
    async with world.running():
        assert (await world.ask("GPU-a-0", "GPU-b-0"))["pod"] == "init-only"
        assert (await world.ask("GPU-a-1"))["pod"] == "p"
        await world.at_rest()
        assert world.api.phase("p") == world.api.phase("init-only") == "success"
        assert world.api.lock_text is None


@in_fake_time
async def test_without_any_pod_the_call_is_refused_and_nothing_is_written() -> None:
    world = HandoverNode()
    async with world.running():
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
    world = HandoverNode()
    async with world.running():
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
    world = HandoverNode(bound("other", A))
    world.api.lock_for("nobody")
    async with world.running():
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
def test_an_unreadable_pod_is_refused_with_the_reason(
    annotations: dict[str, str | None], text: str, locked: bool
) -> None:
    @in_fake_time
    async def check() -> None:
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

    check()
