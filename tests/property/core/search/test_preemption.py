"""Victims against the best of all sets on all nodes, each tried by the plain rule.

A set is found wherever there is one, none has a higher priority than needed, and no pod of it could stay. How many more
pods leave than in the best set is counted on a fixed sample, and bounded.

`PREEMPTIONS=10000 pytest tests/property/core/search/test_preemption.py` tries so many random clusters of each kind.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from tessera.core.ledger.ledger import Ledger, facts_of
from tessera.core.model.devices import HAMI_CORE, MIG, Device, NodeFacts
from tessera.core.model.requests import ContainerRequest, PodRequest, Request
from tessera.core.search.preemption import Preemption, VictimSet
from tessera.core.search.selection import Selected, Selector
from tessera.core.search.victims import PodTraits
from tests.support import strategies as some
from tests.support.pod_book import PlainBook, brute_force, fits_without

MAX_ON_A_NODE = 7
"""pods; brute force tries 2 to the power of this sets per node"""
EXAMPLES = int(os.environ.get("PREEMPTIONS", "0"))
"""random clusters; 0 = as many as the profile says"""
DENSE_CASES = max(EXAMPLES, 25)
MAX_EXTRA = 1 / 20
"""pods that leave beyond those of the best set, per case"""
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
def test_on_full_cards_victims_are_found_wherever_there_are_some(drawn: tuple[World, PodRequest]) -> None:
    check(*drawn)


@given(worlds())
@LIVES
def test_victims_are_found_wherever_there_are_some(drawn: tuple[World, PodRequest]) -> None:
    check(*drawn)


def check(world: World, pod: PodRequest) -> None:
    names = world.ledger.node_names()
    candidates = world.selector.candidates(names)
    if not pod.asks_for_devices or isinstance(world.selector.select(pod, candidates), Selected):
        return
    found = Preemption(world.selector, world.book).find_for_pod(pod, priority=9, candidates=candidates)
    lowest = world.book.lowest_priority
    best = brute_force(world.ledger, world.book, pod, priority=9, nodes=names)
    if lowest is None or lowest >= 9:
        assert found is None
        return
    event("none" if best is None else f"{len(best[2])} victims")
    if found is None or best is None:
        assert (found is None) is (best is None)
        return
    assert found.cost.highest == best[0].highest, "a higher priority than needed"
    check_minimal(world.ledger, world.book, pod, found)


def check_minimal(ledger: Ledger, book: PlainBook, pod: PodRequest, found: VictimSet) -> None:
    """The victims are enough, and no unit of them could stay."""
    gone = {*found.victims, *found.leaving}
    assert fits_without(ledger, pod, found.node, gone)
    for uid in found.victims:
        unit = set(book.members(book.pods[uid].group)) if book.pods[uid].group else {uid}
        assert not fits_without(ledger, pod, found.node, gone - unit), f"{uid} could stay"


# -- how many more leave


def dense_world(rng: random.Random) -> tuple[Ledger, Selector, PlainBook, PodRequest]:
    """Full cards with many small pods, and a pod that needs much."""
    ledger = Ledger(some.VENDORS)
    selector, book = Selector(ledger), PlainBook(allowed={"one": 1, "many": 5})
    for name in some.NODES[: rng.randint(1, 2)]:
        mig = rng.random() < 0.25
        mode, profiles = (MIG, some.MIG_PROFILES) if mig else (HAMI_CORE, ())
        cards = (
            Device(
                f"{name}-{i}",
                "NVIDIA",
                i,
                slots=rng.choice((4, 8)),
                memory=8 * some.SLICE,
                model="A100",
                numa=rng.randint(0, 1),
                mode=mode,
                mig_profiles=profiles,
            )
            for i in range(rng.randint(1, 4))
        )
        ledger.observe_node(NodeFacts(name, tuple(cards)))
    for number in range(26):
        request = dense_request(rng, f"pod-{number:02}", counts=(1, 1, 1, 1, 2), sizes=(1, 1, 2, 2, 3, 4))
        names = [name for name in ledger.node_names() if len(ledger.pods_on(name)) < 9]
        answer = selector.select(request, names)
        if isinstance(answer, Selected):
            uid = request.uid
            ledger.observe_pod(facts_of(request, answer.placement))
            priority, started = rng.choice((0, 0, 0, 5)), rng.choice((100, 200, 300))
            group, is_leaving = rng.choice(("",) * 10 + ("g", "h")), rng.random() < 0.03
            book.pods[uid] = PodTraits(
                uid, "team", uid, priority=priority, started=started, group=group, is_leaving=is_leaving
            )
            book.budgets_of[uid] = rng.choice(((), (), (), (), ("one",), ("many",)))
    return ledger, selector, book, dense_request(rng, "preemptor", counts=(1, 1, 2, 3), sizes=(4, 5, 6, 8))


def dense_request(rng: random.Random, uid: str, *, counts: Sequence[int], sizes: Sequence[int]) -> PodRequest:
    containers = tuple(
        ContainerRequest(
            f"c{i}",
            requests=(
                Request(
                    "NVIDIA",
                    count=rng.choice(counts),
                    memory=some.SLICE * rng.choice(sizes),
                    cores=rng.choice((0, 0, 10, 25)),
                ),
            ),
        )
        for i in range(rng.choice((1, 1, 1, 2)))
    )
    policy = rng.choice(("spread", "binpack", "mutex", "topology-aware"))
    return PodRequest(uid, "team-a", uid, containers, numa_bind=rng.random() < 0.2, device_policy=policy)


def test_hardly_more_pods_leave_than_in_the_best_set() -> None:
    rng, counts = random.Random(1), Counter[str]()
    while counts["cases"] < DENSE_CASES:
        ledger, selector, book, pod = dense_world(rng)
        names = ledger.node_names()
        candidates = selector.candidates(names)
        if isinstance(selector.select(pod, candidates), Selected):
            continue
        before = ledger.state()
        found = Preemption(selector, book).find_for_pod(pod, priority=9, candidates=candidates)
        assert ledger.state() == before
        best = brute_force(ledger, book, pod, priority=9, nodes=names)
        if found is None or best is None:
            assert (found is None) is (best is None)
            continue
        assert found.cost.highest == best[0].highest, "a higher priority than needed"
        check_minimal(ledger, book, pod, found)
        counts["cases"] += 1
        counts["best"] += (found.cost, found.node, found.victims) == best
        counts["more"] += found.cost.pods - best[0].pods
    print(dict(counts))
    assert counts["more"] <= MAX_EXTRA * counts["cases"], counts
