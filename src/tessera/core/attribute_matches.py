"""Constraints of claims on attributes of their cards: which cards have one value of an attribute."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from itertools import islice, product

from tessera.core.devices import Attribute
from tessera.core.node_info import Card
from tessera.core.requests import AttributeMatch

MAX_COMBINATIONS = 256
"""of values that are tried on one node: 16 cards that all differ, under two constraints"""


def matching_cards(cards: Sequence[Card], matches: Sequence[AttributeMatch]) -> Iterator[Mapping[int, Set[str]]]:
    """For each combination of values, the uuids that each request may get, by its position. Values come in the order
    of the cards that have them; cards without the attribute are left out."""
    same = [match for match in matches if not match.distinct]
    groups = [list(_by_value(cards, match.attribute).values()) for match in same]
    for chosen in islice(product(*groups), MAX_COMBINATIONS):
        only: dict[int, frozenset[str]] = {}
        for match, uuids in zip(same, chosen, strict=True):
            for position in match.positions:
                only[position] = only.get(position, uuids) & uuids
        yield only


def _by_value(cards: Sequence[Card], attribute: str) -> dict[Attribute, frozenset[str]]:
    found: dict[Attribute, set[str]] = {}
    for card in cards:
        value = _value(card, attribute)
        if value is not None:
            found.setdefault(value, set()).add(card.device.uuid)
    return {value: frozenset(uuids) for value, uuids in found.items()}


def _value(card: Card, attribute: str) -> Attribute | None:
    """None if the card has no value, or its MIG profiles have different ones."""
    values = {published.attribute(attribute) for _, published in card.device.published}
    return values.pop() if len(values) == 1 else None
