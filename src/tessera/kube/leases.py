"""This replica leads while the kube-scheduler beside it holds the Lease. No request and no election here.

A lease is valid from the moment when its holder *began* to renew it, and for less than its duration: other hosts wait
for the whole of it. The holder must be this host exactly: `host-1` does not lead if `host-10_...` does. So the renewal
time in a lease of ours is from this machine's wall clock, and clocks of different machines are never compared.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime

import msgspec

VALID_SHARE = 2 / 3
"""of a lease's duration: kube-scheduler gives up after 10 of 15 s without a renewal (renewDeadline)"""


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
    valid = (lease.spec.lease_duration_seconds or 0) * VALID_SHARE
    return holder_host(lease.spec.holder_identity) == identity_host and renewed_at + valid > now


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
        self._acquisitions = 0
        """changes of the holder that were observed"""

    def tenure(self) -> int | None:
        """The number of the acquisition by which this host leads; None if it does not.

        No other host has led between two moments with the same number, whatever was observed in between.
        """
        return self._acquisitions if is_leader(self._lease, self._host, self._renewed_at, self._clock()) else None

    def put(self, key: str, obj: Lease) -> None:
        known = self._lease
        # A new list repeats an old lease; only a change proves that its holder is alive.
        if known is None or obj.spec != known.spec:
            self._renewed_at = self._clock() - self._age(obj)
        if known is None or _acquisition(obj) != _acquisition(known):
            self._acquisitions += 1
        self._lease = obj

    def drop(self, key: str) -> None:
        self._lease = None

    def synced(self) -> None:
        pass

    def _age(self, lease: Lease) -> float:
        """Seconds since the holder began to renew; 0 where it cannot be told."""
        try:
            renewed = datetime.fromisoformat(lease.spec.renew_time or "").timestamp()
        except ValueError:
            return 0.0
        return max(0.0, self._now() - renewed)


def _acquisition(lease: Lease) -> tuple[object, ...]:
    """Differs if the lease changed hands."""
    spec = lease.spec
    return lease.metadata.uid, spec.holder_identity, spec.lease_transitions, spec.acquire_time
