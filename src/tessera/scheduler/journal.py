"""The decision journal of a running scheduler: every change of the ledger and every decision, in memory.

The ring holds references to the core's frozen values, not text, so that recording costs little. When it is full, the
oldest records leave. What a state record says then goes into the base, so base and ring are always a complete journal.
Reading converts to the structs of `wire.journal`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from tessera.scheduler.observer import SchedulerObserver
from tessera.wire.journal import Record


class Journal(SchedulerObserver):
    """Records what the ledger and the pipeline report. Used from the event loop only."""

    @property
    def sequence(self) -> int:
        """Number of the newest record; 0 before the first."""
        raise NotImplementedError

    @property
    def oldest(self) -> int:
        """Number of the oldest record that is not part of the base."""
        raise NotImplementedError

    def read(self, since: int | None = None, *, follow: bool = False, snapshot: bool = True) -> AsyncIterator[Record]:
        """The records after number `since`, or all that are kept; with `follow` for ever, as they come.

        They begin with `Start`, the state as it was after record `since`, and `SnapshotEnd`. Without `snapshot` that
        is left out if the ring reaches back to `since`; a reader that gets a `Start` all the same was too slow, or
        asks another process, and begins afresh.
        """
        raise NotImplementedError
