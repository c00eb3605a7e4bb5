"""Reads cards and the links between them.

A property that a card does not support is left out. A property that fails to read makes that card unreadable, and no
other card.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tessera.host.cards import MAX_NVLINKS, CardError, CardFacts, Found, Links, TopologyLevel, UnreadableCard
from tessera.host.nvml.mig import read_mig_profiles
from tessera.host.nvml.session import Handle, Session, text_of
from tessera.wire.quotes import quoted

_UUID = re.compile(r"GPU(-[0-9a-fA-F]{8})(-[0-9a-fA-F]{4}){3}(-[0-9a-fA-F]{12})\Z", re.ASCII)

SYSFS = Path("/sys")
_ROOT = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}", re.ASCII)
_ADDRESS = re.compile(r"([0-9A-F]{4,8})(:[0-9A-F]{2}:[0-9A-F]{2}\.[0-7])\Z", re.ASCII | re.IGNORECASE)


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
