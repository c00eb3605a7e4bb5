"""What is kept of one node beside its column of numbers, and of the kinds of cards that columns refer to."""

from __future__ import annotations

from dataclasses import dataclass, field

from tessera.core.devices import MIG, Device, MigProfile
from tessera.core.scores import use_score


@dataclass(slots=True)
class Sums:
    """A node's totals over all its cards: what its score is made of."""

    used: int = 0
    slots: int = 0
    used_cores: int = 0
    cores: int = 0
    used_memory: int = 0
    memory: int = 0

    def score(self) -> float:
        return use_score(
            used=self.used,
            slots=self.slots,
            used_cores=self.used_cores,
            cores=self.cores,
            used_memory=self.used_memory,
            memory=self.memory,
        )


@dataclass(slots=True)
class Column:
    """Where a node is, and what is needed to change its column card by card."""

    row: int
    places: dict[str, int]
    """uuid -> device position; empty for nodes that are too wide"""
    sums: Sums = field(default_factory=Sums)
    charged: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    """uuid -> (slots, cores, memory) in use as the sums have them"""


@dataclass(slots=True)
class Kind:
    """Cards that every rule about models and modes treats alike; those in MIG mode also offer the same instances."""

    vendor: str
    sample: Device


Instances = tuple[tuple[MigProfile, ...], int]
"""what a card in MIG mode offers: profiles, and the memory that per cent of it mean"""


def instances_of(device: Device) -> Instances:
    return (device.mig_profiles, device.memory) if device.mode == MIG else ((), 0)
