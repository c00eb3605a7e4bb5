"""The policies by name, and what the texts in annotations and flags mean.

A device policy may be a comma list: the words that order cards apply in the order written, the others act inside
fitting. Words that nobody knows order nothing; without any ordering word cards are spread. Equal cards: the one
registered later comes first, as HAMi has it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType

from tessera.core.cards import Card
from tessera.core.policies import binpack, fragmentation, mutex, numa, spread, topology_aware
from tessera.core.policies.base import CardKeys, NodeRank, PlaceLossOf, Policy
from tessera.core.requests import PodRequest, Request
from tessera.core.scores import device_scores

POLICIES: Mapping[str, Policy] = MappingProxyType(
    {module.POLICY.name: module.POLICY for module in (binpack, spread, fragmentation, mutex, numa, topology_aware)}
)

CHAINABLE = ("binpack", "spread", "numa")
"""words that order cards inside a comma list"""


def node_rank(text: str) -> NodeRank:
    """How nodes are ranked; what is not a node policy behaves as binpack."""
    rank = _node_policy(text).nodes
    assert rank is not None  # it is a node policy
    return rank


def sign_of_score(text: str) -> int | None:
    """Whether nodes are ranked by their scores alone, and which come first."""
    return _node_policy(text).sign_of_score


def _node_policy(text: str) -> Policy:
    policy = POLICIES.get(text, binpack.POLICY)
    return policy if policy.nodes is not None else binpack.POLICY


def looks_ahead(*texts: str) -> bool:
    """Whether one of these policies wants to know the pods to come, and what hosts have free."""
    for text in texts:
        policy = POLICIES.get(text)
        if policy is not None and policy.looks_ahead:
            return True
    return False


def card_scores(pod: PodRequest, request: Request, cards: Sequence[Card]) -> Sequence[float]:
    """What the pod's device policy orders cards by: their use, unless it has scores of its own."""
    policy = POLICIES.get(pod.device_policy)
    if policy is not None and policy.card_scores is not None:
        return policy.card_scores(pod, request, cards)
    return device_scores(cards, request, pod.weights)


def place_loss(pod: PodRequest) -> PlaceLossOf | None:
    """How the pod's device policy weighs places on cards in MIG mode; None = it does not."""
    policy = POLICIES.get(pod.device_policy)
    return None if policy is None else policy.place_loss


def _by_numa(cards: Sequence[Card], _scores: Sequence[float]) -> Sequence[float]:
    return [-card.device.numa for card in cards]


def _by_low_numa(cards: Sequence[Card], _scores: Sequence[float]) -> Sequence[float]:
    return [card.device.numa for card in cards]


def _by_index(cards: Sequence[Card], _scores: Sequence[float]) -> Sequence[float]:
    return [-card.device.index for card in cards]


@lru_cache(maxsize=256)
def _card_keys(text: str, numa_bind: bool) -> Sequence[CardKeys]:
    if "," in text or text == "numa":
        chain = [POLICIES[word] for part in text.split(",") if (word := part.strip()) in CHAINABLE]
        keys = [policy.cards for policy in chain or [spread.POLICY] if policy.cards]
        return [_by_numa, *keys, _by_index] if numa_bind else [*keys, _by_index]
    policy = POLICIES.get(text, spread.POLICY)
    key = policy.cards or spread.POLICY.cards
    assert key is not None  # spread orders cards
    if numa_bind and policy.numa_first:
        return [_by_low_numa if policy.low_numa_first else _by_numa, key]
    return [key, _by_numa]


def order_cards(cards: Sequence[Card], scores: Sequence[float], text: str, *, numa_bind: bool) -> list[Card]:
    """Cards of one vendor, best first. `cards` are in order of registration."""
    columns = [key(cards, scores) for key in _card_keys(text, numa_bind)]
    rows = sorted(zip(*columns, range(0, -len(cards), -1), strict=True))
    return [cards[-row[-1]] for row in rows]
