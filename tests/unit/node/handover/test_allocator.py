from __future__ import annotations

import asyncio

import pytest

from tessera.kube.errors import KubeError
from tessera.node.handover.allocator import CHECKPOINT_S, MOST_CALLS
from tessera.node.handover.bound_pod import TO_ALLOCATE
from tessera.node.handover.checkpoint import Record
from tessera.node.modes.base import AllocationRefused
from tessera.wire import keys
from tessera.wire.objects import Pod
from tests.support.event_loops import in_fake_time
from tests.support.fake_cluster import Step, refused
from tests.unit.node.handover.world import NODE, World, bound, claims, entry

A, B = "a/3000/50", "b/4000/60"
AMD = "hami.io/amd-devices-to-allocate"


# -- HAMi's protocol, with a lock


@in_fake_time
async def test_two_containers_are_handed_over_one_call_after_the_other_under_a_lock() -> None:
    world = World(bound("p", A, B))
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
    world = World(bound("p", A, B))
    world.api.lock_for("p")
    async with world.running():
        answers = await world.agent.allocator.allocate([["GPU-a-0"], ["GPU-b-0"]])
        assert [answer.env["container"] for answer in answers] == ["c0", "c1"]
        assert world.api.pod_writes() == [{TO_ALLOCATE: ";;", keys.BIND_PHASE: "success"}]


@in_fake_time
async def test_an_init_container_is_the_first_to_get_its_devices() -> None:
    world = World(bound("p", A, "", B, inits=1))
    async with world.running():
        assert (await world.ask("GPU-a-0"))["container"] == "c0"
        assert (await world.ask("GPU-b-0"))["container"] == "c2"
        await world.at_rest()
        assert (world.api.left("p"), world.api.phase("p")) == (";;;", "success")


@in_fake_time
async def test_the_pod_of_the_lock_fails_where_the_number_of_devices_is_another() -> None:
    world = World(bound("p", A))
    world.api.lock_for("p")
    async with world.running():
        with pytest.raises(AllocationRefused, match="device number not matched"):
            await world.ask("GPU-a-0", "GPU-a-1")
        assert world.api.phase("p") == "failed"
        assert world.api.lock_text is None


@in_fake_time
async def test_a_call_that_fits_another_pod_does_not_fail_the_pod_of_the_lock() -> None:
    # HAMi's scheduler takes no lock for pods that need devices in init containers only.
    world = World(bound("p", A), bound("init-only", "a/1/1 b/1/1", "", inits=1))
    world.api.lock_for("p")
    async with world.running():
        assert (await world.ask("GPU-a-0", "GPU-b-0"))["pod"] == "init-only"
        assert (await world.ask("GPU-a-1"))["pod"] == "p"
        await world.at_rest()
        assert world.api.phase("p") == world.api.phase("init-only") == "success"
        assert world.api.lock_text is None


@in_fake_time
async def test_without_any_pod_the_call_is_refused_and_nothing_is_written() -> None:
    world = World()
    async with world.running():
        with pytest.raises(AllocationRefused, match=f"no binding pod found on node {NODE}"):
            await world.ask("GPU-a-0")
        assert world.api.fake.writes == []
        assert world.count("allocations", result="nobody") == 1


@in_fake_time
async def test_a_foreign_lock_taken_meanwhile_is_left_in_place() -> None:
    world = World(bound("p", A))
    world.api.lock_for("p")
    other = "2026-01-01T00:00:09Z,default,other"
    world.api.fake.script("annotate_pod", Step(meanwhile=lambda: world.api.lock(other)))
    async with world.running():
        await world.ask("GPU-a-0")
        assert world.api.phase("p") == "success"
        assert world.api.lock_text == other


@in_fake_time
async def test_a_patch_that_fails_refuses_fails_the_pod_and_releases_the_lock() -> None:
    world = World(bound("p", A))
    world.api.lock_for("p")
    world.api.fake.script("annotate_pod", refused(500))
    async with world.running():
        with pytest.raises(AllocationRefused, match="patch of the annotations"):
            await world.ask("GPU-a-0")
        assert (world.api.phase("p"), world.api.lock_text) == ("failed", None)
        assert world.api.left("p") == entry(A)


