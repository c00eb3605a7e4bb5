"""The loop over all that may preempt: when it looks again, and what it does with what preemptors answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Sequence
from datetime import UTC
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tessera.core.model.requests import PodRequest
from tessera.core.search.preemption import Demand, VictimSet
from tessera.core.search.victims import Cost
from tessera.scheduler.clock import Clock
from tessera.scheduler.eviction.preemption_loop import (
    AGAIN_S,
    ATTEMPTS,
    CONCURRENT,
    SEARCH_PAUSE,
    Nominated,
    NominatedNodes,
    PreemptionLoop,
    Preemptor,
)
from tessera.scheduler.queue.unschedulable_pods import UnschedulablePods
from tessera.scheduler.settings import Settings
from tests.support.builders import gpu_pod
from tests.support.event_loops import in_fake_time
from tests.support.fake_cluster import FakeCluster, Step, refused

FITS = VictimSet(Cost(), (), (), ())
FOUND = VictimSet(Cost(), ("uid-victim",), (), ())
REQUEST = gpu_pod("waiting").request()


class Waiting(Preemptor):
    """Records what the loop tells it."""

    def __init__(self, *, settles: bool = True) -> None:
        super().__init__("pod default/waiting", 10, 0.0)
        self.told: list[str] = []
        self.due, self.until, self.settles = True, 0.0, settles
        self.nomination: object = None

    @property
    def is_due(self) -> bool:
        return self.due

    @is_due.setter
    def is_due(self, value: bool) -> None:
        self.due = value

    def due_at(self) -> float:
        return self.until

    def postpone(self, until: float) -> None:
        self.until = until

    def demand(self) -> Demand | None:
        return Demand([], 1, 10)

    def is_waiting(self, demand: Demand) -> bool:
        return True

    def on_no_victims(self, seconds: float) -> None:
        self.told.append("no victims")

    async def nominate(self, found: VictimSet, seconds: float) -> Nominated | None:
        self.told.append("nominated" if self.settles else "unsettled")
        self.nomination = object() if self.settles else None
        return Nominated(self.nomination, found.victims) if self.settles else None

    def is_nominated(self, nomination: object) -> bool:
        return self.nomination is nomination

    def evicts_as(self) -> tuple[PodRequest, str] | None:
        return REQUEST, ""

    def on_evicted(self) -> None:
        self.told.append("evicted")

    def renounce(self, problem: str) -> None:
        self.nomination = None
        self.told.append(problem)


class Scripted:
    """A loop whose searches and evictions are scripted."""

    def __init__(
        self, waiting: Waiting, found: VictimSet | None, *, seconds: float = 0.0, problems: Sequence[str] = ()
    ) -> None:
        self.waiting, self.found, self.seconds, self.problems = waiting, found, seconds, list(problems)
        self.searched: list[float] = []
        self.time, self.is_ready = 0.0, True
        self.while_evicting: Callable[[], None] = lambda: None
        self.unschedulable = UnschedulablePods()
        book = SimpleNamespace(forget_overdue=lambda: None, traits_of=lambda uids: tuple(uids))
        self.loop = PreemptionLoop(
            lambda: [waiting] if waiting.is_due else [],
            cast(Any, SimpleNamespace(search=self._search)),
            cast(Any, SimpleNamespace(book=book, evict=self._evict)),
            unschedulable=self.unschedulable,
            clock=Clock(self.now, self.now, UTC),
            settings=Settings(),
            is_ready=lambda: self.is_ready,
        )

    def now(self) -> float:
        return asyncio.get_running_loop().time() + self.time

    def _search(self, _: Demand) -> Generator[None, None, VictimSet | None]:
        self.searched.append(self.now())
        yield
        self.time += self.seconds
        return self.found

    async def _evict(self, victims: Sequence[str], *, obstacle: Callable[[str], str], **_: object) -> str:
        self.while_evicting()
        return obstacle(victims[0]) or (self.problems.pop(0) if self.problems else "")


@in_fake_time
async def test_the_longer_a_search_in_vain_took_the_longer_the_next_one_waits() -> None:
    waiting = Waiting()
    script = Scripted(waiting, None, seconds=0.5)
    assert await script.loop.nominate(waiting) is None
    assert waiting.told == ["no victims"]
    assert waiting.until == pytest.approx(script.now() + AGAIN_S + SEARCH_PAUSE * 0.5)
    assert not waiting.is_due


@in_fake_time
async def test_what_fits_as_it_is_is_woken_and_not_looked_for_at_once() -> None:
    waiting = Waiting()
    script = Scripted(waiting, FITS)
    assert await script.loop.nominate(waiting) is None
    assert script.unschedulable.room.is_set()
    assert waiting.told == []
    assert waiting.until == pytest.approx(script.now() + AGAIN_S)


@in_fake_time
async def test_what_changes_under_every_search_is_looked_at_again_after_a_while() -> None:
    waiting = Waiting(settles=False)
    script = Scripted(waiting, FOUND)
    await asyncio.sleep(30)
    running = asyncio.ensure_future(script.loop.run())
    script.unschedulable.refused.set()
    await asyncio.sleep(AGAIN_S / 2)
    assert len(script.searched) == ATTEMPTS
    waiting.settles = True
    await asyncio.sleep(AGAIN_S)
    running.cancel()
    assert len(script.searched) == ATTEMPTS + 1
    assert script.searched[-1] == pytest.approx(30 + AGAIN_S, abs=0.1)
    assert waiting.told[-2:] == ["nominated", "evicted"]
    assert script.unschedulable.room.is_set(), "the victims may be gone already"


@in_fake_time
async def test_after_slow_searches_for_what_changes_the_next_one_waits_longer() -> None:
    waiting = Waiting(settles=False)
    script = Scripted(waiting, FOUND, seconds=0.1)
    assert await script.loop.nominate(waiting) is None
    assert waiting.until == pytest.approx(script.now() + AGAIN_S + SEARCH_PAUSE * ATTEMPTS * 0.1)
    assert waiting.is_due


@in_fake_time
async def test_a_preemptor_that_has_to_wait_is_served_when_it_is_due() -> None:
    waiting = Waiting()
    waiting.until = 3.0
    script = Scripted(waiting, FOUND)
    running = asyncio.ensure_future(script.loop.run())
    script.unschedulable.refused.set()
    await asyncio.sleep(10)
    running.cancel()
    assert script.searched == [pytest.approx(3.0, abs=0.1)]


@in_fake_time
async def test_if_a_victim_stays_others_are_looked_for() -> None:
    waiting = Waiting()
    script = Scripted(waiting, FOUND, problems=["it stays"])
    running = asyncio.ensure_future(script.loop.run())
    script.unschedulable.refused.set()
    await asyncio.sleep(10)
    running.cancel()
    assert waiting.told == ["nominated", "it stays", "nominated", "evicted"]


@in_fake_time
async def test_no_victim_is_evicted_by_a_replica_that_stopped_deciding() -> None:
    waiting = Waiting()
    script = Scripted(waiting, FOUND)
    nominated = await script.loop.nominate(waiting)
    assert nominated is not None
    script.is_ready = False
    assert not await script.loop.evict(waiting, nominated)
    assert waiting.told[-1] == "this replica does not decide any more"


@in_fake_time
async def test_no_victim_is_evicted_for_a_nomination_that_has_ended() -> None:
    waiting = Waiting()
    script = Scripted(waiting, FOUND)
    nominated = await script.loop.nominate(waiting)
    assert nominated is not None
    waiting.nomination = later = object()
    assert not await script.loop.evict(waiting, nominated)
    assert waiting.told == ["nominated"], "the later nomination stays"
    assert waiting.nomination is later


@in_fake_time
async def test_what_is_not_refused_is_looked_at_once() -> None:
    waiting = Waiting()
    script = Scripted(waiting, FOUND)
    running = asyncio.ensure_future(script.loop.run())
    script.unschedulable.refused.set()
    await asyncio.sleep(60)
    running.cancel()
    assert waiting.told == ["nominated", "evicted"]


# -- what is written of nominated nodes


def pods(api: FakeCluster, count: int) -> list[str]:
    names = [f"p{i}" for i in range(count)]
    for name in names:
        api.add_pod(gpu_pod(name))
    return names


@in_fake_time
async def test_the_last_word_on_a_pod_is_written_once_and_a_failure_stops_no_other() -> None:
    api = FakeCluster()
    nodes = NominatedNodes(api)
    for name in pods(api, CONCURRENT + 2):
        nodes.set(gpu_pod(name).request(), "n1")
        nodes.set(gpu_pod(name).request(), "n2")
    api.script("set_nominated_node", Step(refused(500)))
    await nodes.write()
    assert api.calls.count("set_nominated_node") == CONCURRENT + 2
    assert list(api.nominated.values()) == ["n2"] * (CONCURRENT + 1)


@in_fake_time
async def test_what_is_not_written_when_a_replica_stops_deciding_is_left_to_the_next_one() -> None:
    api = FakeCluster()
    nodes = NominatedNodes(api)
    for name in pods(api, 2 * CONCURRENT):
        nodes.set(gpu_pod(name).request(), "n1")
    writing = asyncio.ensure_future(nodes.write())
    await asyncio.sleep(0)
    nodes.forget()
    await writing
    assert len(api.nominated) <= CONCURRENT
    await nodes.write()
    assert len(api.nominated) <= CONCURRENT
