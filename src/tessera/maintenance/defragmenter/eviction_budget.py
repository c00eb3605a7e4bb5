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
    """The evictions of the last hour. How long ago they were is read from the record once, and measured from there: a
    wall clock that is set gives no evictions and takes none for longer than an hour."""

    def __init__(
        self, election: LeaseElection, *, per_hour: int, now: Callable[[], float], clock: Callable[[], float]
    ) -> None:
        """`now` is the wall clock in unix seconds, `clock` measures."""
        self._election = election
        self._per_hour = per_hour
        self._now = now
        self._clock = clock
        self._known: tuple[str, list[float]] = ("[]", [])
        """the record as it was read or written last, and its times by `clock`"""

    def left(self) -> int:
        return max(0, self._per_hour - len(self._recent()))

    async def spend(self, count: int) -> bool:
        """Count so many evictions, if that many are left. Raises LeaseLost and KubeError: then none may follow."""
        times = [*self._recent(), *[self._clock()] * count]
        if len(times) > self._per_hour:
            return False
        ahead = self._now() - self._clock()
        text = msgspec.json.encode([round(time + ahead) for time in times]).decode()
        await self._election.annotate({ANNOTATION: text})
        self._known = text, times
        return True

    def _recent(self) -> list[float]:
        text = self._election.annotations.get(ANNOTATION, "[]")
        if text != self._known[0]:
            self._known = text, self._read(text)
        return [time for time in self._known[1] if time > self._clock() - HOUR_S]

    def _read(self, text: str) -> list[float]:
        now, clock = self._now(), self._clock()
        try:
            if len(text) > LONGEST:
                raise msgspec.DecodeError("too long")
            times = msgspec.json.decode(text, type=list[int])
        except (msgspec.MsgspecError, UnicodeError):
            return [clock] * self._per_hour
        # One from the future, by a clock that was wrong, counts from now on.
        return [clock - max(0.0, now - time) for time in times]
