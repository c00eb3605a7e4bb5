"""Pair scores: how well each two cards of a node are connected, in the form that HAMi's schedulers read.

The hardware is asked only when the cards changed. A pair whose cards report different links scores 0 both ways, and so
does every pair of a card that cannot report its links. If the hardware cannot be asked at all, the node keeps its
scores and the next round asks again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import structlog

from tessera.core.model.devices import Device
from tessera.host.cards import MAX_NVLINKS, CardError, InventoryError, Links, TopologyLevel

log = structlog.get_logger(__name__)

NVLINK_POINTS = 100
"""per NVLink"""

PCIE_POINTS: Mapping[TopologyLevel, int] = {
    TopologyLevel.INTERNAL: 60,
    TopologyLevel.SINGLE: 50,
    TopologyLevel.MULTIPLE: 40,
    TopologyLevel.HOST_BRIDGE: 30,
    TopologyLevel.NODE: 20,
    TopologyLevel.SYSTEM: 10,
}

_NO_LINKS = Links(None)
AskLinks = Callable[[Sequence[str]], Awaitable[Mapping[tuple[str, str], Links]]]
"""reads the links between these cards; raises InventoryError"""


@dataclass(frozen=True, slots=True)
class PairScores:
    """The scores that `wire.registration` encodes, and the pairs that had to stay at 0."""

    scores: Mapping[str, Mapping[str, int]]
    """by two uuids; each card has a row with all others, in the given order"""
    asymmetric: tuple[tuple[str, str], ...] = ()
    """pairs whose cards report different links to each other"""


def pair_scores(uuids: Sequence[str], links: Mapping[tuple[str, str], Links]) -> PairScores:
    """Returns the scores of these cards. A pair that is not in `links` scores 0."""
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
    """Returns the points of each way from one card to the other."""
    pcie = [] if there.connection is None else [PCIE_POINTS[there.connection]]
    nvlinks = there.direct or min(there.switched, back.switched)
    return [*pcie, NVLINK_POINTS * nvlinks] if 1 <= nvlinks <= MAX_NVLINKS else pcie


class PairScoreCache:
    """Computes scores and keeps them while the cards stay the same."""

    def __init__(self, ask: AskLinks) -> None:
        self._ask = ask
        self._of: tuple[Device, ...] | None = None
        self._last: PairScores | None = None

    async def scores(self, devices: tuple[Device, ...]) -> PairScores | None:
        """Returns None if the links cannot be read now."""
        if devices != self._of:
            self._of, self._last = None, None
            links = await self._links([device.uuid for device in devices])
            if links is None:
                return None
            self._last = pair_scores([device.uuid for device in devices], links)
            self._of = devices
        return self._last

    async def _links(self, uuids: Sequence[str]) -> Mapping[tuple[str, str], Links] | None:
        asked = list(uuids)
        while asked:
            try:
                return await self._ask(asked)
            except CardError as error:
                log.warning("the links of a card cannot be read", card=error.uuid, problem=error.problem)
                if error.uuid not in asked:
                    return None
                asked.remove(error.uuid)
            except InventoryError as error:
                log.warning("links between cards cannot be read", problem=str(error))
                return None
        return {}