@in_fake_time
async def test_a_lock_is_released_though_no_phase_can_be_written_and_the_phase_follows() -> None:
    world = World(bound("p", A))
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
    world = World(bound("p", A))
    world.api.lock("2026-01-01T00:00:00Z")
    async with world.running():
        await world.ask("GPU-a-0")
        assert (world.api.phase("p"), world.api.lock_text) == ("success", None)


@in_fake_time
async def test_a_pod_that_the_lock_names_is_waited_for() -> None:
    world = World()
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
    world = World(bound("other", A))
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
        world = World(bound("bad", A, annotations=annotations), bound("good", "b/1/1 c/1/1"))
        if locked:
            world.api.lock_for("bad")
        async with world.running():
            with pytest.raises(AllocationRefused, match=text):
                await world.ask("GPU-a-0")
            await world.at_rest()
            assert world.api.phase("bad") == ("failed" if locked else "allocating")
            assert world.api.lock_text is None
            assert (await world.ask("GPU-b-0", "GPU-c-0"))["pod"] == "good"

    check()


# -- without a lock


@in_fake_time
async def test_an_answer_waits_for_no_api_call_and_is_written_behind() -> None:
    world = World(bound("p", A, B))
    world.api.fake.always("annotate_pod", Step(delay=5))
    async with world.running():
        await world.ask("GPU-a-0")
        await world.ask("GPU-b-0")
        assert world.api.left("p") == entry(A) + entry(B)
        await world.at_rest()
        assert (world.api.left("p"), world.api.phase("p")) == (";;", "success")


@in_fake_time
async def test_writing_is_repeated_until_the_api_takes_it() -> None:
    world = World(bound("p", A))
    world.api.fake.script("annotate_pod", *[refused(503)] * 4)
    async with world.running():
        assert await world.ask("GPU-a-0")
        await world.at_rest(60)
        assert (world.api.left("p"), world.api.phase("p")) == (";", "success")


@in_fake_time
async def test_trailing_separators_of_other_plugins_do_not_grow() -> None:
    world = World(bound("p", A, B, annotations={TO_ALLOCATE: entry(A) + entry(B) + ";;;"}))
    async with world.running():
        await world.ask("GPU-a-0")
        await world.at_rest()
        assert world.api.left("p") == ";" + entry(B)


@in_fake_time
async def test_a_pod_of_two_vendors_is_finished_by_the_last_of_them() -> None:
    world = World(bound("p", A, annotations={AMD: "x,AMDGPU,1,1:;"}))
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
    world = World(bound("p", A, annotations={AMD: "x,AMDGPU,1,1:;"}))
    world.api.lock_for("p")
    step = Step(meanwhile=lambda: world.api.fake.mark_pod("default/p", {AMD: ";"}))
    world.api.fake.script("annotate_pod", step)
    async with world.running():
        await world.ask("GPU-a-0")
        assert (world.api.phase("p"), world.api.lock_text) == ("success", None)


@in_fake_time
async def test_a_mode_that_refuses_fails_the_pod_that_was_meant() -> None:
    world = World(bound("p", A))
    world.mode.refusals["p"] = "no such card"
    async with world.running():
        with pytest.raises(AllocationRefused, match="no such card"):
            await world.ask("GPU-a-0")
        await world.at_rest()
        assert world.api.phase("p") == "failed"
        with pytest.raises(AllocationRefused, match="no binding pod"):
            await world.ask("GPU-a-0")


@in_fake_time
async def test_a_fault_of_the_mode_is_a_refusal() -> None:
    world = World(bound("p", A))
    world.mode.faults["p"] = OSError("disk full")
    async with world.running():
        with pytest.raises(AllocationRefused, match="OSError: disk full"):
            await world.ask("GPU-a-0")
        await world.at_rest()
        assert world.api.phase("p") == "failed"


