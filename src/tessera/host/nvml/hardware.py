"""The cards of this machine, and the links between them, through NVML.

Scanning, listening and changing cards may each run in a thread; they share only NVML itself, which allows that. The
first call starts NVML, and it is started again after it failed, so a driver may be installed or replaced at any time. A
node that awaits its driver has no cards until a scan finds the driver; that it cannot be read is a fault only then.
NVML sees a lost card again only after a restart, so it is restarted from time to time while a card is missing.

A property that a card does not support is left out. One that fails to read makes that card unreadable, and no other.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import structlog

from tessera.core.model.devices import MigPlacement
from tessera.host.cards import (
    MAX_NVLINKS,
    CardError,
    CardEvent,
    CardFacts,
    ComputeMode,
    Found,
    GpuInstanceProfile,
    InventoryError,
    Links,
    MigInstance,
    TopologyLevel,
    UnreadableCard,
)
from tessera.host.nvml.events import NvmlListener
from tessera.host.nvml.mig import (
    create_instance,
    destroy_instance,
    has_processes,
    read_instances,
    read_mig_profiles,
    read_mode,
    switch_mode,
)
from tessera.host.nvml.session import Binding, Handle, NvmlConnection, Session, load_binding, text_of
from tessera.wire.errors import quoted

log = structlog.get_logger(__name__)

_UUID = re.compile(r"GPU(-[0-9a-fA-F]{8})(-[0-9a-fA-F]{4}){3}(-[0-9a-fA-F]{12})\Z", re.ASCII)

SYSFS = Path("/sys")
_ROOT = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}", re.ASCII)
_ADDRESS = re.compile(r"([0-9A-F]{4,8})(:[0-9A-F]{2}:[0-9A-F]{2}\.[0-7])\Z", re.ASCII | re.IGNORECASE)

T = TypeVar("T")

RENEW_EVERY_S = 60.0
"""between restarts because of a lost card; a restart takes seconds on a machine with many cards"""


def read_card(session: Session, index: int, *, last_uuid: str | None, sysfs: Path = SYSFS) -> Found:
    """Reads the card at NVML's `index`; `last_uuid` is the uuid when it could last be read."""
    api = session.api
    uuid = last_uuid
    try:
        with session.about(uuid or f"card {index}", "reading the card"):
            handle = api.nvmlDeviceGetHandleByIndex(index)
            uuid = text_of(api.nvmlDeviceGetUUID(handle))
            if not _UUID.match(uuid):
                return UnreadableCard(index, f"its uuid {quoted(uuid)} is not GPU- and a uuid")
            return _facts(session, handle, index=index, uuid=uuid, sysfs=sysfs)
    except CardError as error:
        return UnreadableCard(index, error.problem, uuid)


def with_unique_uuids(found: Sequence[Found]) -> list[Found]:
    """Makes uuids unique: of several cards with one uuid only one keeps it, preferably a readable one."""
    owners: dict[str, int] = {}
    for card in sorted(found, key=lambda each: isinstance(each, UnreadableCard)):
        if card.uuid is not None:
            owners.setdefault(card.uuid, card.index)
    return [card if card.uuid is None or owners[card.uuid] == card.index else _without_uuid(card) for card in found]


def _without_uuid(card: Found) -> UnreadableCard:
    if isinstance(card, UnreadableCard):
        return UnreadableCard(card.index, card.problem)
    return UnreadableCard(card.index, f"its uuid {card.uuid} is another card's")


