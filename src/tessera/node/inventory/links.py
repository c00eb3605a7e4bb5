"""Pair scores: how well each two cards of a node reach each other, as HAMi's schedulers read them.

Pure. A pair about which its cards disagree scores 0 both ways and is named in the answer, for whoever reports it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from tessera.node.inventory.cards import Connection, Links

MAX_NVLINKS = 18
"""links between two cards that schedulers know points for"""

NVLINK_POINTS = 100
"""for every NVLink"""

PCIE_POINTS: Mapping[Connection, int] = {
    Connection.INTERNAL: 60,
    Connection.SINGLE: 50,
    Connection.MULTIPLE: 40,
    Connection.HOST_BRIDGE: 30,
    Connection.NODE: 20,
    Connection.SYSTEM: 10,
}


@dataclass(frozen=True, slots=True)
class PairScores:
    """What `wire.pair_scores` encodes, and the pairs that had to be left at 0."""

    scores: Mapping[str, Mapping[str, int]]
    """by the two uuids; every card has a row with every other one, in the order given"""
    asymmetric: tuple[tuple[str, str], ...] = ()
    """pairs that see a different number of ways to each other"""


_NO_LINKS = Links(None)


def pair_scores(uuids: Sequence[str], links: Mapping[tuple[str, str], Links]) -> PairScores:
    """Of these cards. A pair that `links` does not have scores 0."""
    scores = {uuid: {other: 0 for other in uuids if other != uuid} for uuid in uuids}
    asymmetric = []
    for one, other in combinations(scores, 2):
        there, back = links.get((one, other), _NO_LINKS), links.get((other, one), _NO_LINKS)
        ways, ways_back = _ways(there, back), _ways(back, there)
        if len(ways) != len(ways_back):
            asymmetric.append((one, other))
            continue
        scores[one][other], scores[other][one] = sum(ways), sum(ways_back)
    return PairScores(scores, tuple(asymmetric))


def _ways(there: Links, back: Links) -> list[int]:
    """Points of every way that one card sees to the other."""
    pcie = [] if there.connection is None else [PCIE_POINTS[there.connection]]
    nvlinks = there.direct or min(there.switched, back.switched)
    return [*pcie, NVLINK_POINTS * nvlinks] if 1 <= nvlinks <= MAX_NVLINKS else pcie
