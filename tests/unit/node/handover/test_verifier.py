"""What happens behind the answers: writing, verifying and making up for what a crash left behind."""

from __future__ import annotations

import msgspec
import pytest

from tessera.node.handover.assembly import SWEEP_S
from tessera.node.handover.assignments import ALLOCATED, TO_ALLOCATE
from tessera.node.modes.base import AllocationRefused
from tessera.node.settings import AgentSettings
from tessera.wire import keys
from tessera.wire.objects import Pod
from tests.support.event_loops import in_fake_time
from tests.support.fake_cluster import Step, lost_answer, refused
from tests.support.handover_node import NODE, HandoverNode, Mode, bound, entry
from tests.support.logs import captured

A, B = "a/3000/50", "b/4000/60"


# -- ends of handovers


@pytest.mark.parametrize(
    ("status", "phase", "left"),
    [("Running", "success", ";"), ("Succeeded", "success", ";"), ("Failed", "failed", entry(A))],
)
@pytest.mark.parametrize("resources", [True, False], ids=["kubelet says", "kubelet silent"])
@in_fake_time
async def test_a_pod_that_uses_the_downward_api_ends_its_handover_through_its_status(
    status: str, phase: str, left: str, resources: bool
) -> None:
    async with HandoverNode(
        bound("p", A, downward_api=[0]), bound("q", B, downward_api=[0]), resources=resources
    ).running() as world:
        await world.ask("GPU-a-0")
        await world.at_rest()
        assert world.api.phase("p") == world.api.phase("q") == "allocating", "either may have asked"
        world.api.status("p", status)
        await world.at_rest()
        assert (world.api.phase("p"), world.api.left("p")) == (phase, left)
        assert world.api.phase("q") == "allocating"


@in_fake_time
async def test_a_pod_that_uses_the_downward_api_does_not_wait_for_a_sweep_to_end_its_handover() -> None:
    async with HandoverNode(bound("p", A, downward_api=[0])).running() as world:
        await world.at_rest(SWEEP_S * 1.5)
        await world.gets("p", "c0", "GPU-a-0")
        await world.at_rest(1)
        assert world.api.phase("p") == "success"


@in_fake_time
async def test_a_pod_whose_init_containers_kubelet_hides_ends_through_the_later_ones() -> None:
    pods = [bound(name, A, B, inits=1, downward_api=[0, 1]) for name in ("p", "q")]
    async with HandoverNode(*pods, inherited=True).running() as world:
        for name in ("q", "p"):
            await world.ask(f"GPU-a-{name}")
            await world.gets(name, "c1", f"GPU-a-{name}")
        await world.at_rest()
        assert world.api.phase("p") == world.api.phase("q") == "success"


@in_fake_time
async def test_a_pod_that_vanishes_is_written_no_more_and_its_successor_is_not_touched() -> None:
    world = HandoverNode(bound("p", A))
    world.api.fake.script("annotate_pod", refused(503))
    async with world.running():
        await world.ask("GPU-a-0")
        world.api.behind = True
        world.api.put(bound("p", B, uid="next"))
        await world.at_rest()
        assert world.api.left("p") == entry(B)
        world.api.delete("p")
        await world.at_rest()
        world.api.behind = False
        world.api.catch_up()
        await world.at_rest()
        assert world.agent.pods.all() == []


@pytest.mark.parametrize("locked", [True, False])
@in_fake_time
async def test_what_is_written_is_not_written_again_while_the_watch_is_behind(locked: bool) -> None:
    async with HandoverNode(bound("p", A), inherited=True).running() as world:
        if locked:
            world.api.lock_for("p")
        world.api.behind = True
        await world.gets("p", "c0", "GPU-a-0")
        await world.at_rest()
        assert (world.api.phase("p"), len(world.api.pod_writes())) == ("success", 1)


@in_fake_time
async def test_a_pod_that_loses_its_annotations_while_it_is_written_is_no_fault() -> None:
    world = HandoverNode(bound("p", A))
    bare = {TO_ALLOCATE: None, ALLOCATED: None, keys.ASSIGNED_NODE: None}

    async def stripped(*_: object) -> object:
        world.api.fake.mark_pod("default/p", bare)
        return world.api.fake.pods["default/p"]

    world.api.annotate_pod = stripped  # type: ignore[method-assign, assignment]
    async with world.running():
        assert await world.ask("GPU-a-0")
        await world.at_rest()


