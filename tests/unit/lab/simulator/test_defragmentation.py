"""Moves in simulations, and the bounds that they are compared with."""

from __future__ import annotations

import pytest

from tessera.core.search.relocation import MovablePod
from tessera_lab.simulator.cluster import SimulatedCluster, make_request
from tessera_lab.simulator.defragmentation import Defragmenter, FreedCards, allocation_bound, cards_needed_at_least
from tessera_lab.simulator.simulation import ChurnOptions, SaturationOptions, replay, saturate
from tessera_lab.simulator.strategies import place_on_tightest_cards
from tessera_lab.simulator.traces import Trace, TraceNode, TracePod, TraceRequest

NODES = (TraceNode("n1", 8_000, 8_000, 1), TraceNode("n2", 8_000, 8_000, 1))


def part(milli: int, *, cpu: int = 1_000) -> TraceRequest:
    return TraceRequest(cpu=cpu, memory=0, cards=1, milli=milli)


def half_full(*, cpu: int = 1_000) -> tuple[SimulatedCluster, Defragmenter, list[str]]:
    """A pod on each of two nodes with one card."""
    cluster = SimulatedCluster(NODES)
    defragmenter = Defragmenter(cluster)
    uids = []
    for row, milli in enumerate((400, 300)):
        ask = part(milli, cpu=cpu)
        uids.append(cluster.put(ask, row, place_on_tightest_cards(cluster, ask, row)))
        defragmenter.add(uids[-1], ask)
    return cluster, defragmenter, uids


def test_a_pod_moves_for_one_that_does_not_fit_with_its_load_on_the_host() -> None:
    cluster, defragmenter, uids = half_full()
    whole = part(1000)
    assert not len(cluster.fitting(whole))
    assert defragmenter.make_room(whole)
    assert len(cluster.fitting(whole)) == 1
    assert defragmenter.moves == 1
    assert sorted(cluster.arrays.free_cpu[:2].tolist()) == [6_000, 8_000]
    assert len({defragmenter.row_of(uid) for uid in uids}) == 1


def test_no_pod_moves_to_a_host_without_cpu_and_the_same_is_not_tried_again() -> None:
    cluster, defragmenter, _ = half_full(cpu=5_000)
    assert not defragmenter.make_room(part(1000))
    assert not defragmenter.make_room(part(1000, cpu=2_000))
    assert defragmenter.moves == 0
    assert cluster.taken == 700


def test_a_plan_is_compared_with_what_is_possible() -> None:
    _, defragmenter, _ = half_full()
    found = defragmenter.compare()
    assert (found.cards, found.moves, found.possible) == (1, 1, 1)


@pytest.mark.parametrize(
    ("sizes", "cards"),
    [((500, 500), 1), ((600, 600, 600), 3), ((600, 500, 500), 2), ((700, 400, 400, 400), 3), ((300, 300, 300, 300), 2)],
)
def test_the_bound_on_cards_counts_pods_that_cannot_share(sizes: tuple[int, ...], cards: int) -> None:
    assert cards_needed_at_least(MovablePod(make_request(part(size))) for size in sizes) == cards


@pytest.mark.parametrize(
    ("sizes", "placed", "bound"),
    [((810, 810), 2, 81.0), ((810, 810, 190), 2, 90.5), ((810, 810), 1, 90.5), ((500, 500), 2, 100.0)],
)
def test_the_bound_on_allocation_counts_what_nothing_can_fill(
    sizes: tuple[int, ...], placed: int, bound: float
) -> None:
    assert allocation_bound([part(size) for size in sizes], placed, 2_000) == pytest.approx(bound)


def trace() -> Trace:
    sizes = (400, 300, 1000)
    pods = tuple(
        TracePod(f"p{i}", part(size), created=float(i), deleted=100.0, scheduled=float(i))
        for i, size in enumerate(sizes)
    )
    return Trace("t", NODES, pods)


def test_a_replay_with_moves_starts_pods_that_would_wait() -> None:
    plain, moved = (
        replay(trace(), "spread-spread", 1, ChurnOptions(defragment=defragment)) for defragment in (False, True)
    )
    assert plain.wait_mean == pytest.approx(98 / 3)
    assert moved.wait_mean == 0.0
    assert (plain.moves, moved.moves) == (0, 1)


def test_plans_are_compared_without_making_their_moves() -> None:
    found = replay(trace(), "spread-spread", 1, ChurnOptions(compare_plans=True))
    assert found.moves == 0
    assert found.wait_mean == pytest.approx(98 / 3)
    assert found.freed == FreedCards(plans=4, cards=2, moves=2, repacked=2, possible=2)


def test_a_saturated_cluster_with_moves_allocates_more() -> None:
    plain, moved = (
        saturate(trace(), "spread-spread", 5, SaturationOptions(defragment=defragment)) for defragment in (False, True)
    )
    assert (plain.at(1.3), moved.at(1.3), moved.moves) == (35.0, 85.0, 1)
