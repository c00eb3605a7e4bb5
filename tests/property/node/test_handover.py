"""Whatever is bound at once and in whatever order kubelet asks, no container gets another one's slice."""

from __future__ import annotations

import random
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from tessera.wire.objects import Pod
from tests.support.event_loops import in_fake_time
from tests.support.handover_node import HandoverNode, bound
from tests.support.mixing import Kubelet, Plan
from tests.support.strategies import examples

SLICES = ("a/1/1", "a/2/1", "b/1/1", "a/1/1 b/1/1", "a/2/1 b/2/1", "c/1/1 b/1/1")


@st.composite
def plans(draw: st.DrawFn) -> list[Plan]:
    """Pods that a scheduler of ours would have on one node at once, in the order of binding."""
    found: list[Plan] = []
    for number in range(draw(st.integers(1, 7))):
        like = draw(st.sampled_from([None, *found]))
        containers = like.containers if like else tuple(draw(st.lists(st.sampled_from(("", *SLICES)), max_size=3)))
        inits = like.inits if like else draw(st.integers(0, max(len(containers) - 1, 0)))
        plan = Plan(f"p{number}", containers, inits, draw(st.booleans()))
        dependent = [each for each in found if not each.uses_downward_api]
        if any(containers) and (plan.uses_downward_api or not any(plan.excludes(each) for each in dependent)):
            found.append(plan)
    return found


def pods(admitted: Sequence[Plan]) -> list[Pod]:
    return [
        bound(
            plan.name,
            *plan.containers,
            inits=plan.inits,
            downward_api=list(range(len(plan.containers))) if plan.uses_downward_api else [],
            at=at,
        )
        for at, plan in enumerate(admitted)
    ]


@examples(1.5)
@given(plans(), st.randoms(use_true_random=True), st.booleans(), st.booleans())
@in_fake_time
async def test_pods_that_may_be_bound_at_once_are_never_mixed_up(
    admitted: list[Plan], rng: random.Random, speaks: bool, rests: bool
) -> None:
    async with HandoverNode(*pods(admitted), resources=speaks).running() as world:
        kubelet = Kubelet(world, rng)
        for plan in rng.sample(admitted, len(admitted)):
            await kubelet.admit(plan, gives_up=False)
            if rests:
                await world.at_rest(1)
        assert kubelet.wrong == []
        mixed = any(plan.uses_downward_api for plan in admitted) and not all(
            plan.uses_downward_api for plan in admitted
        )
        hidden = not speaks or any(plan.inits for plan in admitted)
        # Where kubelet does not say who holds what, a mixture may have to be refused.
        assert kubelet.refused == [] or (mixed and hidden), kubelet.refused
        for plan in admitted:
            world.api.status(plan.name, "Running")
        await world.at_rest()
        if not kubelet.refused:
            assert {world.api.phase(plan.name) for plan in admitted} <= {"success"}
            assert world.events == []


@examples(1.5)
@given(plans(), st.randoms(use_true_random=True))
@in_fake_time
async def test_pods_that_kubelet_gives_up_half_way_mix_nobody_up(admitted: list[Plan], rng: random.Random) -> None:
    # Init containers are not shown by kubelet, so what it gave up in them cannot be told.
    plain = [plan for plan in admitted if not plan.inits]
    async with HandoverNode(*pods(plain)).running() as world:
        kubelet = Kubelet(world, rng)
        for plan in rng.sample(plain, len(plain)):
            await kubelet.admit(plan, gives_up=rng.random() < 0.3)
        assert kubelet.wrong == []


@examples(1.5)
@given(plans(), st.integers(0, 3), st.randoms(use_true_random=True))
@in_fake_time
async def test_an_agent_that_restarts_without_its_checkpoint_mixes_no_containers_up(
    admitted: list[Plan], answered: int, rng: random.Random
) -> None:
    """And nothing was written to the API, so that only kubelet can tell which containers were answered."""
    dependent = [plan for plan in admitted if not plan.uses_downward_api][:1]
    async with HandoverNode(*pods(dependent), inherited=True).running() as world:
        kubelet = Kubelet(world, rng)
        for plan in dependent:
            await kubelet.admit(plan, answered=answered)
        assert kubelet.wrong == []


@examples(1)
@given(
    st.lists(st.lists(st.sampled_from(SLICES), min_size=1, max_size=2), min_size=1, max_size=5),
    st.randoms(use_true_random=True),
)
@in_fake_time
async def test_pods_that_never_should_be_bound_at_once_are_refused_rather_than_mixed_up(
    shapes: list[list[str]], rng: random.Random
) -> None:
    admitted = [Plan(f"p{number}", tuple(shape), 0, False) for number, shape in enumerate(shapes)]
    async with HandoverNode(*pods(admitted)).running() as world:
        kubelet = Kubelet(world, rng)
        for plan in rng.sample(admitted, len(admitted)):
            await kubelet.admit(plan, gives_up=False)
            if any(text.startswith(f"{plan.name}/") for text in kubelet.refused):
                world.api.status(plan.name, "Failed")
        assert kubelet.wrong == []
