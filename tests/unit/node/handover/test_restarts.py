"""kubelet or the agent restarts in the middle of a handover: every container still gets its own slice."""

from __future__ import annotations

import pytest

from tessera.node.handover.checkpoint import Record
from tessera.node.modes.base import AllocationRefused
from tessera.wire.objects import Pod
from tests.support.event_loops import in_fake_time
from tests.support.fake_cluster import refused
from tests.support.handover_node import HandoverNode, bound, claims

A, B, C = "a/1/1", "a/2/1", "b/3/1"
INIT = bound("p", A, B, inits=1)


def answered(ids: str, position: int = 0, pod: Pod = INIT) -> list[Record]:
    claim = claims(pod)[position]
    return [Record((ids,), claim, (claim.key,))]


async def restarted(world: HandoverNode) -> HandoverNode:
    """A new agent beside the same kubelet, whose predecessor could write nothing to the API."""
    return HandoverNode(api=world.api, kubelet=world.resources, earlier=list(world.checkpoint))


# -- the agent


@pytest.mark.parametrize("speaks", [True, False], ids=["kubelet says", "kubelet silent"])
@in_fake_time
async def test_a_restarted_agent_goes_on_where_kubelet_is(speaks: bool) -> None:
    first = HandoverNode(bound("p", A, B, C))
    first.api.fake.always("annotate_pod", refused(503))
    async with first.running():
        await first.gets("p", "c0", "GPU-a-0")
        await first.gets("p", "c1", "GPU-a-1")
    first.api.fake.always("annotate_pod", None)
    if not speaks:
        first.resources.error = OSError("no such socket")
    second = await restarted(first)
    async with second.running():
        if speaks:
            assert (await second.gets("p", "c2", "GPU-b-0"))["container"] == "c2"
            await second.at_rest()
            assert (second.api.phase("p"), second.api.left("p")) == ("success", ";;;")
        else:
            # kubelet may not have stored the last answer, and does not say.
            with pytest.raises(AllocationRefused, match="different slices"):
                await second.ask("GPU-b-0")


@in_fake_time
async def test_a_restarted_agent_learns_from_kubelet_what_its_lost_checkpoint_does_not_say() -> None:
    world = HandoverNode(bound("p", A, B), inherited=True)
    world.resources.holds("p", "c0", "GPU-a-0")
    world.resources.delay = 0.5
    async with world.running():
        assert (await world.ask("GPU-a-1"))["container"] == "c1"


@pytest.mark.parametrize(
    ("inits", "earlier", "asked"),
    [
        (1, [("i", 0)], [("i", "c1")]),
        (1, [("i", 0)], [("j", "c0"), ("j", "c1")]),
        (1, [("i", 0), ("i", 1)], [("i", "c1")]),
        (1, [("i", 0), ("j", 0)], [("k", "c0")]),
        (0, [("i", 0), ("j", 0)], [("k", "c0")]),
    ],
    ids=["init kept", "init lost", "app lost", "second answer of init lost too", "second answer of app lost too"],
)
@in_fake_time
async def test_after_both_restarted_kubelet_is_answered_again_what_it_lost_and_only_that(
    inits: int, earlier: list[tuple[str, int]], asked: list[tuple[str, str]]
) -> None:
    pod = bound("p", A, B, inits=inits)
    records = [record for ids, position in earlier for record in answered(ids, position, pod)]
    async with HandoverNode(pod, earlier=records).running() as world:
        for ids, container in asked:
            assert (await world.ask(ids))["container"] == container


@in_fake_time
async def test_answers_for_pods_that_went_while_no_agent_was_there_are_forgotten() -> None:
    async with HandoverNode(bound("q", C), earlier=answered("i")).running() as world:
        await world.at_rest()
        assert (list(world.checkpoint), list(world.agent._state)) == ([], [])
        assert (await world.ask("i"))["pod"] == "q"


# -- the agent, and no record of what an earlier process answered


def ask_first(world: HandoverNode) -> str:
    """kubelet asks which device it should take, because it cannot reuse as many as it needs."""
    (chosen,) = world.prefer("GPU-a::0", "GPU-a::1", "GPU-b::0") or ["GPU-a::1"]
    return chosen


async def without_record(world: HandoverNode) -> HandoverNode:
    """A new agent whose predecessor could write neither to the API nor to its disk."""
    return HandoverNode(api=world.api, kubelet=world.resources)


