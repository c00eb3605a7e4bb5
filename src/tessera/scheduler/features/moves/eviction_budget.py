"""How many evictions are left in the last hour, counted over restarts and changes of the leader.

The record is an annotation of a Lease that no process holds: one time for each eviction, written *before* it, for the
version that was read. So a process that dies counts at most one step too much, and of two processes that believe to
decide only one can spend. What cannot be read counts as a full hour of evictions.
"""

from __future__ import annotations

import msgspec

from tessera.kube.errors import KubeError, is_conflict
from tessera.scheduler.clock import Clock
from tessera.scheduler.kube_api import KubeApi

HOUR_S = 3600.0
LEASE = "tessera-defrag"
ANNOTATION = "tessera.io/evictions"
LONGEST = 65_536
"""characters of the annotation that are read: some thousand times"""


class EvictionBudget:
    """The evictions of the last hour. How long ago they were is read from the record once, and measured from there: a
    wall clock that is set gives no evictions and takes none for longer than an hour."""

    def __init__(self, api: KubeApi, clock: Clock, *, per_hour: int, namespace: str | None = None) -> None:
        """`namespace` of the record; None: that of the client."""
        self._api = api
        self._namespace = namespace
        self._clock = clock
        self._per_hour = per_hour
        self._version = ""
        """of the record; empty: there is none"""
        self._known: tuple[str, list[float]] = ("[]", [])
        """the record as it was read or written last, and its times by the monotonic clock"""

    def left(self) -> int:
        """As far as is known since the last `load`."""
        return max(0, self._per_hour - len(self._recent()))

    async def load(self) -> None:
        """Read the record. Raises KubeError."""
        found = await self._api.find_record(self._namespace, LEASE)
        annotations = (found.metadata.annotations if found is not None else None) or {}
        self._version = "" if found is None else found.metadata.resource_version
        text = annotations.get(ANNOTATION, "[]")
        if text != self._known[0]:
            self._known = text, self._read(text)

    async def spend(self, count: int) -> bool:
        """Count so many evictions, if that many are left. Raises KubeError: then none may follow."""
        await self.load()
        times = [*self._recent(), *[self._clock.monotonic()] * count]
        if len(times) > self._per_hour:
            return False
        ahead = self._clock.now() - self._clock.monotonic()
        text = msgspec.json.encode([round(time + ahead) for time in times]).decode()
        try:
            await self._api.write_record(self._namespace, LEASE, {ANNOTATION: text}, version=self._version)
        except KubeError as error:
            if is_conflict(error):
                return False  # Another process spends.
            raise
        self._known = text, times
        return True

    def _recent(self) -> list[float]:
        return [time for time in self._known[1] if time > self._clock.monotonic() - HOUR_S]

    def _read(self, text: str) -> list[float]:
        now, clock = self._clock.now(), self._clock.monotonic()
        try:
            if len(text) > LONGEST:
                raise msgspec.DecodeError("too long")
            times = msgspec.json.decode(text, type=list[int])
        except (msgspec.MsgspecError, UnicodeError):
            return [clock] * self._per_hour
        # One from the future, by a clock that was wrong, counts from now on.
        return [clock - max(0.0, now - time) for time in times]
