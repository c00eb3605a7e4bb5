"""Handlers of the informers for ResourceClaims and DeviceClasses."""

from __future__ import annotations

from collections.abc import Callable

from tessera.scheduler.claims.book import ClaimBook
from tessera.wire.claim_spec import DeviceClass
from tessera.wire.resource_api import ResourceClaim


class Informer:
    """A handler that tells when its first list is complete, and each list that decisions have waited for."""

    def __init__(self, on_synced: Callable[[], None]) -> None:
        self._on_synced = on_synced
        self.has_synced = False

    def synced(self) -> None:
        is_first, self.has_synced = not self.has_synced, True
        if is_first:
            self._on_synced()


class ClaimInformer(Informer):
    def __init__(self, book: ClaimBook, on_synced: Callable[[], None]) -> None:
        super().__init__(on_synced)
        self._book = book

    def put(self, key: str, claim: ResourceClaim) -> None:
        self._book.observe(claim)

    def drop(self, key: str) -> None:
        self._book.drop(key)


class ClassInformer(Informer):
    def __init__(self, book: ClaimBook, on_synced: Callable[[], None]) -> None:
        super().__init__(on_synced)
        self._book = book

    def put(self, key: str, found: DeviceClass) -> None:
        self._book.put_class(found)

    def drop(self, key: str) -> None:
        self._book.drop_class(key)
