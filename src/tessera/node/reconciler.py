"""Tells the sharing mode, again and again, who holds slices on this node, so that it lets go of what belongs to nobody.

Only while every pod of the node is known and can be read: unknown is never nobody. A fault of the mode is logged and
met again in the next round. What the mode says of cards that it cannot share now is passed on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from typing import Protocol

import structlog

from tessera.node.fleet import Fleet
from tessera.node.handover.claims import Claim
from tessera.node.handover.pod_cache import PodCache
from tessera.node.modes.base import SharingMode
from tessera.node.watched_value import Current

log = structlog.get_logger(__name__)

EVERY_S = 5.0
"""without any news: golden cases want a finished pod's MIG instance gone within so long"""
GAP_S = 0.25
"""between two rounds, however much changes"""


class Claims(Protocol):
    """Who knows the pods of this node."""

    @property
    def pods(self) -> PodCache: ...

    def live_claims(self) -> Sequence[Claim] | None:
        """None where that is unknown."""
        ...


class Reconciler:
    """Of one sharing mode, after its start."""

    def __init__(
        self,
        mode: SharingMode,
        claims: Claims,
        fleet: Current[Fleet],
        *,
        mark: Callable[[Mapping[str, str]], None] = lambda _problems: None,
    ) -> None:
        """`mark` is told why cards cannot be shared, by uuid."""
        self._mode = mode
        self._mark = mark
        self._claims = claims
        self._fleet = fleet
        self._news = asyncio.Event()
        self._problem = ""

    async def run(self) -> None:
        """Until cancelled."""
        await self._claims.pods.ready.wait()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._hear_of_pods())
            group.create_task(self._hear_of_cards())
            group.create_task(self._settle_again())

    async def _settle_again(self) -> None:
        while True:
            self._news.clear()
            await self.settle()
            await asyncio.sleep(GAP_S)
            with suppress(TimeoutError):
                async with asyncio.timeout(EVERY_S):
                    await self._news.wait()

    async def _hear_of_pods(self) -> None:
        pods = self._claims.pods
        while True:
            seen = pods.version
            self._news.set()
            await pods.changed(since=seen)

    async def _hear_of_cards(self) -> None:
        async with aclosing(self._fleet.changes()) as fleets:
            async for _ in fleets:
                self._news.set()

    async def settle(self) -> None:
        """One round."""
        live = self._claims.live_claims()
        if live is None:
            self._is("a pod of this node cannot be read, so nothing is let go")
            return
        try:
            await self._mode.settle(live, self._fleet.value)
        except Exception as error:
            # Whatever a card or a daemon comes up with: containers run on, and the next round is soon.
            self._is(f"{type(error).__name__}: {error}", fault=error)
        else:
            self._is("")
        # Most modes have no such problems to tell.
        self._mark(getattr(self._mode, "problems", {}))

    def _is(self, problem: str, *, fault: Exception | None = None) -> None:
        if problem and problem != self._problem:
            log.warning("slices are not settled", problem=problem, exc_info=fault)
        self._problem = problem
