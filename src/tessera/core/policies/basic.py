"""The policies that need no more than the use, the links or the NUMA nodes of cards."""

from __future__ import annotations

from operator import attrgetter

from tessera.core.policies.base import Policy, by_score

BINPACK = Policy(
    name="binpack",
    summary="fill what is already in use, keep the rest whole",
    nodes=attrgetter("scores"),
    cards=lambda _cards, scores: [-score for score in scores],
    orders_in_lists=True,
    low_numa_first=True,
)

SPREAD = Policy(
    name="spread",
    summary="prefer what is least in use",
    nodes=lambda ranking: -ranking.scores,
    cards=by_score,
    prefers_idle_nodes=True,
    orders_in_lists=True,
)

MUTEX = Policy(
    name="mutex",
    summary="only cards that no other container uses",
    cards=lambda cards, _scores: [card.used for card in cards],
    unused_cards_only=True,
    numa_first=False,
)

NUMA = Policy(
    name="numa",
    summary="cards of the same NUMA node next to each other, the highest NUMA node first",
    cards=lambda cards, _scores: [-card.device.numa for card in cards],
    orders_in_lists=True,
    is_list=True,
)

TOPOLOGY_AWARE = Policy(
    name="topology-aware",
    summary="the cards with the best links between them, otherwise as spread",
    cards=by_score,
    chooses_by_links=True,
)
