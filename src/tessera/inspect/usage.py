"""Who holds what: cards, nodes and pods as the ledger counts them, in plain values for tables and programs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from tessera.core.grants import Placement
from tessera.core.ledger import Ledger
from tessera.core.node_info import Card
from tessera.inspect.offline_cluster import OfflineCluster
from tessera.inspect.slices import Holder, Slice, holders_of, slices_of


@dataclass(frozen=True, slots=True)
class Amount:
    """How much of something is granted."""

    used: int
    total: int

    @property
    def share(self) -> float:
        return self.used / self.total if self.total > 0 else 0.0

    def plus(self, other: Amount) -> Amount:
        return Amount(self.used + other.used, self.total + other.total)


NOTHING = Amount(0, 0)


@dataclass(frozen=True, slots=True)
class CardUse:
    """One card."""

    node: str
    index: int
    card: str
    vendor: str
    model: str
    mode: str
    memory_mib: Amount
    cores: Amount
    slots: Amount
    state: str
    """empty where the card takes new pods; else why it does not"""
    pods: tuple[Holder, ...]


@dataclass(frozen=True, slots=True)
class NodeUse:
    """All cards of a node."""

    node: str
    cards: int
    models: tuple[str, ...]
    memory_mib: Amount
    cores: Amount
    slots: Amount
    state: str
    pods: int


@dataclass(frozen=True, slots=True)
class PodUse:
    """One pod that holds devices."""

    namespace: str
    name: str
    node: str
    state: str
    cards: int
    memory_mib: int
    cores: int
    slices: tuple[Slice, ...]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be shown; empty = everything."""

    nodes: frozenset[str] = frozenset()
    vendors: frozenset[str] = frozenset()
    model: str = ""
    """a part of the model's name, in any case"""
    namespace: str = ""

    def takes(self, card: Card, node: str) -> bool:
        device = card.device
        return (
            (not self.nodes or node in self.nodes)
            and (not self.vendors or device.vendor.lower() in self.vendors)
            and (not self.model or self.model.lower() in device.model.lower())
        )


EVERYTHING = Wanted()


def cards_in_use(world: OfflineCluster, wanted: Wanted = EVERYTHING) -> list[CardUse]:
    """Cards in order of node and registration; with a namespace, those of which its pods hold a part."""
    found = [
        _card(world.ledger, name, card, view.facts.problem)
        for name in world.ledger.node_names()
        if (view := world.ledger.node(name)) is not None
        for card in view.cards
        if wanted.takes(card, name)
    ]
    if wanted.namespace:
        found = [use for use in found if any(pod.namespace == wanted.namespace for pod in use.pods)]
    return found


def nodes_in_use(world: OfflineCluster, wanted: Wanted = EVERYTHING) -> list[NodeUse]:
    by_node: dict[str, list[CardUse]] = {}
    for use in cards_in_use(world, wanted):
        by_node.setdefault(use.node, []).append(use)
    return [_node(world.ledger, name, cards) for name, cards in by_node.items()]


def pods_in_use(world: OfflineCluster, wanted: Wanted = EVERYTHING) -> list[PodUse]:
    shown = {(use.node, use.card) for use in cards_in_use(world, Wanted(wanted.nodes, wanted.vendors, wanted.model))}
    names = {
        pod.metadata.uid: [c.name for c in (*pod.init_containers, *pod.app_containers)] for pod in world.pods.values()
    }
    found = []
    for entry in world.ledger.pods():
        facts = entry.facts
        if wanted.namespace and facts.namespace != wanted.namespace:
            continue
        if not any((facts.node, uuid) in shown for uuid in entry.holdings):
            continue
        uses = [holding.use for holding in entry.holdings.values()]
        found.append(
            PodUse(
                facts.namespace,
                facts.name,
                facts.node,
                entry.state.value,
                len(entry.holdings),
                sum(use.memory for use in uses),
                sum(use.cores for use in uses),
                slices_of(world.ledger, Placement(facts.node, facts.grants), names.get(facts.uid, ())),
            )
        )
    return sorted(found, key=lambda use: (use.namespace, use.name))


Use = TypeVar("Use", CardUse, NodeUse)

ORDERS: dict[str, Callable[[CardUse | NodeUse], float]] = {
    "memory": lambda use: -use.memory_mib.share,
    "cores": lambda use: -use.cores.share,
    "slots": lambda use: -use.slots.share,
    "free": lambda use: -(use.memory_mib.total - use.memory_mib.used),
    "name": lambda _use: 0.0,
}
"""how cards and nodes can be sorted: the fullest first, or the one with the most free memory"""


def ordered(uses: Sequence[Use], order: str) -> list[Use]:
    """Equal ones stay in the order of their names."""
    return sorted(uses, key=ORDERS[order])


def pods_ordered(uses: Iterable[PodUse], order: str) -> list[PodUse]:
    sizes: dict[str, Callable[[PodUse], float]] = {
        "memory": lambda use: -use.memory_mib,
        "cores": lambda use: -use.cores,
        "slots": lambda use: -use.cards,
    }
    return sorted(uses, key=sizes.get(order, lambda _use: 0.0))


def _card(ledger: Ledger, node: str, card: Card, problem: str) -> CardUse:
    device = card.device
    return CardUse(
        node,
        device.index,
        device.uuid,
        device.vendor,
        device.model,
        device.mode,
        Amount(card.used_memory, device.memory),
        # A mask of core ids says which cores, not how many.
        Amount(card.used_cores, device.cores) if not _counts_masks(ledger, card) else _bits(card),
        Amount(card.used, device.slots),
        problem or _state(card),
        holders_of(ledger, node, device.uuid),
    )


def _counts_masks(ledger: Ledger, card: Card) -> bool:
    rules = ledger.rules.get(card.device.vendor)
    return rules is not None and rules.core_masks


def _bits(card: Card) -> Amount:
    return Amount(card.used_cores.bit_count(), card.device.cores.bit_count())


def _state(card: Card) -> str:
    if not card.device.healthy:
        return "unhealthy"
    if card.held:
        return f"held: {card.held}"
    return "cordoned" if card.cordoned else ""


def _node(ledger: Ledger, name: str, cards: Sequence[CardUse]) -> NodeUse:
    memory, cores, slots = NOTHING, NOTHING, NOTHING
    for use in cards:
        memory, cores, slots = memory.plus(use.memory_mib), cores.plus(use.cores), slots.plus(use.slots)
    closed = [use for use in cards if use.state]
    view = ledger.node(name)
    problem = view.facts.problem if view is not None else ""
    state = problem or (f"{len(closed)} of {len(cards)} cards closed" if closed else "")
    pods = {(pod.namespace, pod.name) for use in cards for pod in use.pods}
    models = tuple(dict.fromkeys(use.model for use in cards))
    return NodeUse(name, len(cards), models, memory, cores, slots, state, len(pods))
