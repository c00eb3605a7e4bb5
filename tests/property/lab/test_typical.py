"""What fragmentation gradient descent calls lost, by tables, is what its definition says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera_lab.simulator.fgd import TypicalPods, whole_taken
from tessera_lab.simulator.traces import WHOLE, Trace, TraceNode, TracePod, TraceRequest

MODELS = ("A10", "T4")
CPU = st.integers(0, 8).map(lambda number: 1_000 * number)
PARTS = st.integers(1, 10).map(lambda number: 100 * number)

asks = st.one_of(
    st.builds(TraceRequest, CPU, st.just(0)),
    st.builds(TraceRequest, CPU, st.just(0), st.just(1), PARTS, st.sampled_from([(), ("A10",), MODELS])),
    st.builds(TraceRequest, CPU, st.just(0), st.integers(2, 4), st.just(WHOLE), st.sampled_from([(), ("T4",)])),
)
frees = st.lists(st.integers(0, 10).map(lambda number: 100 * number), min_size=1, max_size=4)


def typical(pods: list[TraceRequest]) -> TypicalPods:
    nodes = tuple(TraceNode(model, 8_000, 1, 4, model) for model in MODELS)
    # Each ask twenty times, so that every one of a few counts.
    return TypicalPods(Trace("made-up", nodes, tuple(TracePod("", ask) for ask in pods for _ in range(20))))


def lost(pods: list[TraceRequest], free: list[int], cpu: int, model: str) -> float:
    """By definition, ask by ask."""

    def of(ask: TraceRequest) -> int:
        fits = [part for part in free if part >= ask.milli]
        runs = ask.cards and len(fits) >= ask.cards and ask.cpu <= cpu and (not ask.models or model in ask.models)
        return sum(part for part in free if part < ask.milli) if runs else sum(free)

    return sum(map(of, pods)) / len(pods)


def by_tables(made: TypicalPods, free: list[int], cpu: int, model: str) -> float:
    rooms = made.rooms(np.array([[part] for part in free]))
    found = made.lost(rooms, np.array([sum(free)]), np.array([cpu]), np.array([made.model(model)]))
    return float(found[0])


some = st.lists(asks, min_size=1, max_size=5).filter(lambda pods: any(ask.cards for ask in pods))


@given(pods=some, free=frees, cpu=CPU, model=st.sampled_from(MODELS))
def test_the_lost_part_is_what_the_definition_says(
    pods: list[TraceRequest], free: list[int], cpu: int, model: str
) -> None:
    assert by_tables(typical(pods), free, cpu, model) == pytest.approx(lost(pods, free, cpu, model))


@given(pods=some, free=frees, data=st.data())
def test_taking_a_part_of_a_card_leaves_the_rooms_of_what_is_left(
    pods: list[TraceRequest], free: list[int], data: st.DataObject
) -> None:
    made = typical(pods)
    card = data.draw(st.integers(0, len(free) - 1))
    milli = data.draw(st.integers(0, free[card]))
    left = [part - milli if place == card else part for place, part in enumerate(free)]
    found = made.without(made.rooms(np.array([[part] for part in free])), np.array([free[card]]), milli)
    wanted = made.rooms(np.array([[part] for part in left]))
    assert np.array_equal(found.enough, wanted.enough)
    assert np.array_equal(found.small, wanted.small)


@given(pods=some, free=frees, number=st.integers(0, 3))
def test_taking_whole_cards_leaves_the_rooms_of_the_others(
    pods: list[TraceRequest], free: list[int], number: int
) -> None:
    made = typical(pods)
    found = whole_taken(made.rooms(np.array([[part] for part in free + [WHOLE] * number])), number)
    wanted = made.rooms(np.array([[part] for part in free]))
    assert np.array_equal(found.enough, wanted.enough)
    assert np.array_equal(found.small, wanted.small)
