"""Chooses cards by the links between them (pair scores).

Several cards: the set with the highest sum of pair scores. All sets are compared at once while there are at most
`EXACT_SETS` of them (16 choose 8 is 12,870); beyond that a greedy choice improved by swaps, whose cost is polynomial.
One card: the one with the weakest links, so that well linked groups stay whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from math import comb

import numpy as np
import numpy.typing as npt

from tessera.core.model.devices import Device

EXACT_SETS = 20_000
EXACT_CARDS = 16
MAX_CARDS = 512
"""cards compared with each other; a node that registers more keeps the order of its policy"""
SWAP_ROUNDS = 32

Matrix = npt.NDArray[np.int64]


def linked_groups(uuids: Iterable[str], near: Callable[[str], Iterable[str]]) -> dict[str, int]:
    """The number of the group of each card that is linked to others, directly or through them: `near` has the cards
    that one is linked to. Groups are numbered in the order of the cards; a card without links is in none."""
    groups: dict[str, int] = {}
    count = 0
    for first in uuids:
        if first in groups:
            continue
        members, rest = {first}, [first]
        while rest:
            found = set(near(rest.pop())) - members
            rest += found
            members |= found
        if len(members) > 1:
            groups.update(dict.fromkeys(members, count))
            count += 1
    return groups


def links(devices: Sequence[Device]) -> Matrix:
    """Pair scores as a matrix; the diagonal and unknown pairs are 0."""
    matrix = np.zeros((len(devices), len(devices)), dtype=np.int64)
    for i, device in enumerate(devices):
        if device.links:
            for j, other in enumerate(devices):
                if i != j:
                    matrix[i, j] = device.links.get(other.uuid, 0)
    return matrix


def total(devices: Sequence[Device]) -> int:
    """Sum of the pair scores inside a set, each pair once."""
    return sum(device.links.get(other.uuid, 0) for i, device in enumerate(devices) for other in devices[i + 1 :])


def choose(devices: Sequence[Device], count: int) -> tuple[int, ...]:
    """Positions of the chosen devices, ascending. The first best set in the given order wins."""
    if count >= len(devices):
        return tuple(range(len(devices)))
    if len(devices) > MAX_CARDS:
        return tuple(range(count))
    matrix = links(devices)
    if count == 1:
        return (int(np.argmin(matrix.sum(axis=1))),)
    upper = np.triu(matrix, 1)
    if len(devices) <= EXACT_CARDS and comb(len(devices), count) <= EXACT_SETS:
        return _best_of_all(upper, count)
    return _greedy(upper + upper.T, count)


@lru_cache(maxsize=64)
def _sets(size: int, count: int) -> npt.NDArray[np.int64]:
    """Every way to choose `count` of `size` as rows of 0 and 1, in lexicographic order of the chosen positions."""
    numbers = np.arange(1 << size, dtype=np.int64)
    bits = (numbers[:, None] >> np.arange(size - 1, -1, -1)) & 1
    chosen: npt.NDArray[np.int64] = bits[bits.sum(axis=1) == count][::-1]
    return np.ascontiguousarray(chosen)


def _best_of_all(upper: Matrix, count: int) -> tuple[int, ...]:
    rows = _sets(len(upper), count)
    sums = ((rows @ upper) * rows).sum(axis=1)
    return tuple(int(i) for i in np.flatnonzero(rows[int(np.argmax(sums))]))


def _greedy(pairs: Matrix, count: int) -> tuple[int, ...]:
    """Grow from the best pair, then swap while a swap gains: at most `SWAP_ROUNDS` rounds."""
    size = len(pairs)
    first, second = divmod(int(np.argmax(np.triu(pairs, 1) - np.tri(size, dtype=np.int64) * (1 << 40))), size)
    inside = np.zeros(size, dtype=bool)
    inside[[first, second]] = True
    ties = pairs[:, first] + pairs[:, second]
    for _ in range(count - 2):
        best = int(np.argmax(np.where(inside, np.iinfo(np.int64).min, ties)))
        inside[best] = True
        ties += pairs[:, best]
    for _ in range(SWAP_ROUNDS):
        ins, outs = np.flatnonzero(~inside), np.flatnonzero(inside)
        gain = ties[ins][:, None] - ties[outs][None, :] - pairs[np.ix_(ins, outs)]
        best = int(np.argmax(gain))
        if gain.flat[best] <= 0:
            break
        enter, leave = divmod(best, len(outs))
        inside[ins[enter]], inside[outs[leave]] = True, False
        ties += pairs[:, ins[enter]] - pairs[:, outs[leave]]
    return tuple(int(i) for i in np.flatnonzero(inside))
