"""The cards and links of a description, as values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec import UNSET

from tessera.node.inventory.cards import CardEvent, CardFacts, Connection, Links
from tessera.node.inventory.simulated_boards import simulated_uuid
from tessera.node.inventory.simulated_file import CONNECTIONS, CardGroup, Description
from tessera.node.inventory.simulated_models import MODELS
from tessera.node.inventory.simulated_script import Due

MIB = 2**20
"""bytes"""

_FIRST_BUS = 0x10


@dataclass(frozen=True, slots=True)
class SimulatedCard:
    """A card as it would be if nothing were wrong with it and nobody had touched it."""

    facts: CardFacts
    group: CardGroup


def cards_of(description: Description, *, node_name: str) -> tuple[SimulatedCard, ...]:
    """In order of index."""
    groups = [(group, within) for group in description.cards for within in range(group.count)]
    return tuple(
        SimulatedCard(_facts(group, within, index=index, node_name=node_name), group)
        for index, (group, within) in enumerate(groups)
    )


def _facts(group: CardGroup, within: int, *, index: int, node_name: str) -> CardFacts:
    model = MODELS[group.model]
    memory = model.memory_mib if group.memory is UNSET else group.memory
    return CardFacts(
        uuid=simulated_uuid("GPU", f"{node_name}/{index}") if group.uuid is UNSET else group.uuid,
        index=index,
        name=model.name if group.name is UNSET else group.name,
        minor=index,
        memory_bytes=memory * MIB or None,
        numa=_numa(group, within),
        bus_id=f"00000000:{_FIRST_BUS + index:02X}:00.0",
        compute_capability=model.compute_capability,
        mig_capable=model.mig_capable,
        mig_enabled=group.mig,
        mig_offers=model.offers,
    )


def _numa(group: CardGroup, within: int) -> int | None:
    if isinstance(group.numa, tuple):
        return group.numa[within]
    return None if group.numa is UNSET else group.numa


def links_of(description: Description, cards: Sequence[SimulatedCard]) -> dict[tuple[str, str], Links]:
    """Of every ordered pair. Without a word about them, cards of one NUMA node share their CPU."""
    facts = [card.facts for card in cards]
    found = {
        (one.uuid, other.uuid): Links(Connection.NODE if one.numa == other.numa else Connection.SYSTEM)
        for one in facts
        for other in facts
        if one.uuid != other.uuid
    }
    for group in description.links:
        for position, one in enumerate(group.cards):
            for later, other in enumerate(group.cards):
                if one == other:
                    continue
                pair = (facts[one].uuid, facts[other].uuid)
                pcie = found[pair].connection if group.pcie is UNSET else CONNECTIONS[group.pcie]
                seen = group.nvlinks if position < later or not group.one_way else 0
                switched = group.through == "switch"
                found[pair] = Links(pcie, direct=0 if switched else seen, switched=seen if switched else 0)
    return found


def script_of(description: Description, cards: Sequence[SimulatedCard]) -> list[Due]:
    return [
        Due(
            each.at,
            CardEvent(
                uuid=None if each.card is UNSET else cards[each.card].facts.uuid,
                xid=None if each.xid is UNSET else each.xid,
                uncorrectable=each.ecc == "double-bit",
            ),
            each.lost,
        )
        for each in description.events
    ]
