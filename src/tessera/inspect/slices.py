"""Slices of cards in plain values: what a placement gives to each container, and which pods hold a card."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tessera.core.grants import Placement
from tessera.core.ledger import Ledger


@dataclass(frozen=True, slots=True)
class GrantedSlice:
    """The part of one card that one container gets."""

    container: str
    vendor: str
    card: str
    index: int
    model: str
    memory_mib: int
    cores: int
    mig: str = ""


@dataclass(frozen=True, slots=True)
class CardHolder:
    """A pod that holds part of a card."""

    namespace: str
    name: str
    slots: int
    memory_mib: int
    cores: int
    state: str

    @property
    def text(self) -> str:
        amounts = [f"{self.memory_mib} MiB"] if self.memory_mib else []
        amounts += [f"{self.cores} cores"] if self.cores else []
        return f"{self.namespace}/{self.name} ({', '.join(amounts) or f'{self.slots} slots'})"


def placement_slices(ledger: Ledger, placement: Placement, containers: Sequence[str]) -> tuple[GrantedSlice, ...]:
    view = ledger.node(placement.node)
    devices = {card.device.uuid: card.device for card in view.cards} if view is not None else {}
    found = []
    for vendor, by_container in sorted(placement.grants.items()):
        for position, grants in enumerate(by_container):
            container = containers[position] if position < len(containers) else f"#{position}"
            for grant in grants:
                device = devices.get(grant.uuid)
                found.append(
                    GrantedSlice(
                        container,
                        vendor,
                        grant.uuid,
                        device.index if device else grant.index,
                        device.model if device else "",
                        grant.memory,
                        grant.cores,
                        grant.mig.profile if grant.mig else "",
                    )
                )
    return tuple(found)


def card_holders(ledger: Ledger, node: str, uuid: str) -> tuple[CardHolder, ...]:
    """The pods that hold a card, the largest first."""
    found = []
    for entry in ledger.pods_on(node):
        holding = entry.holdings.get(uuid)
        if holding is not None:
            facts, use = entry.facts, holding.use
            found.append(CardHolder(facts.namespace, facts.name, use.slots, use.memory, use.cores, entry.state.value))
    return tuple(sorted(found, key=lambda one: (-one.memory_mib, one.namespace, one.name)))
