"""This replica leads while the kube-scheduler beside it holds the Lease. No request and no election here.

A lease is valid from the moment when its holder *began* to renew it, and for less than its duration: other hosts wait
for the whole of it. Where it was taken without that wait (overwritten, or deleted and made again), this replica waits.
The holder must be this host exactly: `host-1` does not lead if `host-10_...` does. So the renewal time in a lease of
ours is from this machine's wall clock, and clocks of different machines are never compared.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime

import msgspec

VALID_SHARE = 2 / 3
"""of a lease's duration: kube-scheduler gives up after 10 of 15 s without a renewal (renewDeadline)"""
LONGEST_S = 150
"""of a lease's duration that counts: a client that can write a Lease can write any number"""
CLOCK_SET_S = 1.0
"""by which a wall clock that was set differs from one that is only corrected"""


class LeaseMetadata(msgspec.Struct, gc=False, frozen=True, rename="camel"):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""


class LeaseSpec(msgspec.Struct, gc=False, frozen=True, rename="camel"):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class Lease(msgspec.Struct, gc=False, frozen=True, rename="camel"):
    metadata: LeaseMetadata = LeaseMetadata()
    spec: LeaseSpec = LeaseSpec()


def holder_host(identity: str) -> str:
    """The host in `<host>_<random id>`, the form that Kubernetes components use."""
    host, found, _ = identity.rpartition("_")
    return host if found else identity


def is_leader(lease: Lease | None, identity_host: str, renewed_at: float, now: float) -> bool:
    """Whether `identity_host` holds the lease. Both times are in seconds of one clock."""
    if lease is None or not lease.spec.holder_identity or not identity_host:
        return False
    return _holder(lease) == identity_host and renewed_at + _duration(lease) * VALID_SHARE > now


def boottime() -> float:
    """Seconds of a clock that is never set, and runs on while the machine sleeps."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class LeaseWatch:
    """The last observed lease; the sink of a reflector on that one lease (`metadata.name=...`)."""

    def __init__(self, identity_host: str, *, clock: Callable[[], float], now: Callable[[], float]) -> None:
        """`clock` measures, `now` is the wall clock in unix seconds."""
        self._host = identity_host
        self._clock = clock
        self._now = now
        self._lease: Lease | None = None
        self._renewed_at = 0.0
        self._seen_at = 0.0
        """when the lease was first seen as it is"""
        self._longest = 0
        """duration of the lease since it was acquired, in seconds"""
        self._others_until = 0.0
        """until then another host may believe in a lease that it has lost before its time"""
        self._acquisitions = 0
        """changes of the holder that were observed"""
        self._ahead = now() - clock()
        """of the wall clock before the other one"""
        self._set_back = (0.0, 0.0)
        """when the wall clock was last found set back, and by how many seconds"""

    def tenure(self) -> int | None:
        """The number of the acquisition by which this host leads; None if it does not.

        No other host has led between two moments with the same number, whatever was observed in between.
        """
        now = self._clock()
        leads = now >= self._others_until and is_leader(self._lease, self._host, self._renewed_at, now)
        return self._acquisitions if leads else None

    def put(self, key: str, obj: Lease) -> None:
        known, before = self._lease, self._renewed_at
        is_same = known is not None and _acquisition(obj) == _acquisition(known)
        longest = max(self._longest, _duration(obj))
        if not is_same and self._acquisitions and not self._is_orderly(obj, longest):
            # A host that was not seen here may have led until now, and not know that it has lost the lease.
            self._others_until = max(self._others_until, self._clock() + longest * VALID_SHARE)
        self._longest = longest if is_same else _duration(obj)
        # A new list repeats an old lease; only a change proves that its holder is alive.
        if known is None or obj.spec != known.spec:
            self._seen_at = self._clock()
            self._renewed_at = self._seen_at - self._age(obj)
        is_gap = known is not None and self._renewed_at > before + _duration(known) * VALID_SHARE
        if not is_same or is_gap:
            self._acquisitions += 1
        self._lease = obj

    def drop(self, key: str) -> None:
        self._lease = None

    def synced(self) -> None:
        pass

    def _is_orderly(self, obj: Lease, duration: float) -> bool:
        """Whether the lease changed hands as kube-schedulers do it: the next in turn took what was given up or over."""
        known = self._lease
        if known is None or known.metadata.uid != obj.metadata.uid:
            return False
        if not _holder(obj):
            return True
        is_over = not _holder(known) or self._clock() >= self._seen_at + duration * VALID_SHARE
        is_next = (obj.spec.lease_transitions or 0) == (known.spec.lease_transitions or 0) + 1
        return is_next and (is_over or _holder(known) == _holder(obj))

    def _age(self, lease: Lease) -> float:
        """Seconds since the holder began to renew; more than any lease lasts where it cannot be told. A renewal that
        may be from before the wall clock was set back is older than it looks; the next one tells."""
        wall, clock = self._now(), self._clock()
        if self._ahead - (wall - clock) > CLOCK_SET_S:
            self._set_back = clock, self._ahead - (wall - clock)
        self._ahead = wall - clock
        try:
            age = wall - datetime.fromisoformat(lease.spec.renew_time or "").timestamp()
        except (ValueError, OverflowError):
            return LONGEST_S
        if age < -CLOCK_SET_S:
            return LONGEST_S
        set_at, seconds = self._set_back
        return max(0.0, age) + (seconds if clock < set_at + _duration(lease) else 0.0)


def _holder(lease: Lease) -> str:
    return holder_host(lease.spec.holder_identity or "")


def _duration(lease: Lease) -> int:
    return min(max(lease.spec.lease_duration_seconds or 0, 0), LONGEST_S)


def _acquisition(lease: Lease) -> tuple[object, ...]:
    """Differs if the lease changed hands."""
    spec = lease.spec
    return lease.metadata.uid, spec.holder_identity, spec.lease_transitions, spec.acquire_time
