"""An election of its own: at most one process holds a Lease, and writes in it only while it does.

    (absent, given up, or not renewed for its duration) ── acquire ──▶ held ── renewed in time ──▶ held
                                                                        └── not renewed, or another's ──▶ lost

A lease of another process counts as over when it has not changed for its duration by this machine's clock: clocks of
machines are never compared. Every write names the holder that it expects (JSON patch, `test`), so the apiserver refuses
those of a process that has lost the lease. The holder stops believing in its lease before others may take it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from tessera.kube.client import JSON_PATCH, KubeClient
from tessera.kube.errors import ApiError, is_gone, is_invalid
from tessera.kube.leases import LONGEST_S, VALID_SHARE, LeaseSpec
from tessera.kube.resources import LEASES

INT32_MAX = 2**31 - 1


class LeaseLost(Exception):
    """Another process holds the lease, or may hold it by now."""


class HeldMetadata(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str = ""
    annotations: dict[str, str] | None = None


class HeldLease(msgspec.Struct, frozen=True, rename="camel"):
    metadata: HeldMetadata = HeldMetadata()
    spec: LeaseSpec = LeaseSpec()

    @property
    def annotations(self) -> Mapping[str, str]:
        return self.metadata.annotations or {}


class LeaseElection:
    """One process's part in the election."""

    def __init__(
        self,
        client: KubeClient,
        *,
        namespace: str,
        name: str,
        identity: str,
        duration_s: float,
        clock: Callable[[], float],
        now: Callable[[], float],
    ) -> None:
        """`identity` is of this process alone. `clock` measures, `now` is the wall clock in unix seconds."""
        self._client = client
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._duration_s = duration_s
        self._clock = clock
        self._now = now
        self._renewed_at: float | None = None
        """when the last renewal that succeeded began; None: not held"""
        self._seen: tuple[LeaseSpec, float] | None = None
        """the lease of another process, and when it was first seen like this"""
        self.annotations: Mapping[str, str] = {}
        """of the lease, as this process found them when it took it, and has written them since"""

    def is_held(self) -> bool:
        """Whether no other process can hold the lease now."""
        renewed = self._renewed_at
        return renewed is not None and self._clock() < renewed + self._duration_s * VALID_SHARE

    async def acquire(self) -> bool:
        """Take the lease, or renew it; whether it is held now. Raises KubeError if the apiserver does not say."""
        began = self._clock()
        lease = await self._client.find(self._path, HeldLease)
        if lease is None:
            return await self._write(began, self._create)
        holder = lease.spec.holder_identity
        if holder == self._identity:
            renewal = {"op": "replace", "path": "/spec/renewTime", "value": self._stamp()}
            return await self._write(began, lambda: self._patch([*self._expect(holder), renewal]))
        self._renewed_at = None
        if holder and not self._is_over(lease.spec):
            return False
        return await self._write(began, lambda: self._take_over(lease))

    async def annotate(self, annotations: Mapping[str, str]) -> None:
        """Replace these annotations of the lease. Raises LeaseLost if it is not held, and KubeError."""
        if not self.is_held():
            raise LeaseLost
        wanted = {**self.annotations, **annotations}
        change = {"op": "add", "path": "/metadata/annotations", "value": wanted}
        try:
            await self._patch([*self._expect(self._identity), change])
        except ApiError as error:
            if not _is_lost(error):
                raise
            self._renewed_at = None
            raise LeaseLost from error
        self.annotations = wanted

    async def release(self) -> None:
        """Let another process have it at once."""
        if self._renewed_at is not None:
            self._renewed_at = None
            given_up = {"op": "replace", "path": "/spec/holderIdentity", "value": ""}
            await self._patch([*self._expect(self._identity), given_up])

    # -- writes

    @property
    def _path(self) -> str:
        return LEASES.path(self._namespace, self._name)

    async def _write(self, began: float, write: Callable[[], Any]) -> bool:
        try:
            await write()
        except ApiError as error:
            if not _is_lost(error):
                raise
            self._renewed_at = None  # Another process was faster.
            return False
        self._renewed_at, self._seen = began, None
        return True

    async def _create(self) -> None:
        metadata = {"name": self._name, "namespace": self._namespace}
        body = {"apiVersion": LEASES.api_version, "kind": "Lease", "metadata": metadata, "spec": self._spec(0)}
        await self._client.create(LEASES.path(self._namespace), body)
        self.annotations = {}

    async def _take_over(self, lease: HeldLease) -> None:
        """Of exactly this version: two that want it at the same time must not both get it."""
        version = {"op": "test", "path": "/metadata/resourceVersion", "value": lease.metadata.resource_version}
        # As large a number as the apiserver takes is followed by 0, or no process could ever take the lease.
        spec = self._spec(((lease.spec.lease_transitions or 0) + 1) % (INT32_MAX + 1))
        await self._patch([version, {"op": "replace", "path": "/spec", "value": spec}])
        self.annotations = lease.annotations

    async def _patch(self, operations: list[dict[str, Any]]) -> None:
        await self._client.patch(self._path, operations, content_type=JSON_PATCH)

    def _expect(self, holder: str) -> list[dict[str, Any]]:
        return [{"op": "test", "path": "/spec/holderIdentity", "value": holder}]

    def _spec(self, transitions: int) -> dict[str, Any]:
        stamp = self._stamp()
        return {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": max(1, round(self._duration_s)),
            "acquireTime": stamp,
            "renewTime": stamp,
            "leaseTransitions": transitions,
        }

    def _stamp(self) -> str:
        return datetime.fromtimestamp(self._now(), UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")

    def _is_over(self, spec: LeaseSpec) -> bool:
        """Whether the holder has not renewed for its duration, as seen from here."""
        if self._seen is None or self._seen[0] != spec:
            self._seen = spec, self._clock()
        return self._clock() >= self._seen[1] + min(spec.lease_duration_seconds or 0, max(LONGEST_S, self._duration_s))


def _is_lost(error: ApiError) -> bool:
    """Whether a write was refused because the lease is another one; a `test` that fails makes the patch invalid."""
    return is_gone(error) or is_invalid(error)
