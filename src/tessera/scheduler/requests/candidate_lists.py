"""Recognises the lists of candidates that kube-scheduler sends, whatever the order of their names.

kube-scheduler names almost the same nodes in every request, but its parallel workers shuffle them. Decoding thousands
of names and looking them up costs more than the decision. So the text of a list is first searched for single names. If
that does not settle the decision, a list that was seen before is recognised by a fingerprint of its text that does not
depend on the order. A list that is not recognised is decoded; the answer is the same.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from typing import NamedTuple

import numpy as np
from msgspec import Raw
from numpy.typing import NDArray

from tessera.core.search.selection import Candidates, Selector
from tessera.wire.extender import decode_node_names

REMEMBERED = 8
"""lists; more than one, because node selectors and taints narrow the candidates of some pods"""
LENGTHS = 1_024
"""of lists whose names were counted"""
LONGEST_NAME = 256
"""bytes; the apiserver accepts names of at most 253"""
_WORD = 8
"""bytes"""
_QUOTE, _ESCAPE = ord('"'), b"\\"

Words = NDArray[np.uint64]

_MASKS: Words = np.array(
    [
        [(1 << 8 * min(max(width - offset, 0), _WORD)) - 1 for width in range(LONGEST_NAME + 1)]
        for offset in range(0, LONGEST_NAME, _WORD)
    ],
    dtype=np.uint64,
)
"""by position of a word and width of the name: keeps the bytes of the word that belong to the name"""
_HALF = np.uint64(32)


class Fingerprint(NamedTuple):
    """A list of names without its order.

    Each name has a 64-bit hash under keys that are random and known to this process only, and the hashes are summed up.
    Two lists of different nodes get the same sum once in 10^11 lives of a process with 10,000 nodes.
    """

    length: int
    """of the text in bytes: a list that holds anything else than names has a longer text"""
    names: int
    hashes: int


class Fingerprinter:
    """Computes fingerprints under the keys of one process."""

    def __init__(self) -> None:
        # Odd factors lose nothing of what they are multiplied with.
        self._keys: Words = np.frombuffer(secrets.token_bytes(LONGEST_NAME + _WORD), dtype=np.uint64) | np.uint64(1)

    def fingerprint(self, text: bytes) -> Fingerprint | None:
        """Of a JSON list of strings; None if the text has to be decoded: it has escapes, long names or none at all."""
        quotes = np.flatnonzero(np.frombuffer(text, dtype=np.uint8) == _QUOTE)
        if not quotes.size or quotes.size % 2 or _ESCAPE in text:
            return None
        starts = quotes[0::2] + 1
        widths = quotes[1::2] - starts
        narrowest, widest = int(widths.min()), int(widths.max())
        if widest > LONGEST_NAME:
            return None
        # Gather each name with what follows it as one item of several words. The zeros behind the text are for the last
        # name.
        size = max(1, -(-widest // _WORD)) * _WORD
        padded = text + bytes(size)
        windows = np.ndarray((len(text),), dtype=f"V{size}", buffer=padded, strides=(1,))
        words: Words = windows[starts].view("<u8").reshape(len(starts), -1)
        hashes = widths.astype(np.uint64) * self._keys[-1]
        for position in range(words.shape[1]):
            part = words[:, position]
            if (position + 1) * _WORD > narrowest:
                part = part & _MASKS[position].take(widths)
            hashes = (hashes ^ part) * self._keys[position]
            hashes ^= hashes >> _HALF
        # Once more, so that the last bytes of a name reach every bit of the sum.
        hashes *= self._keys[-1]
        hashes ^= hashes >> _HALF
        return Fingerprint(len(text), len(starts), int(hashes.sum()))


class CandidateLists:
    """The lists that came last, by fingerprint."""

    def __init__(self, selector: Selector) -> None:
        self._selector = selector
        self._fingerprinter = Fingerprinter()
        self._known: OrderedDict[Fingerprint, Candidates] = OrderedDict()
        self.counts: dict[int, int] = {}
        """names by the length of a text: those of the last list that was as long"""

    def resolve(self, text: bytes) -> Candidates:
        """The candidates that a JSON list names; the same object for the same names while the nodes stay the same."""
        fingerprint = self._fingerprinter.fingerprint(text)
        if fingerprint is None:
            return self._selector.candidates(decode_node_names(text))
        known = self._known.get(fingerprint)
        if known is None or known.order is not self._selector.ledger.arrays.order:
            known = self._known[fingerprint] = self._selector.candidates(decode_node_names(text))
            if len(self._known) > REMEMBERED:
                self._known.popitem(last=False)
        self._known.move_to_end(fingerprint)
        return known

    def estimate_count(self, text: bytes) -> int:
        """How many names a list has: as many as others of the same length, because names are mostly equally long, and
        counting them takes longer than recording a decision may."""
        found = int(np.count_nonzero(np.frombuffer(text, dtype=np.uint8) == _QUOTE)) // 2
        if len(self.counts) >= LENGTHS:
            self.counts.clear()
        self.counts[len(text)] = found
        return found


class CandidateList:
    """The list of one request, as text: searching it for a name takes a tenth of the time that recognising it takes."""

    __slots__ = ("_lists", "_text", "resolved")

    def __init__(self, raw: Raw, lists: CandidateLists) -> None:
        self._text = bytes(raw)
        self._lists = lists
        self.resolved: Candidates | None = None
        """all candidates, once they were looked up"""

    @property
    def estimated_count(self) -> int:
        """How many names there are, without reading them."""
        return self._lists.counts.get(len(self._text)) or self._lists.estimate_count(self._text)

    def __contains__(self, name: str, /) -> bool:
        if _ESCAPE in self._text:
            return name in self.resolve()
        return f'"{name}"'.encode() in self._text

    def resolve(self) -> Candidates:
        """All candidates; raises `WireError` if this is not a list of names."""
        if self.resolved is None:
            self.resolved = self._lists.resolve(self._text)
        return self.resolved