@in_fake_time
async def test_a_refusal_for_pods_that_use_the_downward_api_fails_none_of_them() -> None:
    world = World(bound("p", A, downward_api=[0]))
    world.mode.refusals["*"] = "driver missing"
    async with world.running():
        with pytest.raises(AllocationRefused, match="driver missing"):
            await world.ask("GPU-a-0")
        await world.at_rest()
        assert world.api.phase("p") == "allocating"


# -- whom it is for


@in_fake_time
async def test_different_slices_are_never_guessed_between_and_nobody_is_marked_failed() -> None:
    world = World(bound("p", A), bound("q", B))
    async with world.running():
        with pytest.raises(AllocationRefused, match=r"default/p, default/q"):
            await world.ask("GPU-a-0")
        await world.at_rest()
        assert world.api.fake.writes == []
        assert world.count("allocations", result="ambiguous") == 1


@in_fake_time
async def test_a_pod_that_has_its_devices_is_never_the_one_that_is_meant() -> None:
    done = bound("old", A, phase="success", annotations={TO_ALLOCATE: ";"})
    world = World(done, bound("p", B, at=5))
    async with world.running():
        assert (await world.ask("GPU-b-0"))["pod"] == "p"
        await world.at_rest()
        assert world.api.phase("old") == "success"


@in_fake_time
async def test_pods_that_use_the_downward_api_get_the_same_answer_whatever_they_are() -> None:
    world = World(bound("p", A, downward_api=[0]), bound("q", B, downward_api=[0]))
    async with world.running():
        assert await world.gets("q", "c0", "GPU-a-0") == {"welcome": "yes"}
        assert await world.gets("p", "c0", "GPU-a-1") == {"welcome": "yes"}
        await world.at_rest()
        assert world.api.phase("p") == world.api.phase("q") == "success"
        assert (world.api.left("p"), world.api.left("q")) == (";", ";")
        assert world.events == []


@in_fake_time
async def test_on_a_node_without_the_downward_api_every_pod_depends_on_allocate() -> None:
    world = World(bound("p", A, downward_api=[0]), downward_api=False)
    async with world.running():
        assert (await world.ask("GPU-a-0"))["pod"] == "p"


@in_fake_time
async def test_a_container_that_depends_on_its_answer_gets_it_beside_one_that_does_not() -> None:
    world = World(bound("depends", A), bound("carries", B, downward_api=[0]))
    async with world.running():
        assert (await world.gets("carries", "c0", "GPU-a-0"))["pod"] == "depends"
        assert (await world.gets("depends", "c0", "GPU-a-1"))["pod"] == "depends"
        await world.at_rest()
        assert world.api.phase("depends") == world.api.phase("carries") == "success"
        assert world.events == []
        assert world.mode.doubts[0] == "depends"


@in_fake_time
async def test_kubelet_says_which_of_two_containers_comes_next_in_a_mixture() -> None:
    world = World(bound("depends", A, B), bound("carries", A, downward_api=[0]))
    async with world.running():
        assert (await world.gets("depends", "c0", "GPU-a-0"))["container"] == "c0"
        assert (await world.gets("depends", "c1", "GPU-b-1"))["container"] == "c1"
        await world.gets("carries", "c0", "GPU-a-2")
        await world.at_rest()
        assert world.api.phase("depends") == world.api.phase("carries") == "success"
        assert world.events == []


@in_fake_time
async def test_where_kubelet_does_not_say_it_a_mixture_is_refused() -> None:
    world = World(bound("depends", A, B), bound("carries", A, downward_api=[0]), resources=False)
    async with world.running():
        await world.ask("GPU-a-0")
        with pytest.raises(AllocationRefused, match="different slices"):
            await world.ask("GPU-b-1")


@in_fake_time
async def test_a_pod_that_the_watch_shows_late_is_waited_for() -> None:
    world = World()
    world.api.behind = True
    world.api.put(bound("p", A))
    async with world.running():
        asked = asyncio.create_task(world.ask("GPU-a-0"))
        await asyncio.sleep(1)
        world.api.behind = False
        world.api.catch_up()
        assert (await asked)["pod"] == "p"


