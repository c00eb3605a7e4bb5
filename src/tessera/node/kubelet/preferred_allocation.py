"""Which replicas kubelet should take, so that it takes them from the very cards that the scheduler chose.

Pure. The answer has exactly the wanted number of devices or none at all: with none, kubelet chooses by itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tessera.node.kubelet.device_ids import physical


def preferred(
    wanted: Sequence[str] | None, *, available: Sequence[str], must_include: Sequence[str], count: int
) -> tuple[str, ...]:
    """`wanted`: the cards of one container's slices in order, one for each slice; None where nobody knows."""
    if wanted is None or not 0 < count <= len(wanted):
        return ()
    chosen = list(dict.fromkeys(must_include))
    # What kubelet takes in any case already serves the slices of these cards.
    served = Counter(physical(each) for each in chosen)
    free: dict[str, list[str]] = {}
    for each in dict.fromkeys(available):
        if each not in chosen:
            free.setdefault(physical(each), []).append(each)
    for card in wanted[:count]:
        if served[card]:
            served[card] -= 1
        elif free.get(card):
            chosen.append(free[card].pop(0))
        else:
            return ()
    return tuple(chosen) if len(chosen) == count else ()
