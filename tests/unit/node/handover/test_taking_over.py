"""kubelet gives a container the devices of its pod's init containers: whose ids come again says who is asking."""

from __future__ import annotations

import pytest

from tessera.node.handover.progress import Progress
from tessera.node.handover.records import Record
from tessera.node.handover.steering import Steering
from tessera.wire.objects import Pod
from tests.support.event_loops import in_fake_time
from tests.unit.node.handover.world import World, bound, claims, view

A, B, C = "a/1/1", "a/2/1", "b/3/1"


def pod_with_init(name: str, *slices: str, carried: bool, at: int) -> Pod:
    return bound(name, *slices, inits=1, carried=range(len(slices)) if carried else (), at=at)


async def whose(world: World, *ids: str) -> str:
    answer = await world.ask(*ids)
    return answer.get("what", "")


@in_fake_time
async def test_a_container_after_an_init_container_that_could_be_anybodys_is_told_by_its_devices() -> None:
    """The first call is a carried pod's, though the slice of p was answered; the second has the same device."""
    p, x = pod_with_init("p", A, B, carried=False, at=0), pod_with_init("x", A, A, carried=True, at=1)
    init, app = claims(p)
    async with World(p, x).running() as world:
        assert await whose(world, "i") == repr(init.what)
        assert await whose(world, "i") == repr(app.what)
        world.resources.holds("x", "c1", "i")
        # x has ended its turn: now p itself asks, with a device of its own.
        assert await whose(world, "j") == repr(init.what)
        assert await whose(world, "j") == repr(app.what)
        world.resources.holds("p", "c1", "j")
        await world.at_rest()
        assert world.api.phase("p") == "success"


@in_fake_time
async def test_an_init_container_that_an_earlier_process_answered_is_not_asked_for_again() -> None:
    p = bound("p", A, B, inits=1)
    init, app = claims(p)
    async with World(p, earlier=[Record(("i",), init)]).running() as world:
        assert await whose(world, "i") == repr(app.what)


@in_fake_time
async def test_an_init_container_whose_answer_was_lost_with_kubelet_gets_it_again() -> None:
    p = bound("p", A, B, inits=1)
    init, app = claims(p)
    async with World(p, earlier=[Record(("i",), init)]).running() as world:
        assert await whose(world, "j") == repr(init.what)
        assert await whose(world, "j") == repr(app.what)


@in_fake_time
async def test_answers_of_an_earlier_process_for_pods_that_are_gone_are_forgotten() -> None:
    gone, p = bound("gone", A), bound("p", B)
    (left,) = claims(gone)
    async with World(p, earlier=[Record(("i",), left)]).running() as world:
        await world.ask("j")
        assert not world.agent.progress.has_restored


@in_fake_time
async def test_an_init_container_whose_answer_a_restarted_kubelet_lost_gets_it_again() -> None:
    p = bound("p", A, B, inits=1)
    init, app = claims(p)
    async with World(p).running() as world:
        assert await whose(world, "i") == repr(init.what)
        world.agent.progress.kubelet_is_new()
        assert await whose(world, "j") == repr(init.what)
        assert await whose(world, "j") == repr(app.what)


@in_fake_time
async def test_a_restarted_kubelet_that_kept_the_answer_goes_on_with_its_devices() -> None:
    p = bound("p", A, B, inits=1)
    init, app = claims(p)
    async with World(p).running() as world:
        assert await whose(world, "i") == repr(init.what)
        world.agent.progress.kubelet_is_new()
        assert await whose(world, "i") == repr(app.what)


@in_fake_time
async def test_the_question_before_one_container_says_nothing_of_the_next() -> None:
    p = bound("p", A, B, inits=1)
    init, app = claims(p)
    async with World(p).running() as world:
        (chosen,) = world.prefer("GPU-a::0", "GPU-a::1")
        assert await whose(world, chosen) == repr(init.what)
        world.agent.progress.kubelet_is_new()
        assert await whose(world, chosen) == repr(app.what)


@in_fake_time
async def test_nobody_is_steered_while_it_is_not_known_whether_kubelet_has_the_last_answer() -> None:
    p = bound("p", A, B, inits=1)
    init, app = claims(p)
    async with World(p).running() as world:
        assert await whose(world, "i") == repr(init.what)
        world.agent.progress.kubelet_is_new()
        assert world.prefer("GPU-a::0", "GPU-a::1") == []
        assert await whose(world, "GPU-a::0") == repr(init.what)
        assert await whose(world, "GPU-a::0") == repr(app.what)


QUESTIONS = [
    ((["a", "b"], [], 1), ["a"], frozenset()),
    ((["a", "b", "c"], ["c"], 2), ["c", "a"], frozenset({"c"})),
    ((["a", "b"], [], 1), ["c"], None),
    ((["a", "b"], [], 1), ["a", "b"], None),
    ((["a", "b"], ["b"], 1), ["a"], None),
]


@pytest.mark.parametrize(("question", "ids", "taken_over"), QUESTIONS)
def test_a_question_tells_what_is_taken_over_by_the_call_that_it_was_for(
    question: tuple[list[str], list[str], int], ids: list[str], taken_over: frozenset[str] | None
) -> None:
    steering = Steering()
    assert steering.taken_over(ids) is None
    steering.asked(*question)
    assert steering.taken_over(ids) == taken_over
    assert steering.taken_over(ids) is None


def test_devices_that_nobody_was_seen_to_have_tell_nothing() -> None:
    progress, pods = Progress(), [view(bound("p", A, B, inits=1)), view(bound("q", C))]
    assert progress.waiting(pods, taken_over=["i"]) == progress.waiting(pods)


def test_who_takes_over_devices_is_none_of_the_pods_that_never_had_them() -> None:
    progress, pods = Progress(), [view(bound("p", A, B, inits=1)), view(bound("q", C))]
    init, app = pods[0].left
    progress.gave(["i"], init, [init], certain=True, pod=pods[0])
    assert [pod.claims for pod in progress.waiting(pods, taken_over=["i"])] == [(app,)]
