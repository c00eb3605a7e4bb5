"""The node's cards as everybody in the agent sees them: what they are, and whether they may be used.

One `Current[Fleet]` is written by the watch over the hardware (`health`) and read by the registration and by every
ListAndWatch stream. Cards that the configuration leaves out are not in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tessera.node.inventory.cards import CardFacts


@dataclass(frozen=True, slots=True)
class CardState:
    """A card and its health."""

    facts: CardFacts
    """the last that was read of it, where it cannot be read now"""
    problem: str = ""
    """why it takes no new work; empty = healthy"""

    @property
    def healthy(self) -> bool:
        return not self.problem


@dataclass(frozen=True, slots=True)
class Fleet:
    """In order of index; uuids are unique."""

    cards: tuple[CardState, ...] = ()
    problem: str = ""
    """why the hardware as a whole cannot be asked; the cards are then the last known ones"""

    def __iter__(self) -> Iterator[CardState]:
        return iter(self.cards)

    def card(self, uuid: str) -> CardState | None:
        return next((card for card in self.cards if card.facts.uuid == uuid), None)
