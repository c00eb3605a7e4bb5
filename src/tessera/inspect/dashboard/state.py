"""The state of one source for all viewers: rendered once, kept up to date, and given to who waits for something new.

Only nodes that changed are rendered again. The log of the ledger's arrays says which: nothing is hooked into the
ledger, and without viewers nothing is done at all.

    asleep --first viewer--> rendering all nodes, in slices --> following, a few times a second
       ^                                                             |
       '------------------ no viewer for `LINGER_S` -----------'
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from typing import NamedTuple

from tessera.inspect.dashboard.documents import NODES, TOTALS, WAITING, Parts, compress, encode, state_pieces
from tessera.inspect.dashboard.nodes import render_node
from tessera.inspect.dashboard.source import PageSource
from tessera.inspect.dashboard.steps import in_steps, pause_for
from tessera.inspect.dashboard.totals import Sums
from tessera.inspect.dashboard.waiting import WaitingPods
from tessera.inspect.state import Json
from tessera.scheduler.pod_cycle import CycleState

PERIOD_S = 0.5
"""between two looks for changes: half of it is what a viewer waits on average, and each look may be one request of each
viewer"""
TOTALS_S = 2.0
"""between two looks at the totals"""
LINGER_S = 30.0
"""that documents are kept up to date without a viewer: people reload pages"""
RENDER_SHARE = 0.5
"""of the event loop's time that rendering takes at most"""
KEPT_S = 5.0
"""that an answer is good for"""


class _Answer(NamedTuple):
    """A compressed document."""

    version: int
    made_at: float
    """on the event loop's clock"""
    data: asyncio.Task[bytes]


class Closing(Exception):
    """There is no state any more."""


