"""This replica leads while the kube-scheduler beside it holds the Lease. No clock, no request and no election here.

A lease is valid from the time when a *change* of it was observed here, so clocks of machines are never compared. The
holder must be this host exactly: `host-1` does not lead if `host-10_...` does.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec


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


def is_leader(lease: Lease | None, identity_host: str, observed_at: float, now: float) -> bool:
    """Whether `identity_host` holds the lease. Both times are in seconds of one clock."""
    if lease is None or not lease.spec.holder_identity or not identity_host:
        return False
    duration = lease.spec.lease_duration_seconds or 0
    return holder_host(lease.spec.holder_identity) == identity_host and observed_at + duration > now


class LeaseWatch:
    """The last observed lease; the sink of a reflector on that one lease (`metadata.name=...`)."""

    def __init__(self, identity_host: str, *, clock: Callable[[], float]) -> None:
        self._host = identity_host
        self._clock = clock
        self._lease: Lease | None = None
        self._observed_at = 0.0

    @property
    def lease(self) -> Lease | None:
        return self._lease

    def leads(self) -> bool:
        return is_leader(self._lease, self._host, self._observed_at, self._clock())

    def put(self, key: str, obj: Lease) -> None:
        # A new list repeats an old lease; only a change proves that its holder is alive.
        if self._lease is None or obj.spec != self._lease.spec:
            self._observed_at = self._clock()
        self._lease = obj

    def drop(self, key: str) -> None:
        self._lease = None

    def synced(self) -> None:
        pass
