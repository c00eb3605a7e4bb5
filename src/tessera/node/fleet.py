"""The cards of the node as all parts of the agent see them: what they are, and whether they may be used.

`HardwareWatch` writes one `WatchedValue[Fleet]`; the registration and every ListAndWatch stream read it. Cards that the
configuration excludes are not in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tessera.host.cards import CardFacts


@dataclass(frozen=True, slots=True)
class CardState:
    """A card and its health."""

    facts: CardFacts
    """the last known facts, if it cannot be read now"""
    problem: str = ""
    """why it takes no new work; empty if healthy"""
    mode: str = ""
    """the mode it is shared in, on a node that names modes of single cards; empty: all cards have the node's"""

    @property
    def healthy(self) -> bool:
        return not self.problem


@dataclass(frozen=True, slots=True)
class Fleet:
    """All cards in order of index; uuids are unique."""

    cards: tuple[CardState, ...] = ()
    problem: str = ""
    """why the hardware cannot be read at all; the cards are then the last known ones"""

    def __iter__(self) -> Iterator[CardState]:
        return iter(self.cards)

    def in_mode(self, mode: str) -> Fleet:
        """Returns the cards that are shared in a mode, which the node uses."""
        return Fleet(tuple(card for card in self.cards if card.mode in ("", mode)), self.problem)

    def card(self, uuid: str) -> CardState | None:
        return next((card for card in self.cards if card.facts.uuid == uuid), None)
