"""Numbers of cards: how many a node has by its capacity, how many a container asks for.

For vendors whose node agent registers nothing but a capacity, and for those where the number is all that a container
says. A number that cannot be true is a problem or a bad request, never zero.
"""

from __future__ import annotations

from tessera.vendors.base import NodeProblem
from tessera.vendors.capacity import MOST_CARDS
from tessera.vendors.drafts import INT32_MAX, BadRequest, Resources, amount
from tessera.wire.objects import Node


def cards_by_capacity(node: Node, name: str) -> int | NodeProblem:
    """Cards of a node; 0 where it does not name the resource."""
    return capacity_of(node, name, most=MOST_CARDS)


def capacity_of(node: Node, name: str, *, most: int = INT32_MAX) -> int | NodeProblem:
    text = node.capacity.get(name) if name else None
    if text is None:
        return 0
    value = amount(name, text, most=most)
    return NodeProblem(f"capacity of {value.text}") if isinstance(value, BadRequest) else value


def cards_asked(resources: Resources, name: str) -> int | BadRequest | None:
    """Cards that a container asks for; None where it asks for none."""
    count = resources.amount(name, unit="cards")
    return count or None if isinstance(count, int) else count
