"""The victims that are found are the optimum: the best of all sets on all nodes, each tried by the plain rule.

`PREEMPTIONS=10000 pytest tests/property/core/test_preemption.py` tries so many random clusters of each kind.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from tessera.core.devices import HAMI_CORE, MIG, Device, NodeFacts
from tessera.core.ledger import Ledger, facts_of
from tessera.core.preemption import Preemption
from tessera.core.requests import ContainerRequest, PodRequest, Request
from tessera.core.selection import Selected, Selector
from tessera.core.victims import PodTraits
from tests.support import strategies as some
from tests.support.pod_book import PlainBook, brute_force

MAX_ON_A_NODE = 7
"""pods; brute force tries 2 to the power of this sets per node"""
EXAMPLES = int(os.environ.get("PREEMPTIONS", "0"))
"""random clusters; 0 = as many as the profile says"""
LIVES = settings(suppress_health_check=list(HealthCheck), deadline=None)
if EXAMPLES:
    LIVES = settings(LIVES, max_examples=EXAMPLES)
    pytestmark = pytest.mark.timeout(0)


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
        self.place(draw, draw(some.pod_requests(self.pool, uid)))

    def place(self, draw: st.DrawFn, request: PodRequest) -> None:
        uid = request.uid
        names = [name for name in self.ledger.node_names() if len(self.ledger.pods_on(name)) < MAX_ON_A_NODE]
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


# -- full cards: most of these preempt


def small_card(draw: st.DrawFn, node: str, index: int, *, mig: bool) -> Device:
    return Device(
        f"{node}-{index}",
        "NVIDIA",
        index,
        slots=draw(st.sampled_from((2, 4, 8))),
        memory=8 * some.SLICE,
        model="A100",
        numa=draw(st.integers(0, 1)),
        mode=MIG if mig else HAMI_CORE,
        mig_profiles=some.MIG_PROFILES if mig else (),
    )


def ask(draw: st.DrawFn, uid: str, *, counts: Sequence[int], least: int) -> PodRequest:
    containers = tuple(
        ContainerRequest(
            f"c{number}",
            requests=(
                Request(
                    "NVIDIA",
                    count=draw(st.sampled_from(counts)),
                    memory=some.SLICE * draw(st.sampled_from([size for size in (1, 2, 4, 8) if size >= least])),
                    cores=draw(st.sampled_from((0, 0, 10, 100))),
                ),
            ),
        )
        for number in range(draw(st.sampled_from((1, 1, 1, 2))))
    )
    policy = draw(st.sampled_from(("spread", "binpack", "mutex", "topology-aware")))
    return PodRequest(
        uid,
        "team-a",
        uid,
        containers,
        numa_bind=draw(st.booleans()),
        device_policy=policy,
        limits=draw(some.rule_limits()),
    )


class FullWorld(World):
    """Few cards, filled by pods of a few sizes."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.ledger = Ledger(some.VENDORS)
        self.selector = Selector(self.ledger)
        self.book = PlainBook(allowed={"none": 0, "one": 1, "many": 5})
        for name in some.NODES[: draw(st.integers(1, 2))]:
            in_mig = st.sampled_from(draw(st.sampled_from(((False,), (False,), (True,), (False, True)))))
            cards = tuple(small_card(draw, name, index, mig=draw(in_mig)) for index in range(draw(st.integers(1, 3))))
            self.ledger.observe_node(NodeFacts(name, cards))
        for number in range(draw(st.integers(4, 12))):
            self.place(draw, ask(draw, f"pod-{number:02}", counts=(1, 1, 1, 2), least=1))


@st.composite
def full_worlds(draw: st.DrawFn) -> tuple[World, PodRequest]:
    return FullWorld(draw), ask(draw, "preemptor", counts=(1, 1, 2, 3), least=2)


@given(full_worlds())
@LIVES
def test_on_full_cards_the_victims_are_the_best_of_all_sets(drawn: tuple[World, PodRequest]) -> None:
    check(*drawn)


@given(worlds())
@LIVES
def test_the_victims_are_the_best_of_all_sets(drawn: tuple[World, PodRequest]) -> None:
    check(*drawn)


def check(world: World, pod: PodRequest) -> None:
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