class LiveState:
    """Follows one source."""

    def __init__(
        self,
        source: PageSource,
        *,
        share: float = 0.5,
        background_share: float = 0.5,
        now: Callable[[], float] = time.time,
    ) -> None:
        """`share` is the part of the event loop's time that a question takes while it is answered, `background_share`
        that for finding out why pods wait."""
        self.source = source
        self.pause = pause_for(share)
        self._background_pause = pause_for(background_share)
        self.viewers = 0
        self._now = now
        self._loop = asyncio.get_running_loop()
        # Versions of two processes, or of two runs of one, must not be taken for each other.
        self.parts = Parts(int(now() * 1000))
        self._sums = Sums()
        self._nodes: dict[str, Sums] = {}
        self.waiting = WaitingPods(source)
        self._totals_at = float("-inf")
        self._problem = source.problem
        self._seen = 0
        self._epoch = -1
        self._moving: dict[str, CycleState] = {}
        self._answers: dict[int | None, _Answer] = {}
        """by what the viewers know"""
        self._news = asyncio.Event()
        self._is_closed = False
        self._task: asyncio.Task[None] | None = None
        self._is_complete = asyncio.Event()
        self._used_at = 0.0

    # -- for viewers

    async def state(self, since: int | None = None, wait: float = 0.0) -> bytes:
        """The whole state, or what is newer than a version, as soon as there is something; compressed with gzip. After
        `wait` seconds that may be nothing. Raises Closing."""
        async with self._awake():
            if since == self.parts.version and wait:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait):
                        await self._news.wait()
                self._check()
            answer = self._find_answer(since if since is not None and self.parts.reaches(since) else None)
            # Who goes away must not end what others wait for.
            return await asyncio.shield(answer.data)

    async def shapes(self) -> list[Json]:
        """How many more of the usual shapes fit."""
        async with self._awake():
            return self._sums.room()

    async def close(self) -> None:
        """End all waiting."""
        self._is_closed = True
        self._tell()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _find_answer(self, since: int | None) -> _Answer:
        self._answers = {key: one for key, one in self._answers.items() if self._is_good(key, one)}
        known = self._answers.get(since)
        if known is None:
            version = self.parts.version
            head = {
                "version": version,
                "since": since,
                "time": self._now(),
                "source": self.source.describe(),
            }
            pieces = state_pieces(head, self.parts.all() if since is None else self.parts.after(since))
            data = asyncio.create_task(asyncio.to_thread(compress, pieces))
            known = self._answers[since] = _Answer(version, self._loop.time(), data)
        return known

    def _is_good(self, since: int | None, answer: _Answer) -> bool:
        # A viewer who gets a whole state goes on from its version.
        fits = self.parts.reaches(answer.version) if since is None else answer.version == self.parts.version
        return fits and self._loop.time() - answer.made_at < KEPT_S

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    # -- following the ledger

    @contextlib.asynccontextmanager
    async def _awake(self) -> AsyncIterator[None]:
        """Documents are complete and kept up to date for as long as the block lasts."""
        self.viewers += 1
        try:
            if not self._is_closed and (self._task is None or self._task.done()):
                self._is_complete = asyncio.Event()
                self._task = asyncio.create_task(self._follow())
            if self._task is not None and not self._is_complete.is_set():
                complete = asyncio.create_task(self._is_complete.wait())
                try:
                    await asyncio.wait([self._task, complete], return_when=asyncio.FIRST_COMPLETED)
                finally:
                    complete.cancel()
            self._check()
            yield
        finally:
            self.viewers -= 1
            self._used_at = self._loop.time()

    def _check(self) -> None:
        """Raises Closing, or what ended the following."""
        if self._is_closed:
            raise Closing("the server is ending")
        if self._task is not None and self._task.done():
            self._task.result()

    async def _follow(self) -> None:
        judging = asyncio.create_task(self._judge())
        try:
            while True:
                await self._refresh()
                self._is_complete.set()
                if judging.done():
                    judging.result()
                if not self.viewers and self._loop.time() - self._used_at >= LINGER_S:
                    return
                await asyncio.sleep(PERIOD_S)
        finally:
            judging.cancel()
            self._fall_asleep()

    async def _judge(self) -> None:
        await self._is_complete.wait()
        while True:
            await self.waiting.judge(self._background_pause)
            await asyncio.sleep(PERIOD_S)

    def _fall_asleep(self) -> None:
        """Give the memory back."""
        self._nodes, self._answers, self._sums, self._epoch = {}, {}, Sums(), -1
        self._totals_at = float("-inf")
        self.waiting.clear()
        self.parts.clear()
        self._tell()

    async def _refresh(self) -> None:
        async for name in in_steps(self._changed_nodes(), pause_for(RENDER_SHARE)):
            before, after = self._nodes.pop(name, None), render_node(self.source, name)
            if before is not None:
                self._sums.add(before, -1)
            if after is not None:
                self._nodes[name] = after.sums
                self._sums.add(after.sums)
            self.parts.put((NODES, name), after.body if after is not None else None)
        for uid, row in self.waiting.refresh().items():
            self.parts.put((WAITING, uid), encode(row) if row is not None else None)
        if self._loop.time() - self._totals_at >= TOTALS_S:
            self._totals_at = self._loop.time()
            waited = self.waiting.waited(round(self._now()))
            totals = self._sums.document(self.waiting.asked, waited)
            self.parts.put(TOTALS, encode(totals))
        if self._problem != self.source.problem:
            self._problem = self.source.problem
            self.parts.touch()
        if self.parts.publish():
            self._tell()

    def _changed_nodes(self) -> list[str]:
        ledger = self.source.ledger
        arrays = ledger.arrays
        columns = arrays.changed_since(self._seen) if self._epoch >= 0 else None
        if columns is None:
            names = dict.fromkeys([*self._nodes, *ledger.node_names()])
        else:
            names = dict.fromkeys(
                filter(None, (arrays.names[column] for column in columns if column < len(arrays.names)))
            )
            if self._epoch != arrays.epoch:
                registered = set(ledger.node_names())
                names.update(dict.fromkeys(name for name in self._nodes if name not in registered))
                names.update(dict.fromkeys(name for name in ledger.node_names() if name not in self._nodes))
        self._seen, self._epoch = arrays.now, arrays.epoch
        moving = self.source.view.moving()
        for uid in moving.keys() | self._moving.keys():
            entry = ledger.pod(uid)
            if moving.get(uid) is not self._moving.get(uid) and entry is not None:
                names[entry.facts.node] = None
        self._moving = moving
        for name in self.source.measured_anew():
            names[name] = None
        return list(names)
