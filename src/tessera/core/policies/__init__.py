"""The table of policies, those of a few lines, and what the texts in annotations and flags mean.

A device policy may be a comma list: the policies that order cards apply in the order written, the others add their
rules of fitting. Unknown names order nothing; without any order cards are spread. As in HAMi, of equal cards the one
that was registered last comes first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from operator import attrgetter
from types import MappingProxyType

from tessera.core.model.node_info import Card, device_scores
from tessera.core.model.requests import PodRequest, Request
from tessera.core.policies import fragmentation
from tessera.core.policies.base import CardKeys, DevicePolicy, Floats, Policy, Ranking, by_score

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

POLICIES: Mapping[str, Policy] = MappingProxyType(
    {policy.name: policy for policy in (BINPACK, SPREAD, fragmentation.POLICY, MUTEX, NUMA, TOPOLOGY_AWARE)}
)


def node_policy(text: str) -> Policy:
    """The policy that ranks nodes; a text that names no node policy means binpack, as in HAMi."""
    policy = POLICIES.get(text, BINPACK)
    return BINPACK if policy.nodes is None else policy


def rank_nodes(ranking: Ranking) -> Floats:
    """By the pod's node policy: larger is better."""
    rank = node_policy(ranking.pod.node_policy).nodes
    assert rank is not None  # it is a node policy
    return rank(ranking)


@lru_cache(maxsize=256)
def device_policy(text: str) -> DevicePolicy:
    """What a pod's device policy means."""
    alone = POLICIES.get(text)
    named = [POLICIES[name] for part in text.split(",") if (name := part.strip()) in POLICIES]
    return DevicePolicy(
        keys=_card_keys(text, numa_bind=False),
        numa_keys=_card_keys(text, numa_bind=True),
        card_scores=alone.card_scores if alone else None,
        place_loss=alone.place_loss if alone else None,
        unused_cards_only=any(policy.unused_cards_only for policy in named),
        chooses_by_links=any(policy.chooses_by_links for policy in named),
        uses_forecast=alone is not None and alone.uses_forecast,
    )


def uses_forecast(node: str, device: str) -> bool:
    """Whether one of a pod's policies wants a demand forecast, and what hosts have free."""
    return node_policy(node).uses_forecast or device_policy(device).uses_forecast


def card_scores(pod: PodRequest, request: Request, cards: Sequence[Card]) -> Sequence[float]:
    """What the pod's device policy orders cards by: their use, unless it has scores of its own."""
    own = device_policy(pod.device_policy).card_scores
    return device_scores(cards, request, pod.weights) if own is None else own(pod, request, cards)


def _card_keys(text: str, *, numa_bind: bool) -> tuple[CardKeys, ...]:
    policy = POLICIES.get(text, SPREAD)
    if "," in text or policy.is_list:
        named = [POLICIES[name] for part in text.split(",") if (name := part.strip()) in POLICIES]
        # A policy that is named again orders nothing any more.
        chain = {policy.name: policy for policy in named if policy.orders_in_lists} or {SPREAD.name: SPREAD}
        keys = tuple(policy.cards for policy in chain.values() if policy.cards is not None)
        return (_by_high_numa, *keys, _by_index) if numa_bind else (*keys, _by_index)
    key = policy.cards or by_score
    if numa_bind and policy.numa_first:
        return _by_low_numa if policy.low_numa_first else _by_high_numa, key
    return key, _by_high_numa


def _by_high_numa(cards: Sequence[Card], _scores: Sequence[float]) -> Sequence[float]:
    return [-card.device.numa for card in cards]


def _by_low_numa(cards: Sequence[Card], _scores: Sequence[float]) -> Sequence[float]:
    return [card.device.numa for card in cards]


def _by_index(cards: Sequence[Card], _scores: Sequence[float]) -> Sequence[float]:
    return [-card.device.index for card in cards]
