"""The hardware of a node without a driver: none at all, or none until the driver is installed.

    no cards --(a scan finds the driver)--> the driver's cards, for good

`HardwareWatch` scans every half minute, which is often enough to find a new driver. If the driver goes away again, the
hardware behind it reports that itself.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import NoReturn

import structlog

from tessera.core.devices import MigPlacement
from tessera.host.cards import (
    CardError,
    CardEvent,
    ComputeMode,
    Found,
    GpuInstanceProfile,
    Hardware,
    Links,
    MigInstance,
)

log = structlog.get_logger(__name__)

_NO_CARDS = "this node has no cards"


class NullHardware:
    """A `Hardware` without cards."""

    def __init__(self) -> None:
        self._closed = threading.Event()

    def scan(self) -> list[Found]:
        return []

    def links(self, uuids: Sequence[str]) -> dict[tuple[str, str], Links]:
        for uuid in uuids:
            _refuse(uuid)
        return {}

    def listen(self, uuids: Sequence[str]) -> dict[str, str]:
        return dict.fromkeys(uuids, _NO_CARDS)

    def wait(self, timeout: float) -> CardEvent | None:
        self._closed.wait(timeout)
        return None

    def close(self) -> None:
        self._closed.set()

    def mig_enabled(self, uuid: str) -> bool:
        _refuse(uuid)

    def enable_mig(self, uuid: str) -> None:
        _refuse(uuid)

    def disable_mig(self, uuid: str) -> None:
        _refuse(uuid)

    def instances(self, uuid: str) -> list[MigInstance]:
        _refuse(uuid)

    def create(self, uuid: str, profile: GpuInstanceProfile, placement: MigPlacement) -> MigInstance:
        _refuse(uuid)

    def destroy(self, instance: MigInstance) -> None:
        _refuse(instance.uuid)

    def is_busy(self, uuid: str) -> bool:
        return True

    def compute_mode(self, uuid: str) -> ComputeMode:
        _refuse(uuid)

    def set_compute_mode(self, uuid: str, mode: ComputeMode) -> None:
        _refuse(uuid)


def _refuse(uuid: str) -> NoReturn:
    raise CardError(uuid, _NO_CARDS)


class AwaitedHardware:
    """A `Hardware` that has no cards until the driver is there."""

    def __init__(self, is_there: Callable[[], bool], make: Callable[[], Hardware]) -> None:
        """`is_there` may block; `make` is called once, when it returns True."""
        self._is_there = is_there
        self._make = make
        self._now: Hardware = NullHardware()
        self._came = False

    def scan(self) -> list[Found]:
        if not self._came and self._is_there():
            log.info("NVIDIA's management library was found")
            # NullHardware is not closed: another thread may be waiting in it.
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

    def create(self, uuid: str, profile: GpuInstanceProfile, placement: MigPlacement) -> MigInstance:
        return self._now.create(uuid, profile, placement)

    def destroy(self, instance: MigInstance) -> None:
        self._now.destroy(instance)

    def is_busy(self, uuid: str) -> bool:
        return self._now.is_busy(uuid)

    def compute_mode(self, uuid: str) -> ComputeMode:
        return self._now.compute_mode(uuid)

    def set_compute_mode(self, uuid: str, mode: ComputeMode) -> None:
        self._now.set_compute_mode(uuid, mode)
