"""The past of a running scheduler: read on demand, continued, and forgotten."""

from __future__ import annotations

import asyncio

import pytest

from tessera.core.ledger.ledger import Ledger
from tessera.inspect.dashboard import journal as page_journal
from tessera.inspect.dashboard.journal import FollowedJournal, RunningReader
from tessera.scheduler.journal import Journal
from tessera.scheduler.settings import Settings
from tessera.vendors.node_reader import node_facts
from tests.support.builders import NOW, NodeBuilder, node, vendors
from tests.support.event_loops import in_fake_time


class Recorded:
    """A ledger with a journal, and how often the journal was read from its beginning."""

    def __init__(self) -> None:
        self._now = NOW
        self.journal = Journal(Settings(), now=self.now)
        self.ledger = Ledger(vendors())
        self.journal.attach(self.ledger)
        self.opened = 0
        self.past = FollowedJournal(self._open, begin=lambda: self.journal.begin, now=self.now)

    def now(self) -> float:
        self._now += 1.0
        return self._now

    def _open(self) -> RunningReader:
        self.opened += 1
        return RunningReader(self.journal, _at_once)

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
    records = len((await here.past.timeline()).records)
    assert (await here.names(), len((await here.past.timeline()).records)) == (("a", "b", "c"), records)
    assert here.opened == 1


async def test_the_range_reaches_from_the_oldest_state_to_now() -> None:
    found = Recorded().past.range()
    assert found is not None
    assert found["from"] < found["to"]


async def test_another_configuration_does_not_end_the_past() -> None:
    here = Recorded()
    here.add(node("a").gpus(1))
    assert await here.names() == ("a",)
    here.journal.restart(Settings())
    here.add(node("b").gpus(1))
    assert await here.names() == ("a", "b")


@in_fake_time
async def test_records_are_forgotten_when_nobody_asks() -> None:
    here = Recorded()
    here.add(node("a").gpus(1))
    await here.names()
    for _ in range(2):
        await asyncio.sleep(page_journal.KEPT_S - 1)
        await here.names()
    assert here.opened == 1
    await asyncio.sleep(page_journal.KEPT_S + 1)
    assert await here.names() == ("a",)
    assert here.opened == 2


async def test_what_left_the_ring_leaves_the_page_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_journal, "MAX_RECORDS", 0)
    here = Recorded()
    here.journal._ring._limit = 4_000
    for number in range(60):
        here.add(node("a").gpus(1, memory=1_000 + number))
        assert await here.names() == ("a",)
    assert len((await here.past.timeline()).records) < 40
    assert here.opened > 1
