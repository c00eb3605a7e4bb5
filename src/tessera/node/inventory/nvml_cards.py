"""Reading one card through NVML.

What a card does not know is left out; what it fails to say makes it unreadable, and no other one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from tessera.node.inventory.cards import CardError, CardFacts, Found, UnreadableCard
from tessera.node.inventory.nvml_mig_offers import read_offers
from tessera.node.inventory.nvml_session import Handle, Session, text_of
from tessera.wire.quotes import quoted

_UUID = re.compile(r"GPU(-[0-9a-fA-F]{8})(-[0-9a-fA-F]{4}){3}(-[0-9a-fA-F]{12})\Z", re.ASCII)

Numa = Callable[[str], int | None]
"""NUMA node by PCI address"""


def read_card(session: Session, index: int, *, last_uuid: str | None, numa: Numa) -> Found:
    """The card that NVML counts as `index`; `last_uuid` is what it was called when it could still be read."""
    api = session.api
    uuid = last_uuid
    try:
        with session.about(uuid or f"card {index}", "reading the card"):
            handle = api.nvmlDeviceGetHandleByIndex(index)
            uuid = text_of(api.nvmlDeviceGetUUID(handle))
            if not _UUID.match(uuid):
                return UnreadableCard(index, f"its uuid {quoted(uuid)} is not GPU- and a uuid")
            return _facts(session, handle, index=index, uuid=uuid, numa=numa)
    except CardError as error:
        return UnreadableCard(index, error.problem, uuid)


def told_apart(found: Sequence[Found]) -> list[Found]:
    """The same cards; a uuid belongs to one of them only, and to one that can be read where there is one."""
    owners: dict[str, int] = {}
    for card in sorted(found, key=lambda each: isinstance(each, UnreadableCard)):
        if card.uuid is not None:
            owners.setdefault(card.uuid, card.index)
    return [card if card.uuid is None or owners[card.uuid] == card.index else _nameless(card) for card in found]


def _nameless(card: Found) -> UnreadableCard:
    if isinstance(card, UnreadableCard):
        return UnreadableCard(card.index, card.problem)
    return UnreadableCard(card.index, f"its uuid {card.uuid} is another card's")


def _facts(session: Session, handle: Handle, *, index: int, uuid: str, numa: Numa) -> CardFacts:
    api = session.api
    memory = session.optional(api.nvmlDeviceGetMemoryInfo, handle)
    total = None if memory is None else int(memory.total)
    pci = session.optional(api.nvmlDeviceGetPciInfo, handle)
    bus_id = "" if pci is None else text_of(pci.busId)
    mode = session.optional(api.nvmlDeviceGetMigMode, handle)
    return CardFacts(
        uuid=uuid,
        index=index,
        name=text_of(api.nvmlDeviceGetName(handle)),
        minor=session.optional(api.nvmlDeviceGetMinorNumber, handle),
        memory_bytes=total,
        numa=numa(bus_id) if bus_id else None,
        bus_id=bus_id,
        compute_capability=session.optional(api.nvmlDeviceGetCudaComputeCapability, handle),
        mig_capable=mode is not None,
        mig_enabled=mode is not None and mode[0] == api.NVML_DEVICE_MIG_ENABLE,
        mig_offers=read_offers(session, handle, memory_bytes=total) if mode is not None else (),
    )
