"""A node and its cards with what is taken of them.

A `Device` is a physical card as its node registered it, and never changes. A `Card` is a device together with its use:
the ledger keeps one for every device and changes it, and fitting charges copies while it tries containers. `NodeInfo`
is, as in kube-scheduler, a node with everything that is taken of it. Scores say how much of cards and nodes is in use;
a dimension without capacity (a card without memory, say) counts nothing in them instead of voiding the whole score.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tessera.core.model.devices import Device, MigSlot, NodeFacts
from tessera.core.model.grants import Use
from tessera.core.model.requests import Request, Weights


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


SCALE = 10
"""HAMi's scale: a full card scores 10 per dimension"""


def device_scores(cards: Sequence[Card], request: Request, weights: Weights) -> list[float]:
    """Use of each card with the request on it. The memory that counts is the memory that would be granted."""
    scores = []
    size, taken_cores, taken_memory = (-1, -1), 0, 0
    for card in cards:
        device = card.device
        slots, cores, memory = device.slots, device.cores, device.memory
        if (cores, memory) != size:
            # Cards of a node are mostly alike.
            size, taken_cores, taken_memory = (cores, memory), request.cores_on(cores), request.memory_on(memory)
        # Written out, since every decision runs this once per card.
        scores.append(
            SCALE
            * (
                weights.slot * ((card.used + 1) / slots if slots > 0 else 0.0)
                + weights.core * ((card.used_cores + taken_cores) / cores if cores > 0 else 0.0)
                + weights.memory * ((card.used_memory + taken_memory) / memory if memory > 0 else 0.0)
            )
        )
    return scores


@dataclass(slots=True)
class UseTotals:
    """The sums over all cards of a node, of all vendors, from which its score follows."""

    used: int = 0
    slots: int = 0
    used_cores: int = 0
    cores: int = 0
    used_memory: int = 0
    memory: int = 0

    def score(self) -> float:
        return SCALE * (
            (self.used / self.slots if self.slots > 0 else 0.0)
            + (self.used_cores / self.cores if self.cores > 0 else 0.0)
            + (self.used_memory / self.memory if self.memory > 0 else 0.0)
        )


def node_score(cards: Sequence[Card]) -> float:
    """A node's score from its cards, before placing: the plain form that the running sums are checked against."""
    devices = [card.device for card in cards]
    return UseTotals(
        used=sum(card.used for card in cards),
        slots=sum(device.slots for device in devices),
        used_cores=sum(card.used_cores for card in cards),
        cores=sum(device.cores for device in devices),
        used_memory=sum(card.used_memory for card in cards),
        memory=sum(device.memory for device in devices),
    ).score()