@in_fake_time
async def test_an_app_container_does_not_get_the_slice_of_an_init_container_whose_answer_no_record_shows() -> None:
    first = HandoverNode(INIT)
    first.api.fake.always("annotate_pod", refused(503))
    async with first.running():
        ids = ask_first(first)
        assert (await first.ask(ids))["container"] == "c0"
    first.api.fake.always("annotate_pod", None)
    second = await without_record(first)
    async with second.running():
        with pytest.raises(AllocationRefused, match=r"default/p; no record shows which of its containers"):
            await second.ask(ids)
        second.api.status("p", "Failed")
        await second.at_rest()
        assert second.api.phase("p") == "failed"


@in_fake_time
async def test_an_init_container_that_was_never_answered_is_known_by_the_question() -> None:
    async with HandoverNode(INIT, inherited=True).running() as world:
        ids = ask_first(world)
        assert (await world.ask(ids))["container"] == "c0"
        assert (await world.ask(ids))["container"] == "c1"
        world.resources.holds("p", "c1", ids)
        await world.at_rest()
        assert (world.api.phase("p"), world.events) == ("success", [])


@in_fake_time
async def test_devices_that_kubelet_must_include_need_not_be_those_of_an_init_container() -> None:
    """With NUMA nodes, kubelet takes the near ones first and asks about the others."""
    pod = bound("p", "a/1/1 b/1/1", "a/2/1 b/2/1", inits=1)
    async with HandoverNode(pod, inherited=True).running() as world:
        world.prefer("GPU-a::0", "GPU-a::1", count=2, must=["GPU-a::0"])
        with pytest.raises(AllocationRefused, match="no record shows"):
            await world.ask("GPU-a::0", "GPU-a::1")


@in_fake_time
async def test_a_container_that_needs_more_than_its_init_containers_left_leaves_nothing_to_the_next() -> None:
    """So the next one gets fresh devices only."""
    world = HandoverNode(bound("p", A, "a/1/1 b/1/1", C, inits=1), inherited=True)
    world.resources.holds("p", "c1", "i", "j")
    async with world.running():
        assert (await world.ask(ask_first(world)))["container"] == "c2"


@in_fake_time
async def test_a_sidecar_that_kubelet_shows_is_followed_by_the_next_container() -> None:
    pod = bound("p", A, B, C, inits=1, sidecars=1)
    world = HandoverNode(pod, inherited=True)
    world.resources.holds("p", "c0", "GPU-a::0")
    async with world.running():
        assert (await world.ask("GPU-a::1"))["container"] == "c1"


@pytest.mark.parametrize(
    ("containers", "inits", "ids", "container"),
    [
        ([A], 0, ["i"], "c0"),
        ([A, ""], 1, ["i"], "c0"),
        ([A, B], 0, ["i"], "c0"),
        ([A, A], 1, ["i"], "c0"),
        ([A, "a/1/1 b/1/1"], 1, ["i"], "c0"),
        ([A, "a/1/1 b/1/1"], 1, ["i", "j"], "c1"),
    ],
    ids=["one container", "one with devices", "kubelet shows none", "equal slices", "init by count", "app by count"],
)
@in_fake_time
async def test_a_pod_without_record_is_served_where_only_one_slice_can_be_meant(
    containers: list[str], inits: int, ids: list[str], container: str
) -> None:
    async with HandoverNode(bound("p", *containers, inits=inits), inherited=True).running() as world:
        assert (await world.ask(*ids))["container"] == container


@in_fake_time
async def test_a_pod_of_equal_slices_goes_on_to_another_slice_only_when_kubelet_shows_where_it_is() -> None:
    async with HandoverNode(bound("p", A, A, B, inits=1), inherited=True).running() as world:
        # The earlier process answered the init container, whose device the first app container reuses.
        await world.gets("p", "c1", "i")
        assert (await world.gets("p", "c2", "j"))["container"] == "c2"
        await world.at_rest()
        assert (world.api.phase("p"), world.events) == ("success", [])


@in_fake_time
async def test_an_equal_slice_does_not_tell_which_container_comes_next_once_kubelet_is_silent() -> None:
    async with HandoverNode(bound("p", A, A, B, inits=1), inherited=True).running() as world:
        assert (await world.ask("GPU-a::0"))["what"] == repr(claims(INIT)[0].what)
        world.resources.error = OSError("no such socket")
        ids = ask_first(world)
        with pytest.raises(AllocationRefused, match="no record shows"):
            await world.ask(ids)


