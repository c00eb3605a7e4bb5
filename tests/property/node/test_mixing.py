"""Pods that use the downward API beside pods that depend on Allocate: no dependent pod ever gets another's slice."""

from __future__ import annotations

import random
from math import inf

from hypothesis import given
from hypothesis import strategies as st

from tessera.node.handover.allocator import WATCH_LAG_S
from tessera.scheduler.queue.allocation_queue import DOWNWARD_API_WAIT_S
from tests.support.event_loops import in_fake_time
from tests.support.handover_node import HandoverNode
from tests.support.mixing import Node, Plan
from tests.support.strategies import examples

SLICES = ("a/1/1", "a/2/1", "b/1/1", "a/1/1 b/1/1", "a/2/1 b/2/1")


@st.composite
def plans(draw: st.DrawFn) -> list[Plan]:
    """Pods in the order of binding; many of them equal, many with init containers."""
    found: list[Plan] = []
    for number in range(draw(st.integers(2, 9))):
        like = draw(st.sampled_from([None, *found]))
        containers = like.containers if like else tuple(draw(st.lists(st.sampled_from(SLICES), min_size=1, max_size=3)))
        inits = like.inits if like else draw(st.integers(0, len(containers) - 1))
        found.append(Plan(f"p{number}", containers, inits, draw(st.booleans())))
    return found


@examples(1)
@given(plans(), st.randoms(use_true_random=True))
@in_fake_time
async def test_no_dependent_pod_is_answered_with_anothers_slice_and_none_is_refused(
    coming: list[Plan], rng: random.Random
) -> None:
    async with HandoverNode().running() as world:
        node = Node(world, coming, rng, patience=inf, behind=0.0)
        await node.live()
        assert (node.kubelet.wrong, node.kubelet.refused) == ([], [])
        assert world.events == []


@examples(1, derandomize=True)
@given(plans(), st.randoms(use_true_random=True))
@in_fake_time
async def test_a_watch_that_is_behind_mixes_no_pods_up(coming: list[Plan], rng: random.Random) -> None:
    async with HandoverNode().running() as world:
        node = Node(world, coming, rng, patience=inf, behind=WATCH_LAG_S * 0.75)
        await node.live()
        assert node.kubelet.wrong == []


@examples(1, derandomize=True)
@given(plans(), st.randoms(use_true_random=True))
@in_fake_time
async def test_a_stuck_dependent_pod_that_others_have_passed_is_rather_refused_than_mixed_up(
    coming: list[Plan], rng: random.Random
) -> None:
    async with HandoverNode().running() as world:
        node = Node(world, coming, rng, patience=DOWNWARD_API_WAIT_S, behind=WATCH_LAG_S * 0.75)
        await node.live()
        assert node.kubelet.wrong == []


@examples(1)
@given(plans(), st.randoms(use_true_random=True))
@in_fake_time
async def test_a_scheduler_without_these_turns_may_see_refusals_but_no_wrong_slice(
    coming: list[Plan], rng: random.Random
) -> None:
    async with HandoverNode().running() as world:
        node = Node(world, coming, rng, patience=0.0, behind=0.0)
        await node.live()
        assert node.kubelet.wrong == []
