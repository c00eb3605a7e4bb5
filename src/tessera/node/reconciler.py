"""Releases what no container needs: of the sharing mode, and of what an earlier configuration left on the node.

Holders are pods with annotations and ResourceClaims (`LiveAssignments`). What is unknown does not count as gone: while
one source cannot say, nothing is released. The mode is told who holds slices. A fault of it is logged and retried in
the next round, and cards that it cannot share now are reported to the hardware watch.

What an earlier configuration left does harm: a card with an MPS daemon refuses every other process, a card in MIG mode
can only be used in parts, and CDI specs that are no longer maintained offer stale devices. What containers of the
earlier configuration may need waits until they have ended. Nothing is touched that the agent does not own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

import structlog

from tessera.host.cards import ComputeModes, Hardware, MigHardware
from tessera.node.fleet import Fleet
from tessera.node.handover.assignments import Assignment
from tessera.node.modes.base import SharingMode
from tessera.node.modes.cdi import FILE, CdiRecord
from tessera.node.modes.mig.instances import holders_of
from tessera.node.modes.mig.mode_switch import retire_mig
from tessera.node.modes.mps.control import MpsProgram
from tessera.node.modes.mps.mode import retire_mps
from tessera.node.settings import AgentSettings
from tessera.node.watched_value import WatchedValue, is_set_within

log = structlog.get_logger(__name__)

EVERY_S = 5.0
"""without a change: the MIG instance of a finished pod must be gone within this time"""
GAP_S = 0.25
"""between two rounds, whatever changes"""

RETRY_S = 30.0
"""between attempts to remove what an earlier configuration left"""

Attempt = Callable[[Sequence[Assignment], Sequence[Assignment]], Awaitable[Mapping[str, str]]]
"""removes what no container needs, given all live assignments and those that existed at first. Returns what stays and
why. Raises OSError"""


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


async def clean_up(
    settings: AgentSettings, hardware: Hardware, assignments: LiveAssignments, *, fleet: WatchedValue[Fleet]
) -> None:
    """Removes everything that is not configured now. Returns when nothing is left.

    If only some cards are in mode `mig`, that mode itself gives the others back: it owns the record of instances.
    """
    async with asyncio.TaskGroup() as group:
        if settings.node.modes != {"mps"}:
            group.create_task(clean_up_mps(settings, hardware, assignments, fleet=fleet))
        if "mig" not in settings.node.modes:
            group.create_task(clean_up_mig(settings, hardware, assignments))
        if not any(each.is_cdi for each in settings.strategies):
            group.create_task(clean_up_cdi(settings, assignments))


async def clean_up_mps(
    settings: AgentSettings, modes: ComputeModes, assignments: LiveAssignments, *, fleet: WatchedValue[Fleet]
) -> None:
    program = MpsProgram(environ=settings.environ)
    others: frozenset[str] | None = None
    if "mps" in settings.node.modes:
        while not fleet.value.cards:
            await fleet.other_than(fleet.value)
        # A card that is not listed may still be one of those in mode mps.
        others = frozenset(card.facts.uuid for card in fleet.value if card.mode not in ("", "mps"))

    async def attempt(_live: Sequence[Assignment], old: Sequence[Assignment]) -> Mapping[str, str]:
        return await retire_mps(settings.paths.mps, modes, program=program, keep=_cards(old), cards=others)

    await _until_gone(attempt, assignments, what="MPS daemons of an earlier mode", where=settings.paths.mps)


async def clean_up_mig(settings: AgentSettings, hardware: MigHardware, assignments: LiveAssignments) -> None:
    async def attempt(live: Sequence[Assignment], _old: Sequence[Assignment]) -> Mapping[str, str]:
        return await retire_mig(settings.paths.state, hardware, holders_of(live))

    await _until_gone(attempt, assignments, what="MIG of an earlier mode", where=settings.paths.state)


async def clean_up_cdi(settings: AgentSettings, assignments: LiveAssignments) -> None:
    record = settings.paths.state / FILE

    async def attempt(_live: Sequence[Assignment], old: Sequence[Assignment]) -> Mapping[str, str]:
        if not await asyncio.to_thread(record.exists):
            return {}
        if old:
            return {str(record): "containers that started with these specs still exist"}
        await asyncio.to_thread(CdiRecord(settings.paths.state).retire)
        return {}

    await _until_gone(attempt, assignments, what="CDI specs of an earlier strategy", where=record)


async def _until_gone(attempt: Attempt, assignments: LiveAssignments, *, what: str, where: Path) -> None:
    await assignments.wait()
    known = assignments.all()
    before = _uids(known)
    logged: Mapping[str, str] = {}
    while True:
        live = assignments.all()
        if known is None or live is None:
            # Unknown assignments may need anything, so everything waits.
            known, before = live, _uids(live)
        else:
            left = await _left(attempt, live, [each for each in live if each.pod.uid in before], where)
            if not left:
                return
            if left != logged:
                log.warning(f"{what} stay for now", left=left)
            logged = left
        await asyncio.sleep(RETRY_S)


async def _left(
    attempt: Attempt, live: Sequence[Assignment], old: Sequence[Assignment], where: Path
) -> Mapping[str, str]:
    try:
        return await attempt(live, old)
    except OSError as error:
        return {str(where): str(error)}


def _uids(assignments: Sequence[Assignment] | None) -> frozenset[str]:
    return frozenset(assignment.pod.uid for assignment in assignments or ())


def _cards(assignments: Sequence[Assignment]) -> frozenset[str]:
    return frozenset(each.uuid for assignment in assignments for each in assignment.slices)
