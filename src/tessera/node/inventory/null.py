"""A node without cards: everything can be asked and nothing is there."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import NoReturn

from tessera.core.devices import MigPlacement
from tessera.node.inventory.cards import (
    CardError,
    CardEvent,
    ComputeMode,
    Found,
    Links,
    MigInstance,
    MigOffer,
)


class NullHardware:
    """A `Hardware`."""

    def __init__(self) -> None:
        self._closed = threading.Event()

    def scan(self) -> list[Found]:
        return []

    def links(self, uuids: Sequence[str]) -> dict[tuple[str, str], Links]:
        for uuid in uuids:
            _refuse(uuid)
        return {}

    def listen(self, uuids: Sequence[str]) -> dict[str, str]:
        return dict.fromkeys(uuids, _NOTHING)

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

    def create(self, uuid: str, offer: MigOffer, placement: MigPlacement) -> MigInstance:
        _refuse(uuid)

    def destroy(self, instance: MigInstance) -> None:
        _refuse(instance.uuid)

    def is_busy(self, uuid: str) -> bool:
        return True

    def compute_mode(self, uuid: str) -> ComputeMode:
        _refuse(uuid)

    def set_compute_mode(self, uuid: str, mode: ComputeMode) -> None:
        _refuse(uuid)


_NOTHING = "this node has no cards"


def _refuse(uuid: str) -> NoReturn:
    raise CardError(uuid, _NOTHING)
