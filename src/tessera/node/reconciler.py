"""Tells the sharing mode which containers hold slices, so that it releases everything else.

Holders are pods with annotations and ResourceClaims (`LiveAssignments`). What is unknown does not count as gone: while
one source cannot say, nothing is released. A fault of the mode is logged and retried in the next round. Cards that the
mode cannot share now are reported to the hardware watch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Protocol

import structlog

from tessera.node.fleet import Fleet
from tessera.node.handover.assignments import Assignment
from tessera.node.modes.base import SharingMode
from tessera.node.watched_value import WatchedValue, is_set_within

log = structlog.get_logger(__name__)

EVERY_S = 5.0
"""without a change: the MIG instance of a finished pod must be gone within this time"""
GAP_S = 0.25
"""between two rounds, whatever changes"""


class AssignmentSource(Protocol):
    """One kind of holders."""

    ready: asyncio.Event
    """set when all of them are known"""
    version: WatchedValue[int]

    def live_assignments(self) -> Sequence[Assignment] | None:
        """Returns None where one of them cannot be read."""
        ...


class LiveAssignments:
    """All holders of the node."""

    def __init__(self, *sources: AssignmentSource) -> None:
        self._sources = sources

    @property
    def versions(self) -> tuple[WatchedValue[int], ...]:
        """What changes when a source does."""
        return tuple(each.version for each in self._sources)

    async def wait(self) -> None:
        """Returns when all sources are known for the first time."""
        for each in self._sources:
            await each.ready.wait()

    def all(self) -> list[Assignment] | None:
        """Returns None while something is unknown, so that nothing may be released."""
        found: list[Assignment] = []
        for each in self._sources:
            assignments = each.live_assignments()
            if assignments is None:
                return None
            found += assignments
        return found


class Reconciler:
    """Reconciles one sharing mode after its start."""

    def __init__(
        self,
        mode: SharingMode,
        assignments: LiveAssignments,
        fleet: WatchedValue[Fleet],
        *,
        mark: Callable[[Mapping[str, str]], None] = lambda _problems: None,
    ) -> None:
        """`mark` is told why cards cannot be shared, by uuid."""
        self._mode = mode
        self._mark = mark
        self._assignments = assignments
        self._fleet = fleet
        self._changed = asyncio.Event()
        self._problem = ""

    async def run(self) -> None:
        """Runs until cancelled."""
        await self._assignments.wait()
        with ExitStack() as stack:
            for version in self._assignments.versions:
                stack.enter_context(version.waking(self._changed))
            stack.enter_context(self._fleet.waking(self._changed))
            while True:
                self._changed.clear()
                await self.reconcile()
                await asyncio.sleep(GAP_S)
                await is_set_within(self._changed, EVERY_S)

    async def reconcile(self) -> None:
        """Runs one round."""
        live = self._assignments.all()
        if live is None:
            self._set_problem("a pod of this node cannot be read, so nothing is released")
            return
        try:
            await self._mode.reconcile(live, self._fleet.value)
        except Exception as error:
            # No fault of a card or daemon may end the agent: containers run on, and the next round is soon.
            self._set_problem(f"{type(error).__name__}: {error}", fault=error)
        else:
            self._set_problem("")
        self._mark(self._mode.problems)

    def _set_problem(self, problem: str, *, fault: Exception | None = None) -> None:
        if problem and problem != self._problem:
            log.warning("slices are not reconciled", problem=problem, exc_info=fault)
        self._problem = problem
