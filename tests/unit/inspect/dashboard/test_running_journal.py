"""The past of a running scheduler: read on demand, continued, and forgotten."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tessera.core.ledger.ledger import Ledger
from tessera.inspect.dashboard import journal as page_journal
from tessera.inspect.dashboard.journal import RunningJournal
from tessera.scheduler.journal import Journal
from tessera.scheduler.settings import Settings
from tessera.vendors.node_reader import node_facts
from tests.support.builders import NOW, NodeBuilder, node, vendors
from tests.support.event_loops import in_fake_time


class Clock:
    now = NOW

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


class Recorded:
    """A ledger with a journal, and how often the journal was read from its beginning."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.journal = Journal(Settings(), now=self.clock)
        self.ledger = Ledger(vendors())
        self.journal.attach(self.ledger)
        self.reads: list[int | None] = []
        read = self.journal.read

        def counted(since: int | None = None, *, follow: bool = False, snapshot: bool = True) -> AsyncIterator[object]:
            self.reads.append(since)
            return read(since, follow=follow, snapshot=snapshot)

        self.journal.read = counted  # type: ignore[method-assign, assignment]
        self.past = RunningJournal(self.journal, _at_once, now=self.clock)

    def add(self, *nodes: NodeBuilder) -> None:
        for one in nodes:
            self.ledger.observe_node(node_facts(one.api(), vendors()))

    async def names(self) -> tuple[str, ...]:
        timeline = await self.past.timeline()
        return timeline.at(timeline.end).ledger.node_names()


async def _at_once(_spent: float) -> None:
    pass


async def test_what_happens_after_the_first_reading_is_added() -> None:
    here = Recorded()
    here.add(node("a").gpus(1))
    assert await here.names() == ("a",)
    here.add(node("b").gpus(1), node("c").gpus(1))
    assert await here.names() == ("a", "b", "c")
    assert await here.names() == ("a", "b", "c")
    assert here.reads[0] is None
    assert None not in here.reads[1:]


async def test_the_range_reaches_from_the_oldest_state_to_now() -> None:
    here = Recorded()
    found = here.past.range()
    assert found is not None
    assert found["from"] < found["to"] == here.clock.now


async def test_another_configuration_does_not_end_the_past() -> None:
    here = Recorded()
    here.add(node("a").gpus(1))
    assert await here.names() == ("a",)
    here.journal.restart(Settings())
    here.add(node("b").gpus(1))
    assert await here.names() == ("a", "b")


@in_fake_time
async def test_records_are_forgotten_when_nobody_asks() -> None:
    import asyncio

    here = Recorded()
    here.add(node("a").gpus(1))
    await here.names()
    await asyncio.sleep(page_journal.KEPT_S - 1)
    await here.names()
    await asyncio.sleep(page_journal.KEPT_S - 1)
    await here.names()
    assert here.reads.count(None) == 1
    await asyncio.sleep(page_journal.KEPT_S + 1)
    assert await here.names() == ("a",)
    assert here.reads.count(None) == 2


async def test_what_left_the_ring_leaves_the_page_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_journal, "MAX_RECORDS", 0)
    here = Recorded()
    here.journal._ring._limit = 4_000
    for number in range(60):
        here.add(node("a").gpus(1, memory=1_000 + number))
        assert await here.names() == ("a",)
    kept = len((await here.past.timeline()).records)
    assert kept < 40
    assert here.reads.count(None) > 1
