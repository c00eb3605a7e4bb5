"""Handlers of the informers for ResourceClaims and DeviceClasses."""

from __future__ import annotations

from collections.abc import Callable

from tessera.scheduler.features.claims.book import ClaimBook
from tessera.scheduler.informers.handler import InformerHandler
from tessera.wire.resource_api import DeviceClass, ResourceClaim


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
