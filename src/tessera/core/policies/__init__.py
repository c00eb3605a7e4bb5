"""The policies by name, and what the texts in annotations and flags mean.

A device policy may be a comma list: the words that order cards apply in the order written, the others act inside
fitting. Words that nobody knows order nothing; without any ordering word cards are spread. Equal cards: the one
registered later comes first, as HAMi has it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from tessera.core.cards import Card
from tessera.core.policies import binpack, fragmentation, mutex, numa, spread, topology_aware
from tessera.core.policies.base import CardKey, NodeRank, PlaceLossOf, Policy
from tessera.core.requests import PodRequest, Request
from tessera.core.scoring import device_score

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
    return any(text in POLICIES and POLICIES[text].looks_ahead for text in texts)


def card_score(pod: PodRequest, request: Request) -> Callable[[Card], float]:
    """What the pod's device policy orders cards by: their use, unless it has a score of its own."""
    policy = POLICIES.get(pod.device_policy)
    if policy is not None and policy.card_score is not None:
        return policy.card_score(pod, request)
    return lambda card: device_score(card, request, pod.weights)


def place_loss(pod: PodRequest) -> PlaceLossOf | None:
    """How the pod's device policy weighs places on cards in MIG mode; None = it does not."""
    policy = POLICIES.get(pod.device_policy)
    return None if policy is None else policy.place_loss


def _by_numa(card: Card, _score: float) -> float:
    return -card.device.numa


def _by_low_numa(card: Card, _score: float) -> float:
    return card.device.numa


def _by_index(card: Card, _score: float) -> float:
    return -card.device.index


def _card_keys(text: str, *, numa_bind: bool) -> Sequence[CardKey]:
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


def order_cards(cards: Sequence[Card], text: str, *, numa_bind: bool, score: Callable[[Card], float]) -> list[Card]:
    """Cards of one vendor, best first. `cards` are in order of registration."""
    keys = _card_keys(text, numa_bind=numa_bind)
    rows = []
    for position, card in enumerate(cards):
        points = score(card)
        rows.append((*[key(card, points) for key in keys], -position))
    rows.sort()
    return [cards[-int(row[-1])] for row in rows]
