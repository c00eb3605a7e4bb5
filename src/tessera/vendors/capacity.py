"""Cards of vendors whose node agent registers nothing: they follow from the node's capacity.

The capacity is the sum over the node's cards, so that cards are alike by construction. A capacity of 0 (an agent that
is gone) means no cards; one that cannot be true is a problem of the node.
"""

from __future__ import annotations

from tessera.core.devices import Device
from tessera.vendors.base import NodeProblem
from tessera.vendors.drafts import INT32_MAX, BadRequest, amount
from tessera.wire.objects import Node

MOST_CARDS = 1024
"""cards of one node; a capacity that says more is not believed"""

SHARERS = 100
"""grants that may share a card at once: these vendors have no limit of their own, the number is HAMi's"""


def cards_from_capacity(
    node: Node,
    *,
    vendor: str,
    stem: str,
    cores_name: str,
    memory_name: str,
    cores_per_card: int,
    mib_per_unit: int,
) -> tuple[Device, ...] | NodeProblem:
    """One device for every `cores_per_card` of capacity, rounded up; ids are `<node>-<stem>-<position>`."""
    cores = _capacity(node, cores_name)
    if isinstance(cores, NodeProblem):
        return cores
    units = _capacity(node, memory_name)
    if isinstance(units, NodeProblem):
        return units
    if cores == 0:
        return ()
    count = -(-cores // cores_per_card)
    if count > MOST_CARDS:
        return NodeProblem(
            f"{cores_name}: a capacity of {cores} would be {count} cards, at most {MOST_CARDS} are believed"
        )
    memory = units * mib_per_unit * cores_per_card // cores
    if memory > INT32_MAX:
        return NodeProblem(f"{memory_name}: a capacity of {units} would be {memory} MiB a card")
    return tuple(
        Device(
            uuid=f"{node.name}-{stem}-{position}",
            vendor=vendor,
            index=position,
            slots=SHARERS,
            memory=memory,
            cores=cores_per_card,
            model=vendor,
        )
        for position in range(count)
    )


def _capacity(node: Node, name: str) -> int | NodeProblem:
    """0 where the node does not name the resource."""
    text = node.capacity.get(name) if name else None
    if text is None:
        return 0
    value = amount(name, text)
    return NodeProblem(f"capacity of {value.text}") if isinstance(value, BadRequest) else value
