"""The cards of this machine, through NVML.

Looking at cards, listening to them and changing them may each have a thread: they share nothing but NVML itself, which
allows that. NVML is started by the first question and again after it broke down, so that a driver may come later or be
replaced. A card that was lost is seen again by a new start only, so one is made now and then while a card is missing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from tessera.core.devices import MigPlacement
from tessera.node.inventory.cards import (
    CardError,
    CardEvent,
    CardFacts,
    ComputeMode,
    Found,
    InventoryError,
    Links,
    MigInstance,
    MigOffer,
)
from tessera.node.inventory.numa import SYSFS, numa_node
from tessera.node.inventory.nvml_cards import read_card, told_apart
from tessera.node.inventory.nvml_library import Binding, load_binding
from tessera.node.inventory.nvml_links import read_links
from tessera.node.inventory.nvml_listener import NvmlListener
from tessera.node.inventory.nvml_mig import create_instance, destroy_instance, read_instances
from tessera.node.inventory.nvml_mig_devices import has_processes
from tessera.node.inventory.nvml_mig_mode import read_mode, switch_mode
from tessera.node.inventory.nvml_session import Line, Session

T = TypeVar("T")

RENEW_EVERY_S = 60.0
"""seconds between new starts for the sake of a lost card; one takes seconds on a machine with many cards"""


class NvmlHardware:
    """A `Hardware`. `close` it after its threads have ended."""

    def __init__(
        self,
        *,
        driver_root: Path = Path("/"),
        load: Callable[[], Binding] | None = None,
        sysfs: Path = SYSFS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`load` gives pynvml with its library; by default the library is looked for under `driver_root`."""
        self._load = load or partial(load_binding, driver_root)
        self._numa = partial(numa_node, sysfs=sysfs)
        self._clock = clock
        self._renewed_at = clock()
        self._uuids: dict[int, str] = {}
        self._looking = Line(self._load)
        self._hearing = NvmlListener(self._load)

    def scan(self) -> list[Found]:
        with self._looking.asking() as session:
            found = told_apart([self._read(session, index) for index in range(session.api.nvmlDeviceGetCount())])
        if not all(isinstance(card, CardFacts) for card in found):
            # NVML ends, and counts cards anew, once nobody uses it: for a moment between this scan and the next.
            self._looking.drop()
            if self._clock() - self._renewed_at >= RENEW_EVERY_S:
                self._renewed_at = self._clock()
                self._hearing.renew()
        return found

    def _read(self, session: Session, index: int) -> Found:
        card = read_card(session, index, last_uuid=self._uuids.get(index), numa=self._numa)
        if card.uuid is not None:
            self._uuids[index] = card.uuid
        return card

    def links(self, uuids: Sequence[str]) -> dict[tuple[str, str], Links]:
        with self._looking.asking() as session:
            return read_links(session, uuids)

    def listen(self, uuids: Sequence[str]) -> dict[str, str]:
        return self._hearing.listen(uuids)

    def wait(self, timeout: float) -> CardEvent | None:
        return self._hearing.wait(timeout)

    def close(self) -> None:
        self._hearing.close()
        self._looking.drop()

    def mig_enabled(self, uuid: str) -> bool:
        return self._change(lambda session: read_mode(session, uuid))

    def enable_mig(self, uuid: str) -> None:
        self._switch(uuid, on=True)

    def disable_mig(self, uuid: str) -> None:
        self._switch(uuid, on=False)

    def _switch(self, uuid: str, *, on: bool) -> None:
        if self._change(lambda session: switch_mode(session, uuid, on=on)):
            # The card was reset, and what was registered for its events went with it.
            self._hearing.renew()

    def instances(self, uuid: str) -> list[MigInstance]:
        return self._change(lambda session: read_instances(session, uuid))

    def create(self, uuid: str, offer: MigOffer, placement: MigPlacement) -> MigInstance:
        return self._change(lambda session: create_instance(session, uuid, offer, placement))

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
        """In a session of its own, since whoever changes cards may do so from any thread."""
        line = Line(self._load)
        try:
            with line.asking() as session:
                return work(session)
        finally:
            line.drop()


def _compute_mode(session: Session, uuid: str) -> int:
    handle = session.card(uuid)
    with session.about(uuid, "reading its compute mode"):
        return int(session.api.nvmlDeviceGetComputeMode(handle))


def _set_compute_mode(session: Session, uuid: str, mode: ComputeMode) -> None:
    handle = session.card(uuid)
    with session.about(uuid, f"setting its compute mode to {mode.name}"):
        session.api.nvmlDeviceSetComputeMode(handle, mode.value)