@in_fake_time
async def test_a_dependent_pod_that_is_not_shown_yet_is_not_taken_for_one_that_uses_the_downward_api() -> None:
    world = World(bound("p", A, downward_api=[0]), bound("q", A, downward_api=[0]))
    async with world.running():
        assert await world.ask("GPU-a-0") == {"welcome": "yes"}
        assert await world.ask("GPU-a-1") == {"welcome": "yes"}
        # Both run, so that their turns are over and a dependent pod is bound; the agent has not heard of it.
        world.api.behind = True
        for name in ("p", "q"):
            world.api.status(name, "Running")
        world.api.put(bound("depends", B))
        assert (await world.ask("GPU-b-0"))["pod"] == "depends"


@in_fake_time
async def test_a_dependent_pod_that_is_gone_does_not_leave_its_slice_to_the_next() -> None:
    world = World()
    async with world.running():
        world.api.put(bound("gone", A))
        world.api.behind = True
        world.api.delete("gone")
        world.api.put(bound("next", B))
        assert (await world.ask("GPU-b-0"))["pod"] == "next"


@pytest.mark.parametrize("status", ["Running", "Failed"])
def test_a_dependent_pod_whose_turn_is_over_does_not_leave_its_slice_to_the_next(status: str) -> None:
    @in_fake_time
    async def check() -> None:
        world = World()
        async with world.running():
            world.api.put(bound("over", A))
            world.api.behind = True
            world.api.status("over", status)
            world.api.put(bound("next", B))
            assert (await world.ask("GPU-b-0"))["pod"] == "next"

    check()


@in_fake_time
async def test_a_pod_that_was_refused_does_not_leave_its_answer_to_the_next() -> None:
    world = World()
    async with world.running():
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
async def test_a_pod_that_uses_the_downward_api_and_is_gone_does_not_leave_its_answer_to_the_next() -> None:
    world = World()
    async with world.running():
        world.api.put(bound("gone", A, downward_api=[0]))
        world.api.behind = True
        world.api.delete("gone")
        world.api.put(bound("next", B))
        assert (await world.ask("GPU-b-0"))["pod"] == "next"


@in_fake_time
async def test_a_pod_that_the_scheduler_gave_up_does_not_leave_its_slice_to_the_next() -> None:
    """Also where no pod uses the downward API: a turn that no agent ends ends by itself."""
    world = World(downward_api=False)
    async with world.running():
        world.api.put(bound("stuck", A))
        await asyncio.sleep(300)
        world.api.behind = True
        world.api.put(bound("next", B, at=300))
        with pytest.raises(AllocationRefused, match=r"different slices on node n1: default/stuck, default/next"):
            await world.ask("GPU-b-0")


@in_fake_time
async def test_a_lock_that_names_a_replaced_pod_does_not_give_its_slice_to_the_new_one() -> None:
    world = World()
    async with world.running():
        world.api.put(bound("web-0", A, uid="old"))
        world.api.lock_for("web-0")
        world.api.behind = True
        world.api.delete("web-0")
        world.api.put(bound("web-0", B, uid="new"))
        (own,) = claims(bound("web-0", B, uid="new"))
        assert (await world.ask("GPU-b-0"))["what"] == repr(own.what)


# A pod that kubelet never asked for held the lock until it expired, and both watches are behind.


async def the_lock_passes(world: World, *, held: str, to: str) -> None:
    """The first pod may use the downward API; the next one depends on Allocate."""
    world.api.put(bound("stuck", A, downward_api=[0] if held == "downward API" else []))
    world.api.lock_for("stuck")
    await asyncio.sleep(300)
    world.api.behind = True
    world.api.lock_for(to)
    world.api.put(bound("next", B, at=300))


@pytest.mark.parametrize("held", ["dependent", "downward API"])
def test_a_lock_that_has_passed_to_the_next_pod_does_not_give_it_the_slice_of_the_first(held: str) -> None:
    @in_fake_time
    async def check() -> None:
        world = World()
        async with world.running():
            await the_lock_passes(world, held=held, to="next")
            assert (await world.ask("GPU-b-0"))["pod"] == "next"
            world.api.behind = False
            world.api.catch_up()
            await world.at_rest()
            assert (world.api.phase("stuck"), world.api.phase("next")) == ("allocating", "success")
            assert world.api.lock_text is None

    check()