def _facts(session: Session, handle: Handle, *, index: int, uuid: str, sysfs: Path) -> CardFacts:
    api = session.api
    memory = session.optional(api.nvmlDeviceGetMemoryInfo, handle)
    total = None if memory is None else int(memory.total)
    pci = session.optional(api.nvmlDeviceGetPciInfo, handle)
    bus_id = "" if pci is None else text_of(pci.busId)
    mode = session.optional(api.nvmlDeviceGetMigMode, handle)
    driver = session.optional(api.nvmlSystemGetDriverVersion)
    cuda = session.optional(api.nvmlSystemGetCudaDriverVersion_v2)
    return CardFacts(
        uuid=uuid,
        index=index,
        name=text_of(api.nvmlDeviceGetName(handle)),
        minor=session.optional(api.nvmlDeviceGetMinorNumber, handle),
        memory_bytes=total,
        numa=numa_node(bus_id, sysfs=sysfs),
        bus_id=bus_id,
        pcie_root=pcie_root(bus_id, sysfs=sysfs),
        driver_version="" if driver is None else text_of(driver),
        # One number, 1000 for each major version and 10 for each minor one.
        cuda_version=None if cuda is None else (cuda // 1000, cuda % 1000 // 10),
        compute_capability=session.optional(api.nvmlDeviceGetCudaComputeCapability, handle),
        mig_capable=mode is not None,
        mig_enabled=mode is not None and mode[0] == api.NVML_DEVICE_MIG_ENABLE,
        mig_profiles=read_mig_profiles(session, handle, memory_bytes=total) if mode is not None else (),
    )


def read_links(session: Session, uuids: Sequence[str]) -> dict[tuple[str, str], Links]:
    """Returns the links of every ordered pair. Raises CardError."""
    api = session.api
    handles = {uuid: session.card(uuid) for uuid in uuids}
    addresses, ends = {}, {}
    for uuid, handle in handles.items():
        with session.about(uuid, "reading its links"):
            addresses[uuid] = _address(api.nvmlDeviceGetPciInfo(handle))
            ends[uuid] = _ends(session, handle)
    found = {}
    for one in handles:
        for other in handles:
            if one == other:
                continue
            with session.about(one, "reading its links"):
                level = session.optional(api.nvmlDeviceGetTopologyCommonAncestor, handles[one], handles[other])
            connection = next((each for each in TopologyLevel if each.value == level), None)
            remote, switched = ends[one]
            found[one, other] = Links(connection, remote.count(addresses[other]), switched)
    return found


def _ends(session: Session, handle: Handle) -> tuple[list[str], int]:
    """Returns the addresses of the remote ends of a card's NVLinks, and how many of them are switches."""
    api = session.api
    addresses: list[str] = []
    switched = 0
    for link in range(MAX_NVLINKS):
        if _ask(session, api.nvmlDeviceGetNvLinkState, handle, link) != api.NVML_FEATURE_ENABLED:
            continue
        remote = _ask(session, api.nvmlDeviceGetNvLinkRemotePciInfo, handle, link)
        if remote is not None:
            addresses.append(_address(remote))
        kind = _ask(session, api.nvmlDeviceGetNvLinkRemoteDeviceType, handle, link)
        switched += kind == api.NVML_NVLINK_DEVICE_TYPE_SWITCH
    return addresses, switched


def _ask(session: Session, call: Any, handle: Handle, link: int) -> Any:
    """Returns None if the card has no such link."""
    try:
        return session.optional(call, handle, link)
    except session.api.NVMLError as error:
        if error.value != session.api.NVML_ERROR_INVALID_ARGUMENT:
            raise
        return None


def _address(pci: Any) -> str:
    return text_of(pci.busId).lower()


def numa_node(bus_id: str, *, sysfs: Path = SYSFS) -> int | None:
    """Returns the NUMA node of a PCI address as NVML writes it, e.g. `00000000:3B:00.0`; None if unknown."""
    device = _device_dir(bus_id, sysfs)
    if device is None:
        return None
    try:
        node = int((device / "numa_node").read_text("ascii"))
    except (OSError, ValueError):
        return None
    # The kernel writes -1 if the firmware did not say.
    return node if node >= 0 else None


def pcie_root(bus_id: str, *, sysfs: Path = SYSFS) -> str:
    """Returns the root complex of a PCI address, e.g. `pci0000:3a`; empty if unknown."""
    device = _device_dir(bus_id, sysfs)
    if device is None:
        return ""
    # The kernel's link leads through every bridge, from the root complex to the card.
    return next((part for part in device.resolve().parts if _ROOT.fullmatch(part)), "")


def _device_dir(bus_id: str, sysfs: Path) -> Path | None:
    address = _ADDRESS.match(bus_id)
    if address is None:
        return None
    # NVML writes eight digits of domain; the kernel writes four unless it needs more.
    return sysfs / "bus/pci/devices" / f"{int(address[1], 16):04x}{address[2].lower()}"


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
