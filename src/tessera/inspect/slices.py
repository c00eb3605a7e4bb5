"""Slices of cards in plain values: what a placement gives to whom, and who holds a card."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tessera.core.grants import Placement
from tessera.core.ledger import Ledger


@dataclass(frozen=True, slots=True)
class Slice:
    """One card's part given to one container."""

    container: str
    vendor: str
    card: str
    index: int
    model: str
    memory_mib: int
    cores: int
    mig: str = ""


@dataclass(frozen=True, slots=True)
class Holder:
    """A pod that holds a part of a card."""

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


def slices_of(ledger: Ledger, placement: Placement, containers: Sequence[str]) -> tuple[Slice, ...]:
    view = ledger.node(placement.node)
    devices = {card.device.uuid: card.device for card in view.cards} if view is not None else {}
    found = []
    for vendor, by_container in sorted(placement.grants.items()):
        for position, grants in enumerate(by_container):
            container = containers[position] if position < len(containers) else f"#{position}"
            for grant in grants:
                device = devices.get(grant.uuid)
                found.append(
                    Slice(
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


def holders_of(ledger: Ledger, node: str, uuid: str) -> tuple[Holder, ...]:
    """Who holds a card, the largest first."""
    found = []
    for entry in ledger.pods_on(node):
        holding = entry.holdings.get(uuid)
        if holding is not None:
            facts, use = entry.facts, holding.use
            found.append(Holder(facts.namespace, facts.name, use.slots, use.memory, use.cores, entry.state.value))
    return tuple(sorted(found, key=lambda one: (-one.memory_mib, one.namespace, one.name)))