@pytest.mark.parametrize("delay", [0, 60], ids=["refused", "hangs"])
def test_an_old_lock_that_cannot_be_read_gives_no_pod_a_slice(delay: int) -> None:
    @in_fake_time
    async def check() -> None:
        world = World()
        async with world.running():
            await the_lock_passes(world, held="dependent", to="next")
            world.api.fake.always("get_node", Step(delay=delay) if delay else refused(503))
            async with asyncio.timeout(10):
                with pytest.raises(AllocationRefused, match="lock of node n1 cannot be read"):
                    await world.ask("GPU-b-0")

    check()


@in_fake_time
async def test_without_a_lock_the_node_is_not_read() -> None:
    async with World(bound("p", A), inherited=True).running() as world:
        world.api.fake.always("get_node", refused(503))
        assert (await world.ask("GPU-a-0"))["pod"] == "p"


@in_fake_time
async def test_a_pod_that_has_held_the_lock_for_long_and_still_does_gets_its_slice() -> None:
    world = World(bound("p", A))
    world.api.lock_for("p")
    async with world.running():
        await asyncio.sleep(200)
        assert (await world.ask("GPU-a-0"))["pod"] == "p"
        assert (world.api.phase("p"), world.api.lock_text) == ("success", None)


def without_reads(world: World, fault: KubeError | None) -> None:
    for verb in ("get_pod", "list_pods"):
        world.api.fake.always(verb, fault)


@in_fake_time
async def test_without_the_api_no_slice_is_answered_because_the_pod_may_be_gone() -> None:
    world = World()
    async with world.running():
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
    world = World()
    async with world.running():
        world.api.put(bound("p", A))
        without_reads(world, refused(503))
        asked = asyncio.create_task(world.ask("GPU-a-0"))
        await asyncio.sleep(1)
        without_reads(world, None)
        assert (await asked)["pod"] == "p"


@in_fake_time
async def test_without_the_api_pods_that_use_the_downward_api_are_still_answered() -> None:
    world = World(bound("d", A, downward_api=[0]))
    async with world.running():
        without_reads(world, refused(503))
        assert await world.ask("GPU-a-0") == {"welcome": "yes"}
        with pytest.raises(AllocationRefused, match="no binding pod"):
            await world.ask("GPU-a-1", "GPU-a-2")


@in_fake_time
async def test_a_pod_that_uses_the_downward_api_is_answered_without_a_list_of_all_pods() -> None:
    async with World(bound("d", A, downward_api=[0])).running() as world:
        world.api.fake.always("list_pods", refused(503))
        async with asyncio.timeout(1):
            assert await world.ask("GPU-a-0") == {"welcome": "yes"}


@in_fake_time
async def test_a_fault_in_one_call_ends_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(bound("p", A), inherited=True)

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
    world = World(bound("p", A))

    async def hang(_record: Record) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(world.checkpoint, "add", hang)
    async with world.running():
        async with asyncio.timeout(10):
            assert (await world.ask("GPU-a-0"))["pod"] == "p"


