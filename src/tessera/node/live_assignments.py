"""Which slices containers of this node hold, whatever they were handed over by: pods with annotations, ResourceClaims.

What is unknown does not count as gone: while one source cannot say, none of them is complete.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from tessera.node.handover.assignments import Assignment
from tessera.node.watched_value import WatchedValue


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
