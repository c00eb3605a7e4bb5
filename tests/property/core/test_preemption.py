"""The victims that are found are the optimum: the best of all sets on all nodes, each tried by the plain rule."""

from __future__ import annotations

import os
from collections.abc import Sequence

from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from tessera.core.ledger import Ledger, facts_of
from tessera.core.preemption import Preemption
from tessera.core.requests import PodRequest
from tessera.core.selection import Selected, Selector
from tessera.core.victims import PodTraits
from tests.support import strategies as some
from tests.support.pod_book import PlainBook, brute_force

MOST_ON_A_NODE = 7
"""pods; brute force tries 2 to the power of this sets per node"""
EXAMPLES = int(os.environ.get("PREEMPTIONS", "0"))
"""random clusters; 0 = as many as the profile says"""
LIVES = settings(suppress_health_check=list(HealthCheck), deadline=None)
if EXAMPLES:
    LIVES = settings(LIVES, max_examples=EXAMPLES)


@st.composite
def traits(draw: st.DrawFn, uid: str) -> PodTraits:
    return PodTraits(
        uid,
        "team",
        uid,
        priority=draw(st.sampled_from((0, 0, 5, 9))),
        started=draw(st.sampled_from((100, 200, 300))),
        is_leaving=draw(st.integers(0, 7)) == 0,
        protection="protected" if draw(st.integers(0, 9)) == 0 else "",
        group=draw(st.sampled_from(("", "", "", "", "g", "h"))),
    )


class World:
    """Full nodes with pods of several priorities."""

    def __init__(self, draw: st.DrawFn, pool: Sequence[str]) -> None:
        self.pool = pool
        self.ledger = Ledger(some.VENDORS)
        self.selector = Selector(self.ledger)
        self.book = PlainBook(allowed={"none": 0, "one": 1, "many": 5})
        for number in range(draw(st.integers(1, 3))):
            self.ledger.observe_node(draw(some.nodes(some.NODES[number], pool)))
        for quota in draw(st.lists(some.quotas(pool), max_size=1)):
            self.ledger.observe_quota(quota)
        for number in range(draw(st.integers(1, 14))):
            self.add_pod(draw, f"pod-{number:02}")

    def add_pod(self, draw: st.DrawFn, uid: str) -> None:
        request = draw(some.pod_requests(self.pool, uid))
        names = [name for name in self.ledger.node_names() if len(self.ledger.pods_on(name)) < MOST_ON_A_NODE]
        answer = self.selector.select(request, names)
        if isinstance(answer, Selected):
            self.ledger.observe_pod(facts_of(request, answer.placement))
            self.book.pods[uid] = draw(traits(uid))
            budget = draw(st.sampled_from(((), (), (), ("none",), ("one",), ("many",), ("one", "many"))))
            self.book.budgets_of[uid] = budget


@st.composite
def worlds(draw: st.DrawFn) -> tuple[World, PodRequest]:
    pool = draw(some.pools)
    world = World(draw, pool)
    return world, draw(some.pod_requests(pool, "preemptor"))


@given(worlds())
@LIVES
def test_the_victims_are_the_best_of_all_sets(drawn: tuple[World, PodRequest]) -> None:
    world, pod = drawn
    names = world.ledger.node_names()
    candidates = world.selector.candidates(names)
    if not pod.asks_for_devices or isinstance(world.selector.select(pod, candidates), Selected):
        return
    found = Preemption(world.selector, world.book).find(pod, priority=9, candidates=candidates)
    lowest = world.book.lowest_priority
    best = brute_force(world.ledger, world.book, pod, priority=9, nodes=names)
    if lowest is None or lowest >= 9:
        assert found is None
        return
    event("none" if best is None else f"{len(best[2])} victims")
    assert (found and found.rank) == best