@in_fake_time
async def test_an_answer_waits_until_a_later_process_would_know_it(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(bound("p", A))
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
    world = World(bound("p", A))
    world.agent.pods.ready.clear()
    async with world.running():
        with pytest.raises(AllocationRefused, match="not known yet"):
            await world.ask("GPU-a-0")


# -- kubelet and the order of calls


@in_fake_time
async def test_kubelet_gets_again_what_it_lost_in_a_restart() -> None:
    world = World(bound("p", A))
    async with world.running():
        await world.ask("GPU-a-0")
        await world.at_rest()
        assert world.api.phase("p") == "success"
        assert (await world.ask("GPU-a-3"))["pod"] == "p"


@in_fake_time
async def test_what_kubelet_did_not_wait_for_is_handed_out_again() -> None:
    world = World(bound("p", A))
    world.mode.gate = asyncio.Event()
    async with world.running():
        asked = asyncio.create_task(world.ask("GPU-a-0"))
        await asyncio.sleep(1)
        asked.cancel()
        await asyncio.sleep(1)
        world.mode.gate.set()
        assert (await world.ask("GPU-a-1"))["pod"] == "p"
        await world.at_rest()
        assert world.api.phase("p") == "success"


@in_fake_time
async def test_a_call_that_was_given_up_before_its_turn_takes_nothing() -> None:
    world = World(bound("p", A, B))
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
    world = World()
    async with world.running():
        asked = asyncio.create_task(world.ask("GPU-a-0"))
        await asyncio.sleep(1)
        asked.cancel()
        await asyncio.sleep(2)
        world.api.put(bound("p", A))
        assert (await world.ask("GPU-a-0"))["pod"] == "p"


@in_fake_time
async def test_a_caller_that_leaves_while_the_lock_is_released_leaves_a_finished_pod() -> None:
    world = World(bound("p", A))
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
    world = World(bound("p", A))
    world.mode.gate = asyncio.Event()
    async with world.running():
        asked = [asyncio.create_task(world.ask(f"GPU-a-{n}")) for n in range(3)]
        await asyncio.sleep(1)
    for each in asked:
        with pytest.raises(AllocationRefused, match="stopping"):
            await each


@in_fake_time
async def test_more_calls_than_kubelet_ever_makes_are_refused() -> None:
    world = World(bound("p", A))
    world.mode.gate = asyncio.Event()
    asked = [asyncio.create_task(world.ask(f"GPU-a-{n}")) for n in range(MOST_CALLS)]
    await asyncio.sleep(1)
    with pytest.raises(AllocationRefused, match="at once"):
        await world.ask("GPU-a-99")
    for each in asked:
        each.cancel()


# -- steering


@in_fake_time
async def test_kubelet_is_steered_to_the_cards_of_the_container_that_is_meant() -> None:
    world = World(bound("p", "b/1/1 a/1/1"))
    async with world.running():
        available = ["GPU-a::0", "GPU-a::1", "GPU-b::0", "GPU-c::0"]
        assert world.prefer(*available, count=2) == ["GPU-b::0", "GPU-a::0"]
        assert world.prefer(*available, count=2, must=["GPU-a::1"]) == ["GPU-a::1", "GPU-b::0"]
        assert world.prefer("GPU-a::0", "GPU-c::0", count=2) == []
        assert world.prefer(*available, count=1) == []


@in_fake_time
async def test_pods_that_use_the_downward_api_are_steered_as_a_hint_only() -> None:
    world = World(bound("p", A, downward_api=[0]), bound("q", B, downward_api=[0]))
    async with world.running():
        assert world.prefer("GPU-b::0", "GPU-a::0") == ["GPU-a::0"]
        world.api.put(bound("depends", A))
        assert (await world.ask("GPU-a::0"))["pod"] == "depends"
        assert world.mode.doubts == ["depends"]


@in_fake_time
async def test_init_containers_that_kubelet_does_not_show_are_not_taken_for_lost() -> None:
    world = World(bound("p", A, B, inits=1), bound("q", A, B, inits=1, at=1))
    async with world.running():
        assert (await world.ask("GPU-a-0"))["container"] == "c0"
        assert (await world.gets("p", "c1", "GPU-a-0"))["container"] == "c1"


@in_fake_time
async def test_a_refusal_where_another_may_be_asking_fails_nobody() -> None:
    world = World(bound("depends", A), bound("carries", B, downward_api=[0]))
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
    world = World(bound("p", A, B), bound("q", A, B), resources=False)
    world.mode.refusals["p"] = "no such card"
    async with world.running():
        with pytest.raises(AllocationRefused, match="no such card"):
            await world.ask("GPU-a-0")
        world.mode.refusals.clear()
        assert (await world.ask("GPU-a-0"))["container"] == "c0"
