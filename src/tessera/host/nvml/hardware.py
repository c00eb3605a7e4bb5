"""The cards of this machine, through NVML.

Scanning, listening and changing cards may each run in a thread; they share only NVML itself, which allows that. The
first call starts NVML, and it is started again after it failed, so a driver may be installed or replaced at any time.
A node that awaits its driver has no cards until a scan finds the driver; that it cannot be read is a fault only then.
NVML sees a lost card again only after a restart, so it is restarted from time to time while a card is missing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import structlog

from tessera.core.model.devices import MigPlacement
from tessera.host.cards import (
    CardError,
    CardEvent,
    CardFacts,
    ComputeMode,
    Found,
    GpuInstanceProfile,
    InventoryError,
    Links,
    MigInstance,
)
from tessera.host.nvml.cards import SYSFS, read_card, read_links, with_unique_uuids
from tessera.host.nvml.events import NvmlListener
from tessera.host.nvml.mig import (
    create_instance,
    destroy_instance,
    has_processes,
    read_instances,
    read_mode,
    switch_mode,
)
from tessera.host.nvml.session import Binding, NvmlConnection, Session, load_binding

log = structlog.get_logger(__name__)

T = TypeVar("T")

RENEW_EVERY_S = 60.0
"""between restarts because of a lost card; a restart takes seconds on a machine with many cards"""


class NvmlHardware:
    """A `Hardware`. Close it after the threads that use it have ended."""

    def __init__(
        self,
        *,
        driver_root: Path = Path("/"),
        awaits_driver: bool = False,
        load: Callable[[], Binding] | None = None,
        sysfs: Path = SYSFS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`load` returns pynvml with its library; by default it searches `driver_root`."""
        self._load = load or partial(load_binding, driver_root)
        self._awaits_driver = awaits_driver
        self._missing = ""
        self._sysfs = sysfs
        self._clock = clock
        self._renewed_at = clock()
        self._uuids: dict[int, str] = {}
        self._nvml = NvmlConnection(self._load)
        self._listener = NvmlListener(self._load)

    def scan(self) -> list[Found]:
        if self._awaits_driver and not self._has_come():
            return []
        with self._nvml.session() as session:
            found = with_unique_uuids([self._read(session, index) for index in range(session.api.nvmlDeviceGetCount())])
        if not all(isinstance(card, CardFacts) for card in found):
            # NVML shuts down and enumerates cards again once no session is open: between this scan and the next.
            self._nvml.close()
            if self._clock() - self._renewed_at >= RENEW_EVERY_S:
                self._renewed_at = self._clock()
                self._listener.renew()
        return found

    def _has_come(self) -> bool:
        try:
            self._load()
        except InventoryError as error:
            if str(error) != self._missing:
                log.warning("no cards so far: NVIDIA's management library cannot be loaded", problem=str(error))
            self._missing = str(error)
            return False
        if self._missing:
            log.info("NVIDIA's management library was found")
        self._awaits_driver = False
        return True

    def _read(self, session: Session, index: int) -> Found:
        card = read_card(session, index, last_uuid=self._uuids.get(index), sysfs=self._sysfs)
        if card.uuid is not None:
            self._uuids[index] = card.uuid
        return card

    def links(self, uuids: Sequence[str]) -> dict[tuple[str, str], Links]:
        with self._nvml.session() as session:
            return read_links(session, uuids)

    def listen(self, uuids: Sequence[str]) -> dict[str, str]:
        return self._listener.listen(uuids)

    def wait(self, timeout: float) -> CardEvent | None:
        return self._listener.wait(timeout)

    def close(self) -> None:
        self._listener.close()
        self._nvml.close()

    def mig_enabled(self, uuid: str) -> bool:
        return self._change(lambda session: read_mode(session, uuid))

    def enable_mig(self, uuid: str) -> None:
        self._switch(uuid, on=True)

    def disable_mig(self, uuid: str) -> None:
        self._switch(uuid, on=False)

    def _switch(self, uuid: str, *, on: bool) -> None:
        if self._change(lambda session: switch_mode(session, uuid, on=on)):
            # The switch reset the card and dropped its event registration.
            self._listener.renew()

    def instances(self, uuid: str) -> list[MigInstance]:
        return self._change(lambda session: read_instances(session, uuid))

    def create(self, uuid: str, profile: GpuInstanceProfile, placement: MigPlacement) -> MigInstance:
        return self._change(lambda session: create_instance(session, uuid, profile, placement))

    def destroy(self, instance: MigInstance) -> None:
        self._change(lambda session: destroy_instance(session, instance))

    def is_busy(self, uuid: str) -> bool:
        try:
            return self._change(lambda session: has_processes(session, uuid))
        except InventoryError:
            return True

    def compute_mode(self, uuid: str) -> ComputeMode:
        number = self._change(lambda session: _compute_mode(session, uuid))
        for mode in ComputeMode:
            if mode.value == number:
                return mode
        raise CardError(uuid, f"its compute mode {number} is unknown")

    def set_compute_mode(self, uuid: str, mode: ComputeMode) -> None:
        self._change(lambda session: _set_compute_mode(session, uuid, mode))

    def _change(self, work: Callable[[Session], T]) -> T:
        """Uses its own session, because changes may come from any thread."""
        nvml = NvmlConnection(self._load)
        try:
            with nvml.session() as session:
                return work(session)
        finally:
            nvml.close()


def _compute_mode(session: Session, uuid: str) -> int:
    handle = session.card(uuid)
    with session.about(uuid, "reading its compute mode"):
        return int(session.api.nvmlDeviceGetComputeMode(handle))


def _set_compute_mode(session: Session, uuid: str, mode: ComputeMode) -> None:
    handle = session.card(uuid)
    with session.about(uuid, f"setting its compute mode to {mode.name}"):
        session.api.nvmlDeviceSetComputeMode(handle, mode.value)
