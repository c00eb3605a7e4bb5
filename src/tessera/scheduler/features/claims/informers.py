"""Handlers of the informers for ResourceClaims, DeviceClasses and ResourceSlices.

Agents publish the devices of their node in ResourceSlices. A card that is registered on its node takes claims only
while the pool of the node is complete and offers it to Tessera. What selectors of claims see of the card comes from
there; what it has free is the ledger's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from tessera.core.model.devices import NodeFacts
from tessera.scheduler.features.claims.book import ClaimBook
from tessera.scheduler.informers.handler import InformerHandler
from tessera.vendors.claims.pools import PoolDevices, pool_devices, with_published
from tessera.wire.resource_api import DRIVER, DeviceClass, ResourceClaim, ResourceSlice


class ClaimInformer(InformerHandler[ResourceClaim]):
    def __init__(self, book: ClaimBook, on_synced: Callable[[], None]) -> None:
        super().__init__(on_synced)
        self._book = book

    def put(self, key: str, claim: ResourceClaim) -> None:
        self._book.observe(claim)

    def drop(self, key: str) -> None:
        self._book.drop(key)


class ClassInformer(InformerHandler[DeviceClass]):
    def __init__(self, book: ClaimBook, on_synced: Callable[[], None]) -> None:
        super().__init__(on_synced)
        self._book = book

    def put(self, key: str, found: DeviceClass) -> None:
        self._book.put_class(found)

    def drop(self, key: str) -> None:
        self._book.drop_class(key)


class ClaimPools(InformerHandler[ResourceSlice]):
    """The pools of all nodes."""

    def __init__(self, on_pool: Callable[[str], None], on_synced: Callable[[], None]) -> None:
        """`on_pool`: a node offers other devices than before."""
        super().__init__(on_synced)
        self._on_pool = on_pool
        self._slices: dict[str, dict[str, ResourceSlice]] = {}
        """by pool and name"""
        self._pool_of: dict[str, str] = {}
        """by name of the slice"""
        self._pools: dict[str, PoolDevices] = {}

    @property
    def by_name(self) -> Mapping[str, PoolDevices]:
        """All pools, those with a problem included. A pool has the name of its node."""
        return self._pools

    def join(self, facts: NodeFacts) -> NodeFacts:
        """The node with what selectors of claims see of its cards; nothing while its pool has a problem."""
        pool = self._pools.get(facts.name)
        if pool is None or pool.problem:
            return facts
        return replace(facts, devices=with_published(facts.devices, pool))

    def put(self, key: str, found: ResourceSlice) -> None:
        if found.spec.driver != DRIVER:
            self.drop(key)
            return
        pool = found.spec.pool.name
        if self._pool_of.get(key, pool) != pool:
            self.drop(key)
        self._pool_of[key] = pool
        self._slices.setdefault(pool, {})[key] = found
        self._read(pool)

    def take_over(self, pool: PoolDevices) -> None:
        """Know a pool as another reader of the same slices does; for trials, which have no informers."""
        self._pools[pool.name] = pool

    def drop(self, key: str) -> None:
        pool = self._pool_of.pop(key, None)
        if pool is not None:
            del self._slices[pool][key]
            self._read(pool)

    def _read(self, pool: str) -> None:
        known, slices = self._pools.get(pool), self._slices[pool]
        found = pool_devices(tuple(slices.values())) if slices else None
        if not slices:
            del self._slices[pool]
        if found == known:
            return
        if found is None:
            self._pools.pop(pool, None)
        else:
            self._pools[pool] = found
        self._on_pool(pool)
