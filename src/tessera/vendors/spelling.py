"""Finds the known word that a misspelt one was probably meant to be.

Near means one edit, or two in longer words: a letter too many, missing or wrong, or two letters swapped. Case does not
count. The first letter and every part with a digit must be the same: `vgpu` beside `gpu`, and `Ascend910` beside
`Ascend910A`, are names of other things, not misspellings. The cost of a call follows the number of known words.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

MAX_CHARACTERS = 80
"""of a word that is compared; the name of a resource or annotation has at most 63, no value that is known has more"""
SHORTEST, SHORTEST_FOR_TWO = 3, 8
"""characters of a known word from which one edit is near, and two"""

_NUMBERED = re.compile(r"[a-z]*[0-9][a-z0-9]*", re.ASCII)


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The nearest of the known words, the first of several; None if none is near."""
    if not word or len(word) > MAX_CHARACTERS:
        return None
    found: tuple[int, str] | None = None
    lower = word.lower()
    for other in known:
        edits = _edits(lower, other.lower())
        if edits is not None and (found is None or edits < found[0]):
            found = edits, other
    return found[1] if found is not None else None


def _edits(word: str, known: str) -> int | None:
    """How many edits make `known` of `word`; None if too many for it to be meant."""
    if word == known:
        return 0
    most = 2 if len(known) >= SHORTEST_FOR_TWO else int(len(known) >= SHORTEST)
    if abs(len(word) - len(known)) > most or word[0] != known[0] or not most:
        return None
    if _NUMBERED.findall(word) != _NUMBERED.findall(known):
        return None
    return next((edits for edits in range(1, most + 1) if are_within(word, known, edits)), None)


def are_within(one: str, other: str, edits: int) -> bool:
    """Whether at most so many edits make one text of the other. Every edit multiplies the cost by four."""
    start = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    one, other = one[start:], other[start:]
    if not one or not other:
        return len(one) + len(other) <= edits
    if edits == 0:
        return False
    swapped = one[:2] == other[1::-1] and len(one) > 1 and len(other) > 1
    return (
        are_within(one[1:], other[1:], edits - 1)
        or are_within(one[1:], other, edits - 1)
        or are_within(one, other[1:], edits - 1)
        or (swapped and are_within(one[2:], other[2:], edits - 1))
    )
