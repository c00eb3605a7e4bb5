"""Evictions of the last hour."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import pytest

from tessera.kube.lease_election import LeaseElection
from tessera.maintenance.defragmenter.eviction_budget import ANNOTATION, EvictionBudget
from tests.support.builders import NOW


class Record:
    """The annotations of a Lease."""

    def __init__(self, text: str | None = None) -> None:
        self.annotations: dict[str, str] = {} if text is None else {ANNOTATION: text}

    async def annotate(self, annotations: Mapping[str, str]) -> None:
        self.annotations |= annotations


class Clock:
    time = NOW
    skew = 0.0
    """seconds by which the wall clock is set"""

    def __call__(self) -> float:
        return self.time + self.skew


def budget(record: Record, clock: Clock, per_hour: int = 3) -> EvictionBudget:
    return EvictionBudget(cast("LeaseElection", record), per_hour=per_hour, now=clock, clock=lambda: clock.time)


async def test_an_hour_slides() -> None:
    record, clock = Record(), Clock()
    for minutes, count, is_allowed, left in (
        (0, 1, True, 2),
        (30, 2, True, 0),
        (59, 1, False, 0),
        (61, 2, False, 1),
        (61, 1, True, 0),
        (91, 2, True, 0),
    ):
        clock.time = NOW + 60 * minutes
        of_another_process = budget(record, clock)
        assert await of_another_process.spend(count) is is_allowed
        assert of_another_process.left() == left


@pytest.mark.parametrize("text", ["", "[", "{}", '["a"]', "[1.5]", "[" + "1," * 40_000 + "1]", "[1e400]"])
async def test_a_record_that_cannot_be_read_is_a_full_hour(text: str) -> None:
    assert budget(Record(text), Clock()).left() == 0


async def test_a_time_from_the_future_counts_for_an_hour_once_it_is_written_again() -> None:
    record, clock = Record(f"[{2**40}]"), Clock()
    assert budget(record, clock).left() == 2
    assert await budget(record, clock).spend(1)
    clock.time += 3601
    assert budget(record, clock).left() == 3


async def test_a_clock_that_is_set_ahead_gives_no_evictions() -> None:
    record, clock = Record(), Clock()
    process = budget(record, clock)
    assert await process.spend(3)
    clock.skew = 7200.0
    clock.time += 3599
    assert process.left() == 0
    clock.time += 2
    assert process.left() == 3


async def test_a_clock_that_is_set_back_takes_evictions_for_an_hour_at_most() -> None:
    record, clock = Record(), Clock()
    assert await budget(record, clock).spend(3)
    clock.skew = -36_000.0
    process = budget(record, clock)
    assert process.left() == 0
    clock.time += 3601
    assert process.left() == 3


async def test_a_record_that_cannot_be_read_ends_after_an_hour() -> None:
    record, clock = Record("["), Clock()
    process = budget(record, clock)
    assert process.left() == 0
    clock.time += 3601
    assert await process.spend(1)


async def test_a_record_that_another_process_has_written_counts() -> None:
    record, clock = Record(), Clock()
    one, other = budget(record, clock), budget(record, clock)
    assert await one.spend(1)
    assert await other.spend(1)
    assert one.left() == 1