@in_fake_time
async def test_a_lock_that_is_seen_late_is_released_behind_the_answer() -> None:
    world = HandoverNode(bound("p", A))
    world.api.behind = True
    world.api.lock_for("p")
    world.api.fake.script("annotate_pod", Step(meanwhile=lambda: setattr(world.api, "behind", False)))
    async with world.running():
        await world.ask("GPU-a-0")
        await world.at_rest(1)
        assert world.api.phase("p") == "success"
        await world.at_rest()
        assert world.api.lock_text is None


# -- verifying


@pytest.mark.parametrize(
    ("pods", "holder", "ids", "message"),
    [
        ([bound("p", A), bound("q", B, phase="success", at=1)], ("q", "c0"), 1, "c0 got the slice of container c0 of"),
        ([bound("p", A), bound("q", "", A, at=1, phase="success")], ("q", "c0"), 1, "although none were given to it"),
        ([bound("p", A), bound("q", f"{A} {B}", at=1)], ("q", "c0"), 1, "holds 1 devices but was to get 2"),
        ([bound("p", A, downward_api=[0]), bound("q", B, phase="success")], ("q", "c0"), 1, "got no slice"),
    ],
    ids=["another slice", "no slice at all", "another number", "nothing"],
)
def test_a_container_that_holds_something_else_is_reported(
    pods: list[Pod], holder: tuple[str, str], ids: int, message: str
) -> None:
    @in_fake_time
    async def check() -> None:
        async with HandoverNode(*pods).running() as world:
            await world.gets(*holder, *(f"GPU-a-{n}" for n in range(ids)))
            await world.at_rest()
            ((pod, reason, text),) = world.events
            assert (pod, reason) == (holder[0], "SliceMismatch")
            assert message in text
            assert world.count("slice_mismatches") == 1

    check()


@in_fake_time
async def test_a_holder_whose_own_claims_cannot_be_read_is_not_judged() -> None:
    async with HandoverNode(
        bound("p", A), bound("q", B, phase="success", annotations={ALLOCATED: "a,b:;"})
    ).running() as world:
        await world.gets("q", "c0", "GPU-a-0")
        await world.at_rest()
        assert world.events == []
        assert world.agent.pods.live_assignments() is None


@in_fake_time
async def test_a_kubelet_that_cannot_be_asked_is_logged_once_and_when_it_is_back() -> None:
    world = HandoverNode(bound("p", A))
    world.resources.error = OSError("no such socket")
    with captured() as logs:
        async with world.running():
            await world.ask("GPU-a-0")
            await world.at_rest()
            assert world.resources.calls > 1
            world.resources.error = None
            world.resources.holds("p", "c0", "GPU-a-0")
            await world.at_rest()
    assert len(logs.of("kubelet does not say who holds which devices")) == 1
    assert len(logs.of("kubelet says again who holds which devices")) == 1


@in_fake_time
async def test_kubelet_is_not_asked_for_ever_about_what_it_never_shows() -> None:
    async with HandoverNode(bound("p", A, "", inits=1)).running() as world:
        await world.ask("GPU-a-0")
        await world.at_rest(100)
        before = world.resources.calls
        await world.at_rest(1000)
        assert world.resources.calls == before


# -- what was left behind


@pytest.mark.parametrize(
    ("pod", "holds", "phase"),
    [
        (bound("p", A), True, "success"),
        (bound("p", A, status="Running"), False, "success"),
        (bound("p", A, status="Failed"), False, "failed"),
        (bound("p", A), False, "allocating"),
        (bound("p", A, annotations={TO_ALLOCATE: "a,b:;"}), True, "allocating"),
    ],
    ids=["holds devices", "runs", "failed", "still waits", "unreadable"],
)
@in_fake_time
async def test_a_handover_that_a_crash_left_open_is_ended(pod: Pod, holds: bool, phase: str) -> None:
    world = HandoverNode(pod, inherited=True)
    if holds:
        world.resources.holds("p", "c0", "GPU-a-0")
        world.resources.holds("p", "unknown", "GPU-a-1")
        world.resources.holds("unknown", "c0", "GPU-a-2")
    async with world.running():
        await world.at_rest()
        assert world.api.phase("p") == phase


