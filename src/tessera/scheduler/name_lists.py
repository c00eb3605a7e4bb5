"""The lists of candidates that kube-scheduler sends, recognised again whatever their order.

It names the same nodes in every request of a quiet cluster, but its parallel workers shuffle them. Looking thousands
of names up is most of a decision's cost, so a list that was seen before is told by its members, not by its text.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from msgspec import Raw

from tessera.core.selection import Candidates, Selector
from tessera.wire.extender import decode_node_names

REMEMBERED = 8
"""lists; more than one, because selectors and taints narrow some pods' choice"""


@dataclass(frozen=True, slots=True)
class _Known:
    text: bytes
    count: int
    hashes: int
    """sum of the names' hashes, which Python keys anew in every process: 64 bits that nobody can aim at"""
    candidates: Candidates


class NameLists:
    """Remembers the newest lists."""

    def __init__(self, selector: Selector) -> None:
        self._selector = selector
        self._known: deque[_Known] = deque(maxlen=REMEMBERED)

    def look_up(self, raw: Raw) -> Candidates:
        """The candidates that a JSON list names; equal lists give the same object while the nodes stay the same."""
        epoch = self._selector.ledger.arrays.epoch
        text = bytes(raw)
        for known in self._known:
            if known.text == text and known.candidates.epoch == epoch:
                return known.candidates
        names = decode_node_names(raw)
        hashes = sum(map(hash, names))
        for known in self._known:
            if known.hashes == hashes and known.count == len(names) and known.candidates.epoch == epoch:
                return known.candidates
        candidates = self._selector.candidates(names)
        self._known.appendleft(_Known(text, len(names), hashes, candidates))
        return candidates
