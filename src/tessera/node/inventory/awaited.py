"""A node whose driver is not there yet: it has no cards until the driver comes, which is looked for at every scan.

    no cards --(a scan finds the driver)--> the driver's cards, for good

The watch over the cards scans every half minute while all is well, which is often enough. Nothing is ever taken back: a
driver that goes again is that hardware's own to report.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import structlog

from tessera.core.devices import MigPlacement
from tessera.node.inventory.cards import (
    CardEvent,
    ComputeMode,
    Found,
    Hardware,
    Links,
    MigInstance,
    MigOffer,
)
from tessera.node.inventory.null import NullHardware

log = structlog.get_logger(__name__)


class AwaitedHardware:
    """A `Hardware`."""

    def __init__(self, is_there: Callable[[], bool], make: Callable[[], Hardware]) -> None:
        """`is_there` may block; `make` is called once, when it says so."""
        self._is_there = is_there
        self._make = make
        self._now: Hardware = NullHardware()
        self._came = False

    def scan(self) -> list[Found]:
        if not self._came and self._is_there():
            log.info("NVIDIA's management library is there now")
            # The null one is left to itself: another thread may be waiting in it.
            self._now, self._came = self._make(), True
        return self._now.scan()

    def links(self, uuids: Sequence[str]) -> dict[tuple[str, str], Links]:
        return self._now.links(uuids)

    def listen(self, uuids: Sequence[str]) -> dict[str, str]:
        return self._now.listen(uuids)

    def wait(self, timeout: float) -> CardEvent | None:
        return self._now.wait(timeout)

    def close(self) -> None:
        self._now.close()

    def mig_enabled(self, uuid: str) -> bool:
        return self._now.mig_enabled(uuid)

    def enable_mig(self, uuid: str) -> None:
        self._now.enable_mig(uuid)

    def disable_mig(self, uuid: str) -> None:
        self._now.disable_mig(uuid)

    def instances(self, uuid: str) -> list[MigInstance]:
        return self._now.instances(uuid)

    def create(self, uuid: str, offer: MigOffer, placement: MigPlacement) -> MigInstance:
        return self._now.create(uuid, offer, placement)

    def destroy(self, instance: MigInstance) -> None:
        self._now.destroy(instance)

    def is_busy(self, uuid: str) -> bool:
        return self._now.is_busy(uuid)

    def compute_mode(self, uuid: str) -> ComputeMode:
        return self._now.compute_mode(uuid)

    def set_compute_mode(self, uuid: str, mode: ComputeMode) -> None:
        self._now.set_compute_mode(uuid, mode)
