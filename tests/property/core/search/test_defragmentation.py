"""Plans against the fewest moves that any order of moves needs, and what every plan keeps.

`DEFRAGMENTATIONS=10000 pytest tests/property/core/search/test_defragmentation.py` tries so many random clusters.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from functools import partial

import pytest
from hypothesis import HealthCheck, Phase, event, given, settings
from hypothesis import strategies as st

from tessera.core.ledger.holdings import PodFacts
from tessera.core.ledger.ledger import Ledger, facts_of
from tessera.core.model.devices import HAMI_CORE, MIG, Device, MigPlacement, MigSlot, NodeFacts
from tessera.core.model.grants import Grant, Span
from tessera.core.model.requests import Constraint, ContainerRequest, PodRequest, Request, Role
from tessera.core.search import finish
from tessera.core.search.defragmentation import plan_room, plan_whole_cards
from tessera.core.search.move_bounds import MoveBounds
from tessera.core.search.move_planner import Goal
from tessera.core.search.node_victims import NodeSearch, Scratch
from tessera.core.search.relocation import MovablePod
from tessera.core.search.selection import Selected, Selector
from tessera.core.search.victims import PodTraits
from tests.support import strategies as some
from tests.support.oracles import PackedPod, PlacedInstance, fewest_instance_moves, fewest_moves
from tests.support.pod_book import PlainBook

EXAMPLES = int(os.environ.get("DEFRAGMENTATIONS", "0"))
"""random clusters; 0: few, since brute force takes tens of milliseconds for each"""
MAX_FEWER, MAX_MORE = 1, 2
"""cards that a plan may free fewer than the best one in a cluster this small, and moves that it may make more"""
LIVES = settings(suppress_health_check=list(HealthCheck), deadline=None, max_examples=EXAMPLES or 15)
if EXAMPLES:
    LIVES = settings(LIVES, phases=[Phase.reuse, Phase.generate])
    pytestmark = pytest.mark.timeout(0)

CAPACITY = 8
"""parts of a card"""
PART = 1_000
"""MiB"""
MAX_PODS = 7
"""brute force tries every order of moves of so many"""
MODELS = ("A100", "T4")


@dataclass
class World:
    """Nodes with up to four cards, some shared by pods of a few sizes."""

    ledger: Ledger
    book: PlainBook
    movable: dict[str, MovablePod]
    pods: list[PackedPod]
    cards: list[tuple[str, frozenset[int]]]
    idle: dict[str, int]


@st.composite
def worlds(draw: st.DrawFn) -> World:
    ledger, book = Ledger(some.VENDORS), PlainBook()
    cards: list[tuple[str, Device]] = []
    models = MODELS[: draw(st.sampled_from((1, 1, 2)))]
    for name in some.NODES[: draw(st.integers(1, 6))]:
        model = draw(st.sampled_from(models))
        devices = tuple(
            Device(f"{name}-{i}", "NVIDIA", i, 16, CAPACITY * PART, model=model, mode=HAMI_CORE)
            for i in range(draw(st.integers(1, 4)))
        )
        ledger.observe_node(NodeFacts(name, devices))
        cards += [(name, device) for device in devices]
    room = {device.uuid: CAPACITY for _, device in cards}
    on: dict[str, set[int]] = {device.uuid: set() for _, device in cards}
    pods: list[PackedPod] = []
    movable: dict[str, MovablePod] = {}
    for _ in range(draw(st.integers(2, MAX_PODS))):
        size = draw(st.sampled_from((1, 2, 2, 3, 3, 4, 4, 5, 6, 7)))
        wanted = draw(st.sampled_from(("", "", *models))) if len(models) > 1 else ""
        fitting = [each for each in cards if room[each[1].uuid] >= size and wanted in ("", each[1].model)]
        if not fitting:
            continue
        node, device = draw(st.sampled_from(fitting))
        uid, is_fixed = f"pod-{len(pods)}", draw(st.integers(0, 9)) == 0
        room[device.uuid] -= size
        on[device.uuid].add(len(pods))
        pods.append(PackedPod(size, wanted, is_fixed))
        grant = Grant(device.uuid, "NVIDIA", size * PART, 0, device.index)
        ledger.observe_pod(PodFacts(uid, "team", uid, node, (Span(Role.APP),), {"NVIDIA": ((grant,),)}))
        book.pods[uid] = PodTraits(
            uid, "team", uid, priority=draw(st.sampled_from((0, 5))), protection="fixed" if is_fixed else ""
        )
        constraints = (("NVIDIA", Constraint(use_models=(wanted.lower(),))),) if wanted else ()
        asked = ContainerRequest("main", requests=(Request("NVIDIA", 1, memory=size * PART),))
        movable[uid] = MovablePod(PodRequest(uid, "team", uid, (asked,), constraints))
    return World(
        ledger,
        book,
        movable,
        pods,
        [(device.model, frozenset(on[device.uuid])) for _, device in cards if on[device.uuid]],
        Counter(device.model for _, device in cards if not on[device.uuid]),
    )


@given(worlds())
@LIVES
def test_a_plan_for_whole_cards_frees_hardly_fewer_than_the_best(world: World) -> None:
    before = world.ledger.state()
    plan = plan_whole_cards(world.ledger, world.book, world.movable)
    assert world.ledger.state() == before
    best = fewest_moves(world.pods, world.cards, capacity=CAPACITY, idle=world.idle)
    assert not plan.problem
    gain = len(plan.gained)
    event(f"{len(best) - 1 - gain} cards fewer, {plan.moves - best[gain]} moves more than needed")
    assert len(best) - 1 - MAX_FEWER <= gain < len(best)
    assert best[gain] <= plan.moves <= best[gain] + MAX_MORE


SIZES = {1: some.MIG_PROFILES[0], 2: some.MIG_PROFILES[1], 4: some.MIG_PROFILES[2]}
"""profiles, by memory slices"""
STARTS = {1: range(6, -1, -1), 2: (0, 2, 4), 4: (4, 0)}
"""the order in which the places of each are taken"""
MAX_INSTANCES = 5
"""brute force tries every order of moves, and every place"""


@dataclass
class MigWorld:
    """Nodes with up to two cards in MIG mode, and pods with one instance each."""

    ledger: Ledger
    book: PlainBook
    movable: dict[str, MovablePod]
    pods: list[PlacedInstance]
    cards: list[frozenset[tuple[int, int]]]


@st.composite
def mig_worlds(draw: st.DrawFn) -> MigWorld:
    ledger, book = Ledger(some.VENDORS), PlainBook()
    cards: dict[str, tuple[str, set[tuple[int, int]]]] = {}
    for name in some.NODES[: draw(st.integers(1, 2))]:
        devices = tuple(
            Device(
                f"{name}-{i}", "NVIDIA", i, 7, 8 * some.SLICE, model="A100", mode=MIG, mig_profiles=some.MIG_PROFILES
            )
            for i in range(draw(st.integers(1, 2)))
        )
        ledger.observe_node(NodeFacts(name, devices))
        cards.update({device.uuid: (name, set()) for device in devices})
    pods: list[PlacedInstance] = []
    movable: dict[str, MovablePod] = {}
    for _ in range(draw(st.integers(2, MAX_INSTANCES))):
        size = draw(st.sampled_from((1, 1, 2, 2, 4)))
        uuid = draw(st.sampled_from(sorted(cards)))
        node, instances = cards[uuid]
        taken = {begin + offset for pod, begin in instances for offset in range(pods[pod].size)}
        free = [begin for begin in STARTS[size] if taken.isdisjoint(range(begin, begin + size))]
        if not free:
            continue
        begin, uid, profile = draw(st.sampled_from(free)), f"pod-{len(pods)}", SIZES[size]
        is_fixed = draw(st.integers(0, 9)) == 0
        instances.add((len(pods), begin))
        pods.append(PlacedInstance(size, is_fixed))
        slot = MigSlot(profile.name, MigPlacement(begin, size))
        grant = Grant(uuid, "NVIDIA", profile.memory, profile.cores, mig=slot)
        ledger.observe_pod(PodFacts(uid, "team", uid, node, (Span(Role.APP),), {"NVIDIA": ((grant,),)}))
        book.pods[uid] = PodTraits(uid, "team", uid, protection="fixed" if is_fixed else "")
        asked = ContainerRequest("main", requests=(Request("NVIDIA", 1, memory=profile.memory),))
        movable[uid] = MovablePod(PodRequest(uid, "team", uid, (asked,)))
    return MigWorld(ledger, book, movable, pods, [frozenset(instances) for _, instances in cards.values()])


@given(mig_worlds())
@LIVES
def test_a_plan_for_cards_in_mig_mode_frees_hardly_fewer_than_the_best(world: MigWorld) -> None:
    before = world.ledger.state()
    plan = plan_whole_cards(world.ledger, world.book, world.movable)
    assert world.ledger.state() == before
    best = fewest_instance_moves(world.pods, world.cards, starts=STARTS)
    assert not plan.problem
    gain = len(plan.gained)
    event(f"{len(best) - 1 - gain} cards fewer, {plan.moves - best[gain]} moves more than needed")
    assert len(best) - 1 - MAX_FEWER <= gain < len(best)
    assert best[gain] <= plan.moves <= best[gain] + MAX_MORE


@st.composite
def mixed_worlds(draw: st.DrawFn) -> tuple[Ledger, PlainBook, dict[str, MovablePod], PodRequest]:
    """Cards and pods of any vendor, in gangs, with budgets and protections."""
    pool = draw(some.pools)
    ledger, book = Ledger(some.VENDORS), PlainBook(allowed={"none": 0, "one": 1})
    selector = Selector(ledger)
    for name in some.NODES[: draw(st.integers(2, 4))]:
        ledger.observe_node(draw(some.nodes(name, pool)))
    movable = {}
    for number in range(draw(st.integers(2, 8))):
        uid = f"pod-{number}"
        request = draw(some.pod_requests(pool, uid))
        answer = selector.select(request, [draw(st.sampled_from(ledger.node_names()))])
        if not isinstance(answer, Selected) or not request.asks_for_devices:
            continue
        ledger.observe_pod(facts_of(request, answer.placement))
        book.pods[uid] = PodTraits(
            uid,
            request.namespace,
            uid,
            is_leaving=draw(st.integers(0, 7)) == 0,
            protection="protected" if draw(st.integers(0, 7)) == 0 else "",
            group=draw(st.sampled_from(("", "", "", "g"))),
        )
        book.budgets_of[uid] = draw(st.sampled_from(((), (), ("none",), ("one",))))
        if draw(st.integers(0, 5)):
            movable[uid] = MovablePod(request)
    return ledger, book, movable, draw(some.pod_requests(pool, "waiting"))


@given(mixed_worlds(), mig_worlds(), st.sampled_from((1, 2, 3)), st.sampled_from((1, 2, 4)))
@LIVES
def test_no_set_of_pods_on_a_node_costs_less_than_its_bound(
    drawn: tuple[Ledger, PlainBook, dict[str, MovablePod], PodRequest], in_mig: MigWorld, count: int, slices: int
) -> None:
    ledger, book, _, waiting = drawn
    instances = ContainerRequest("main", requests=(Request("NVIDIA", count, memory=slices * some.SLICE),))
    cases = [(in_mig.ledger, in_mig.book, PodRequest("waiting", "team", "waiting", (instances,)))]
    if waiting.asks_for_devices:
        cases.append((ledger, book, waiting))
    for on, pods, request in cases:
        bounds = MoveBounds(on)
        for name in on.node_names():
            bound = bounds.bound(request, name, partial(_mover, pods))
            found = NodeSearch(Scratch(on, pods), pods, request, priority=2**31, node=name, fewest_first=True).run()
            if found is not None and found.victims:
                event("bound" if bound is not None and bound.pods == found.cost.pods else "lower bound")
                assert bound is not None
                assert bound <= found.cost


def _mover(book: PlainBook, uid: str) -> PodTraits | None:
    traits = book.traits(uid)
    return None if traits is not None and traits.protection and not traits.is_leaving else traits


@given(mixed_worlds(), st.sampled_from((1, 2, 5)))
@LIVES
def test_only_pods_that_may_move_are_moved_and_gangs_move_whole(
    drawn: tuple[Ledger, PlainBook, dict[str, MovablePod], PodRequest], most: int
) -> None:
    ledger, book, movable, waiting = drawn
    before = ledger.state()
    plans = [plan_whole_cards(ledger, book, movable, max_moves=most)]
    if waiting.asks_for_devices:
        plans.append(finish(plan_room(ledger, book, movable, Goal(waiting, count=2), max_moves=most)))
    assert ledger.state() == before
    for plan in plans:
        event(f"{plan.moves} moves")
        assert not plan.problem
        moved = [move.uid for step in plan.steps for move in step]
        assert len(moved) == len(set(moved)) <= most
        for step in plan.steps:
            groups = {book.pods[move.uid].group for move in step} - {""}
            members = {uid for group in groups for uid in book.members(group) if not book.pods[uid].is_leaving}
            assert {move.uid for move in step} >= members
        for uid in moved:
            traits = book.pods[uid]
            assert uid in movable
            assert not traits.protection
            assert not traits.is_leaving
            assert all(book.disruptions_allowed(budget) for budget in book.budgets(uid))
        assert not moved or plan.gained, "no move without a gain"
