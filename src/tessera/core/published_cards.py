"""Which cards a claim's selectors accept, for all cards of the cluster at once.

Thousands of cards publish a few different things, apart from what no two have in common. So a selector is evaluated
once for each different thing, and for each card only if it reads what is the card's own. Answers are kept by selector
and follow the registrations.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from tessera.core.devices import Device, Published
from tessera.core.requests import CardFilter

CACHED_TABLES, CACHED_MASKS = 256, 16
"""selectors whose answers are kept; when there are more, all are dropped. A mask has one byte for each card"""

Bools = npt.NDArray[np.bool_]


class PublishedCards:
    """What the cards publish, by their places in the arrays."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[Published, ...], int] = {}
        self._kinds: list[tuple[Published, ...]] = []
        """what cards publish without what is their own, by number"""
        self._cards: dict[int, dict[int, tuple[Published, ...]]] = {}
        """all that is published, by column and place"""
        self._tables: dict[CardFilter, list[bool]] = {}
        """answers by number"""
        self._masks: dict[CardFilter, Bools] = {}

    def put(self, place: int, row: int, device: Device) -> int:
        """Set what a card publishes. Returns the number of what it has in common with others, -1 for nothing."""
        if not device.published:
            return -1
        everything = tuple(published for _, published in device.published)
        self._cards.setdefault(row, {})[place] = everything
        for accepts, mask in self._masks.items():
            mask[place, row] = _accepts(accepts, everything)
        common = tuple(published.shareable for published in everything)
        number = self._numbers.get(common)
        if number is None:
            number = self._numbers[common] = len(self._kinds)
            self._kinds.append(common)
        return number

    def clear(self, row: int) -> None:
        """The cards of a column are gone."""
        if self._cards.pop(row, None) is not None:
            for mask in self._masks.values():
                mask[:, row] = False

    def forget_masks(self) -> None:
        """The arrays have another size."""
        self._masks.clear()

    def table(self, accepts: CardFilter) -> Bools:
        """Answers by number; the last one is for cards without a number (-1)."""
        known = self._tables.get(accepts)
        if known is None:
            if len(self._tables) >= CACHED_TABLES:
                self._tables.clear()
            known = self._tables[accepts] = []
        known += [_accepts(accepts, kind) for kind in self._kinds[len(known) :]]
        return np.array([*known, False], dtype=np.bool_)

    def mask(self, accepts: CardFilter, shape: tuple[int, ...]) -> Bools:
        """Answers by place and column."""
        mask = self._masks.get(accepts)
        if mask is None:
            if len(self._masks) >= CACHED_MASKS:
                self._masks.clear()
            mask = self._masks[accepts] = np.zeros(shape, dtype=np.bool_)
            for row, cards in self._cards.items():
                for place, everything in cards.items():
                    mask[place, row] = _accepts(accepts, everything)
        return mask


def _accepts(accepts: CardFilter, everything: Iterable[Published]) -> bool:
    return any(accepts.accepts(published) for published in everything)
