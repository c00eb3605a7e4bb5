"""The lists of candidates that kube-scheduler sends, recognised again whatever their order.

It names the same nodes in every request of a quiet cluster, but its parallel workers shuffle them. Reading thousands of
names and looking them up is most of a decision's cost, so a list that was seen before is told by a fingerprint of its
text that does not depend on the order. `Fingerprint` says why two different lists do not get the same one.
"""

from __future__ import annotations

import secrets
from collections import deque
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from msgspec import Raw
from numpy.typing import NDArray

from tessera.core.selection import Candidates, Selector
from tessera.wire.extender import decode_node_names

REMEMBERED = 8
"""lists; more than one, because selectors and taints narrow some pods' choice"""
SEARCHES = 6
"""for a name in the text of a list; then reading all names costs less"""
LONGEST_NAME = 256
"""bytes; the apiserver takes names of at most 253"""
_WORD = 8
"""bytes"""
_QUOTE, _ESCAPE = ord('"'), b"\\"

Words = NDArray[np.uint64]

_LOW_BYTES: Words = np.array([(1 << 8 * count) - 1 for count in range(_WORD + 1)], dtype=np.uint64)
"""masks that keep so many bytes of a word"""
_HALF = np.uint64(32)


class Fingerprint(NamedTuple):
    """A list without its order: the sum of keyed 64-bit hashes of its names, and how much text and how many they are.

    The keys are random, so names cannot be chosen to collide, and of lists that come by chance two in 2^64 do.
    """

    length: int
    names: int
    hashes: int


class Fingerprints:
    """Takes them, with the keys of one process."""

    def __init__(self) -> None:
        # Odd factors lose nothing of what they are multiplied with.
        self._keys: Words = np.frombuffer(secrets.token_bytes(LONGEST_NAME + _WORD), dtype=np.uint64) | np.uint64(1)

    def of(self, text: bytes) -> Fingerprint | None:
        """Of a JSON list of strings; None where it takes reading, because of escapes or names of unlikely length."""
        quotes = np.flatnonzero(np.frombuffer(text, dtype=np.uint8) == _QUOTE)
        if not quotes.size or quotes.size % 2 or _ESCAPE in text:
            return None
        starts = quotes[0::2] + 1
        widths = quotes[1::2] - starts
        narrowest, widest = int(widths.min()), int(widths.max())
        if widest > LONGEST_NAME:
            return None
        # Every name with what follows it, as so many words: one gather instead of one a word. The zeros behind the text
        # are for the last name.
        size = max(1, -(-widest // _WORD)) * _WORD
        behind = text + bytes(size)
        everywhere = np.ndarray((len(text),), dtype=f"V{size}", buffer=behind, strides=(1,))
        words: Words = everywhere[starts].view("<u8").reshape(len(starts), -1)
        hashes = widths.astype(np.uint64) * self._keys[-1]
        for position in range(words.shape[1]):
            part, offset = words[:, position], position * _WORD
            if offset + _WORD > narrowest:
                part = part & _LOW_BYTES[np.clip(widths - offset, 0, _WORD)]
            hashes = (hashes ^ part) * self._keys[position]
            hashes ^= hashes >> _HALF
        # Once more: what the last bytes of a name say must reach every bit of the sum.
        hashes *= self._keys[-1]
        hashes ^= hashes >> _HALF
        return Fingerprint(len(text), len(starts), int(hashes.sum()))


@dataclass(frozen=True, slots=True)
class _Known:
    fingerprint: Fingerprint
    candidates: Candidates


class NamedNodes:
    """The nodes that one request names, read no further than somebody asks."""

    def __init__(self, lists: CandidateLists, raw: Raw) -> None:
        self._lists = lists
        self._raw = raw
        self._text = bytes(raw)
        self._searches = 0

    def has(self, name: str) -> bool:
        """Whether a node is named. False may be wrong, for names in an unusual spelling; `candidates` knows."""
        if self._searches < SEARCHES:
            self._searches += 1
            return f'"{name}"'.encode() in self._text
        return name in self._names

    @cached_property
    def _names(self) -> frozenset[str]:
        return frozenset(decode_node_names(self._raw))

    @property
    def length(self) -> int:
        """Of the text: lists that leave out other nodes mostly have another one."""
        return len(self._text)

    @property
    def are_most(self) -> bool:
        """Whether at least about half of all registered nodes are named."""
        return 2 * len(self._text) >= self._lists.length_of_all

    @cached_property
    def candidates(self) -> Candidates:
        return self._lists.look_up(self._raw)


class CandidateLists:
    """Remembers the newest lists."""

    def __init__(self, selector: Selector) -> None:
        self._selector = selector
        self._fingerprints = Fingerprints()
        self._known: deque[_Known] = deque(maxlen=REMEMBERED)
        self._length_of_all = (-1, 0)
        """epoch, and bytes"""

    @property
    def length_of_all(self) -> int:
        """Bytes of a list that names every registered node."""
        epoch = self._selector.ledger.arrays.epoch
        if self._length_of_all[0] != epoch:
            names = self._selector.all_nodes().names
            self._length_of_all = epoch, sum(map(len, names)) + len('"",') * len(names)
        return self._length_of_all[1]

    def named(self, raw: Raw) -> NamedNodes:
        return NamedNodes(self, raw)

    def look_up(self, raw: Raw) -> Candidates:
        """The candidates that a JSON list names; equal lists give the same object while the nodes stay the same."""
        epoch = self._selector.ledger.arrays.epoch
        fingerprint = self._fingerprints.of(bytes(raw))
        for known in self._known:
            if known.fingerprint == fingerprint and known.candidates.epoch == epoch:
                return known.candidates
        candidates = self._selector.candidates(decode_node_names(raw))
        if fingerprint is not None:
            self._known.appendleft(_Known(fingerprint, candidates))
        return candidates
