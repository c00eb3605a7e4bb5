"""Journals of the real scheduler, read at once and replayed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine, Iterable, Sequence
from typing import Any

import numpy as np

from tessera.core.ledger.ledger import Ledger
from tessera.inspect.replay import Difference, JournalReplay, ReplayCounts
from tessera.scheduler.journal import Journal
from tessera.wire.journal import CandidateMask, Record, decode_record, encode_record


def records_of(journal: Journal, since: int | None = None, *, snapshot: bool = True) -> list[Record]:
    """All that a reading gives, in one step of the event loop, as it arrives on the other side."""
    return _completed(_collected(journal.read(since, snapshot=snapshot)))


def decide_again(records: Iterable[Record]) -> tuple[ReplayCounts, Difference | None]:
    """Makes all decisions again, up to the first that comes out differently."""
    replay = JournalReplay()
    found = (replay.check(record) for record in records)
    difference = next((each for each in found if each is not None), None)
    return replay.counts, difference


def named(mask: CandidateMask | None, order: Sequence[str]) -> list[str]:
    """The nodes among the candidates of a decision, given those that were registered then."""
    assert mask is not None
    if mask.mask is None:
        return list(order)
    return [name for name, bit in zip(order, np.unpackbits(np.frombuffer(mask.mask, np.uint8)), strict=False) if bit]


def replayed(records: Iterable[Record]) -> JournalReplay:
    """Makes all decisions again, and fails at the first that comes out differently."""
    replay = JournalReplay()
    for record in records:
        difference = replay.check(record)
        assert difference is None, difference
    return replay


def assert_same_ledger(replay: JournalReplay, ledger: Ledger) -> None:
    """The ledgers hold the same, and decide alike."""
    assert replay.ledger.state() == ledger.state()
    mine, other = ledger.arrays, replay.ledger.arrays
    for name in filter(None, mine.names):
        here, there = mine.row(name), other.row(name)
        assert (mine.free_cpu[here], mine.free_memory[here]) == (other.free_cpu[there], other.free_memory[there])
        assert mine.score[here] == other.score[there]


async def _collected(records: AsyncIterator[Record]) -> list[Record]:
    return [decode_record(encode_record(record)) async for record in records]


def _completed(work: Coroutine[Any, Any, list[Record]]) -> list[Record]:
    """Runs what never waits for anything but its turn."""
    while True:
        try:
            work.send(None)
        except StopIteration as end:
            found: list[Record] = end.value
            return found
