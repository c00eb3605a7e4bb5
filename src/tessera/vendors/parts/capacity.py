"""Cards of vendors whose node agent registers none: they are derived from the node's capacity.

A capacity is a number of cards or a sum over them, so all cards of a node are alike. A capacity of 0 (the agent is
gone) means no cards; an impossible capacity is a `NodeProblem`.
"""

from __future__ import annotations

from dataclasses import replace

from tessera.core.model.devices import Device
from tessera.vendors.base import NodeProblem, Vendor
from tessera.vendors.drafts import BadRequest, amount
from tessera.wire.golang import INT32_MAX
from tessera.wire.objects import Node

MAX_CARDS = 1024
"""cards per node; a larger capacity is treated as a problem"""

SHARERS = 100
"""grants that may share a card; these vendors have no limit of their own, the number is HAMi's"""


def capacity_of(node: Node, name: str, *, most: int = INT32_MAX) -> int | NodeProblem:
    """0 where the node does not name the resource."""
    text = node.capacity.get(name) if name else None
    if text is None:
        return 0
    value = amount(name, text, most=most)
    return NodeProblem(f"capacity of {value.text}") if isinstance(value, BadRequest) else value


def numbered_cards(
    vendor: Vendor, node: Node, *, stem: str, memory: int, slots: int = 1
) -> tuple[Device, ...] | NodeProblem:
    """One device for every card in the capacity; ids are `<node>-<stem>-<position>`."""
    count = capacity_of(node, vendor.names.count, most=MAX_CARDS)
    if isinstance(count, NodeProblem):
        return count
    return alike_cards(Device(f"{node.name}-{stem}", vendor.key, slots=slots, memory=memory, model=vendor.key), count)


def cards_from_capacity(
    vendor: Vendor, node: Node, *, stem: str, cores_per_card: int
) -> tuple[Device, ...] | NodeProblem:
    """One device for every `cores_per_card` of capacity, rounded up; ids are `<node>-<stem>-<position>`."""
    names = vendor.names
    cores = capacity_of(node, names.cores)
    if isinstance(cores, NodeProblem):
        return cores
    units = capacity_of(node, names.memory)
    if isinstance(units, NodeProblem):
        return units
    if cores == 0:
        return ()
    count = -(-cores // cores_per_card)
    if count > MAX_CARDS:
        return NodeProblem(
            f"{names.cores}: a capacity of {cores} would be {count} cards, at most {MAX_CARDS} are believed"
        )
    memory = units * vendor.quota_factor * cores_per_card // cores
    if memory > INT32_MAX:
        return NodeProblem(f"{names.memory}: a capacity of {units} would be {memory} MiB a card")
    card = Device(f"{node.name}-{stem}", vendor.key, slots=SHARERS, memory=memory, cores=cores_per_card)
    return alike_cards(replace(card, model=vendor.key), count)


def alike_cards(card: Device, count: int) -> tuple[Device, ...]:
    """Cards like this one, numbered from 0 in their ids and indexes."""
    return tuple(replace(card, uuid=f"{card.uuid}-{index}", index=index) for index in range(count))
