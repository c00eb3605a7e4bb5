"""A node and its cards with what is taken of them.

A `Device` is a physical card as its node registered it, and never changes. A `Card` is a device together with its use:
the ledger keeps one for every device and changes it, and fitting charges copies while it tries containers. `NodeInfo`
is, as in kube-scheduler, a node with everything that is taken of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tessera.core.devices import Device, MigSlot, NodeFacts
from tessera.core.grants import Use


class Tenant(NamedTuple):
    """A pod that holds a part of a card."""

    uid: str
    settings: tuple[tuple[str, str], ...] = ()
    """the pod's vendor settings (`Constraint.extra`), for rules about which pods may share a card"""

    def setting(self, name: str) -> str | None:
        return next((value for key, value in self.settings if key == name), None)


@dataclass(slots=True)
class Card:
    """A device and its use."""

    device: Device
    used: int = 0
    """slots taken"""
    used_memory: int = 0
    used_cores: int = 0
    mig: tuple[MigSlot, ...] = ()
    """instances that exist or are promised"""
    cordoned: bool = False
    held: str = ""
    """why the use of this card is not known exactly; a held card takes nothing new"""
    tenants: tuple[Tenant, ...] = ()

    @property
    def pods(self) -> int:
        """That hold a part of it, claims and holds included."""
        return len(self.tenants)

    @property
    def free_memory(self) -> int:
        return self.device.memory - self.used_memory

    @property
    def free_cores(self) -> int:
        return self.device.cores - self.used_cores

    def copy(self) -> Card:
        return Card(
            self.device,
            self.used,
            self.used_memory,
            self.used_cores,
            self.mig,
            self.cordoned,
            self.held,
            self.tenants,
        )

    def take(self, use: Use, mig: MigSlot | None = None) -> None:
        self.used += use.slots
        self.used_memory += use.memory
        self.used_cores += use.cores
        if mig is not None:
            self.mig = (*self.mig, mig)


class NodeInfo(NamedTuple):
    """One node with the use of all its cards, in order of registration."""

    facts: NodeFacts
    cards: Sequence[Card]

    @property
    def name(self) -> str:
        return self.facts.name

    def of_vendor(self, vendor: str) -> list[Card]:
        return [card for card in self.cards if card.device.vendor == vendor]