@in_fake_time
async def test_devices_of_an_answer_that_another_pod_may_have_got_still_show_what_follows_it() -> None:
    other = bound("d", C, downward_api=[0], at=1)
    async with HandoverNode(INIT, other, inherited=True, resources=False).running() as world:
        ids = ask_first(world)
        assert (await world.ask(ids))["container"] == "c0"
        assert (await world.ask(ids))["container"] == "c1"


@in_fake_time
async def test_an_answer_that_another_pod_may_have_got_is_no_record() -> None:
    other = bound("d", C, downward_api=[0], at=1)
    async with HandoverNode(INIT, other, inherited=True, resources=False).running() as world:
        assert (await world.ask(ask_first(world)))["container"] == "c0"
        with pytest.raises(AllocationRefused, match="no record shows"):
            await world.ask("i")


# -- kubelet


@pytest.mark.parametrize(
    ("inits", "speaks", "before", "ids", "container"),
    [
        (1, True, 1, "j", "c0"),
        (1, True, 1, "i", "c1"),
        (0, True, 1, "j", "c0"),
        (0, True, 1, "i", "c0"),
        (1, False, 2, "i", "c1"),
        (1, False, 2, "j", "c2"),
    ],
    ids=["init lost", "init kept", "app lost", "app lost, same devices", "given on, app lost", "given on, app kept"],
)
@in_fake_time
async def test_a_restarted_kubelet_is_answered_again_what_it_lost_and_only_that(
    inits: int, speaks: bool, before: int, ids: str, container: str
) -> None:
    async with HandoverNode(bound("p", A, B, C, inits=inits), resources=speaks).running() as world:
        for position in range(before):
            assert (await world.ask("i"))["container"] == f"c{position}"
        world.agent.on_new_kubelet()
        assert (await world.ask(ids))["container"] == container


@pytest.mark.parametrize("seconds", [0, 20], ids=["shown later", "shown before"])
@in_fake_time
async def test_a_restarted_kubelet_that_shows_the_last_answer_goes_on(seconds: int) -> None:
    async with HandoverNode(bound("p", A, B)).running() as world:
        await world.gets("p", "c0", "i")
        await world.at_rest(seconds)
        world.agent.on_new_kubelet()
        assert (await world.ask("j"))["container"] == "c1"


@in_fake_time
async def test_a_lost_init_container_is_known_by_the_question_even_with_the_same_devices() -> None:
    async with HandoverNode(INIT).running() as world:
        (chosen,) = world.prefer("GPU-a::0", "GPU-a::1")
        assert (await world.ask(chosen))["container"] == "c0"
        world.agent.on_new_kubelet()
        # kubelet asks which devices it should take, so it reuses none of an init container.
        assert world.prefer("GPU-a::0", "GPU-a::1") == [chosen]
        assert (await world.ask(chosen))["container"] == "c0"
        assert (await world.ask(chosen))["container"] == "c1"


@in_fake_time
async def test_an_answer_that_kubelet_has_shown_is_not_doubted_after_its_restart() -> None:
    async with HandoverNode(bound("p", A, B)).running() as world:
        await world.gets("p", "c0", "i")
        await world.at_rest(3)
        world.agent.on_new_kubelet()
        asked_before = world.resources.calls
        assert (await world.ask("j"))["container"] == "c1"
        assert world.resources.calls == asked_before


@in_fake_time
async def test_a_container_that_got_again_what_was_lost_waits_no_more() -> None:
    async with HandoverNode(bound("p", A)).running() as world:
        await world.ask("i")
        world.agent.on_new_kubelet()
        await world.gets("p", "c0", "j")
        await world.at_rest()
        assert world.api.phase("p") == "success"
        world.api.lock_for("p")
        world.api.fake.always("annotate_node", refused(503))
        with pytest.raises(AllocationRefused, match="no binding pod"):
            await world.ask("x", "y")


@in_fake_time
async def test_a_question_about_other_devices_says_nothing() -> None:
    async with HandoverNode(INIT).running() as world:
        await world.ask("i")
        world.agent.on_new_kubelet()
        world.prefer("x", "y")
        assert (await world.ask("i"))["container"] == "c1"