@in_fake_time
async def test_devices_of_an_older_pod_of_the_same_name_are_not_the_new_ones() -> None:
    world = HandoverNode()
    world.resources.holds("p", "c0", "GPU-a-0")
    async with world.running():
        await world.at_rest()
        world.api.put(bound("p", A))
        await world.at_rest()
        assert world.api.phase("p") == "allocating"
        assert (await world.ask("GPU-a-1"))["pod"] == "p"


@pytest.mark.parametrize(
    ("owner", "stays"),
    [
        (bound("p", A, phase="success"), False),
        (bound("p", A, phase="failed"), False),
        (bound("p", A, status="Failed"), False),
        (None, False),
        (bound("p", A), True),
    ],
    ids=["handed over", "failed", "ended", "gone", "waiting"],
)
@in_fake_time
async def test_a_lock_whose_owner_needs_it_no_more_is_released(owner: Pod | None, stays: bool) -> None:
    async with HandoverNode(*([owner] if owner is not None else []), lock="p").running() as world:
        await world.at_rest()
        assert (world.api.lock_text is not None) is stays
        if not stays and owner is None:
            assert world.count("repairs", what="lock") == 1


@pytest.mark.parametrize(
    ("node", "stays"), [("", True), ("elsewhere", False)], ids=["not bound yet", "bound elsewhere"]
)
@in_fake_time
async def test_a_lock_is_taken_before_its_pod_is_bound(node: str, stays: bool) -> None:
    world = HandoverNode()
    world.api.fake.pods["default/p"] = on_node(bound("p", A, phase="failed"), node)
    world.api.lock_for("p")
    async with world.running():
        await world.at_rest()
        assert (world.api.lock_text is not None) is stays


def on_node(pod: Pod, node: str) -> Pod:
    return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, node_name=node))


@in_fake_time
async def test_a_lock_whose_owner_cannot_be_looked_up_is_left() -> None:
    world = HandoverNode()
    world.api.lock_for("p")
    world.api.fake.always("get_pod", lost_answer())
    async with world.running():
        await world.at_rest()
        assert world.api.lock_text is not None
        world.api.fake.always("get_pod", None)
        world.api.fake.always("annotate_node", refused(500))
        await world.at_rest()
        assert world.count("repairs", what="lock") == 0


@in_fake_time
async def test_settings_and_mode_may_change_between_calls() -> None:
    async with HandoverNode(bound("p", A, downward_api=[0]), bound("q", A, downward_api=[0])).running() as world:
        assert await world.gets("p", "c0", "GPU-a-0") == {"welcome": "yes"}
        await world.at_rest()
        world.agent.use(AgentSettings(node_name=NODE, pass_device_specs=True), Mode(), None)
        assert (await world.ask("GPU-a-1"))["pod"] == "q"


@in_fake_time
async def test_what_cannot_be_written_in_time_is_counted_at_the_end() -> None:
    world = HandoverNode(bound("p", A))
    world.api.fake.always("annotate_pod", refused(503))
    async with world.running():
        await world.ask("GPU-a-0")
        assert await world.agent.flush(3.0) == 1
        world.api.fake.always("annotate_pod", None)
        assert await world.agent.flush(60.0) == 0
        assert world.api.phase("p") == "success"


@in_fake_time
async def test_a_pod_that_kubelet_gave_up_after_its_answer_does_not_refuse_the_next() -> None:
    async with HandoverNode(bound("p", A, downward_api=[0]), bound("q", B, downward_api=[0])).running() as world:
        await world.ask("GPU-a-0")
        # kubelet gave that pod up; its devices are free and its status is not known yet.
        assert await world.ask("GPU-a-1") == {"welcome": "yes"}
        assert await world.gets("q", "c0", "GPU-a-2") == {"welcome": "yes"}
        world.api.status("p", "Failed")
        await world.at_rest()
        assert (world.api.phase("p"), world.api.phase("q")) == ("failed", "success")
        with pytest.raises(AllocationRefused):
            await world.ask("GPU-a-3")


@in_fake_time
async def test_answers_of_pods_that_run_are_not_kept() -> None:
    async with HandoverNode().running() as world:
        for number in range(20):
            world.api.put(bound(f"p{number}", A, "", B, inits=1, downward_api=[0, 2] if number % 2 else []))
            await world.ask(f"i{number}")
            await world.gets(f"p{number}", "c2", f"i{number}")
            world.api.status(f"p{number}", "Running")
        await world.at_rest()
        assert (list(world.agent._state), world.events) == ([], [])
