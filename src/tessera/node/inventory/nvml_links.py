"""What each card says about its ways to the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tessera.node.inventory.cards import Connection, Links
from tessera.node.inventory.links import MAX_NVLINKS
from tessera.node.inventory.nvml_session import Handle, Session, text_of


@dataclass(frozen=True, slots=True)
class _Ends:
    """Where the NVLinks of one card end."""

    addresses: tuple[str, ...]
    switched: int


def read_links(session: Session, uuids: Sequence[str]) -> dict[tuple[str, str], Links]:
    """Of every ordered pair. Raises CardError."""
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
            direct = ends[one].addresses.count(addresses[other])
            found[one, other] = Links(_connection(level), direct, ends[one].switched)
    return found


def _connection(level: int | None) -> Connection | None:
    return next((each for each in Connection if each.value == level), None)


def _ends(session: Session, handle: Handle) -> _Ends:
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
    return _Ends(tuple(addresses), switched)


def _ask(session: Session, call: Any, handle: Handle, link: int) -> Any:
    """None where the card has no such link."""
    try:
        return session.optional(call, handle, link)
    except session.api.NVMLError as error:
        if error.value != session.api.NVML_ERROR_INVALID_ARGUMENT:
            raise
        return None


def _address(pci: Any) -> str:
    return text_of(pci.busId).lower()
