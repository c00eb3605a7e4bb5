"""How many evictions are left in the last hour, counted over a restart.

The record is an annotation of the Lease that the process holds: one time for each eviction, written *before* it. So a
process that dies counts at most one step too much, and one that has lost the Lease can evict nothing more. What cannot
be read counts as a full hour of evictions.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from tessera.kube.lease_election import LeaseElection

HOUR_S = 3600.0
ANNOTATION = "tessera.io/evictions"
LONGEST = 65_536
"""characters of the annotation that are read: some thousand times"""


class EvictionBudget:
    """The evictions of the last hour."""

    def __init__(self, election: LeaseElection, *, per_hour: int, now: Callable[[], float]) -> None:
        """`now` is the wall clock in unix seconds."""
        self._election = election
        self._per_hour = per_hour
        self._now = now

    def left(self) -> int:
        return max(0, self._per_hour - len(self._recent()))

    async def spend(self, count: int) -> bool:
        """Count so many evictions, if that many are left. Raises LeaseLost and KubeError: then none may follow."""
        recent = self._recent()
        if len(recent) + count > self._per_hour:
            return False
        times = [*recent, *[round(self._now())] * count]
        await self._election.annotate({ANNOTATION: msgspec.json.encode(times).decode()})
        return True

    def _recent(self) -> list[int]:
        now = round(self._now())
        text = self._election.annotations.get(ANNOTATION, "[]")
        try:
            if len(text) > LONGEST:
                raise msgspec.DecodeError("too long")
            times = msgspec.json.decode(text, type=list[int])
        except (msgspec.MsgspecError, UnicodeError):
            return [now] * self._per_hour
        # One from the future, by a clock that was wrong, counts from now on: for an hour at most after it is written.
        return sorted(min(time, now) for time in times if time > now - HOUR_S)
