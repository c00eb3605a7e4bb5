"""What is granted of cards and nodes, and to which pods, as the ledger counts it, beside what monitors measure.

Plain values for tables and JSON. Nothing is hidden: nodes whose cards are unknown, and pods that wait, stand beside the
cards.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from tessera.core.fit.device_rules import Rules
from tessera.core.ledger.holders import Holder, HolderKind, kind_of
from tessera.core.ledger.holdings import PodFacts
from tessera.core.ledger.ledger import Ledger
from tessera.core.model.grants import Use, effective_use
from tessera.core.model.node_info import Card
from tessera.inspect.checks.nodes import unreadable_nodes
from tessera.inspect.collector import no_such_nodes
from tessera.inspect.demand import last_refusal
from tessera.inspect.explanation import bad_pod_text
from tessera.inspect.offline_cluster import OfflineCluster
from tessera.inspect.request import summarize_request
from tessera.inspect.slices import (
    CardHolder,
    GrantedSlice,
    holder_slices,
    holders_with_pods,
    user_names,
)
from tessera.inspect.state import InspectionError
from tessera.inspect.utilization import NOTHING_MEASURED, MeasuredUse, SliceKey, Utilization, sum_utilization
from tessera.scheduler.engine_view import ClaimUsers
from tessera.vendors.drafts import BadPod
from tessera.vendors.pod_reader import ENDED


@dataclass(frozen=True, slots=True)
class Amount:
    """How much of a total is granted."""

    used: int
    total: int

    @property
    def share(self) -> float:
        return self.used / self.total if self.total > 0 else 0.0


def sum_amounts(amounts: Iterable[Amount]) -> Amount:
    listed = list(amounts)
    return Amount(sum(one.used for one in listed), sum(one.total for one in listed))


@dataclass(frozen=True, slots=True)
class MeasuredSlice(GrantedSlice):
    """A granted slice, and what its container uses of it."""

    measured: Utilization | None = None


@dataclass(frozen=True, slots=True)
class MeasuredHolder(CardHolder):
    """A pod that holds part of a card, and what it uses of it."""

    measured: Utilization | None = None


@dataclass(frozen=True, slots=True)
class CardUsage:
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
    """empty if the card takes new pods, else why it does not"""
    pods: tuple[MeasuredHolder, ...]
    measured: Utilization | None = None
    """of all processes on the card; None is unknown, here and elsewhere"""


@dataclass(frozen=True, slots=True)
class NodeUsage:
    node: str
    cards: int
    models: tuple[str, ...]
    memory_mib: Amount
    cores: Amount
    slots: Amount
    state: str
    pods: int
    measured: Utilization | None = None
    """of all cards whose use is known; the percentage is their mean"""


@dataclass(frozen=True, slots=True)
class PodUsage:
    namespace: str
    name: str
    node: str
    state: str
    cards: int
    memory_mib: int
    cores: int
    slices: tuple[MeasuredSlice, ...]
    measured: Utilization | None = None


@dataclass(frozen=True, slots=True)
class UsageFilter:
    """What to show; empty = everything."""

    nodes: frozenset[str] = frozenset()
    vendors: frozenset[str] = frozenset()
    model: str = ""
    """a part of the model's name, in any case"""
    namespace: str = ""

    def matches(self, card: Card, node: str) -> bool:
        device = card.device
        return (
            (not self.nodes or node in self.nodes)
            and (not self.vendors or device.vendor.lower() in self.vendors)
            and (not self.model or self.model.lower() in device.model.lower())
        )


EVERYTHING = UsageFilter()


def card_usage(
    cluster: OfflineCluster, wanted: UsageFilter = EVERYTHING, use: MeasuredUse = NOTHING_MEASURED
) -> list[CardUsage]:
    """Cards in the order of nodes and registration. With a namespace, only cards that its pods hold part of.

    Raises ListForbidden if nodes could not be listed.
    """
    cluster.state.require_nodes()
    found = [
        usage_of(cluster.ledger, name, card, view.facts.problem, use, cluster.view.users_of)
        for name in cluster.ledger.node_names()
        if (view := cluster.ledger.node(name)) is not None
        for card in view.cards
        if wanted.matches(card, name)
    ]
    if wanted.namespace:
        found = [one for one in found if any(pod.namespace == wanted.namespace for pod in one.pods)]
    return found


def node_usage(cluster: OfflineCluster, cards: Iterable[CardUsage]) -> list[NodeUsage]:
    """The nodes of these cards."""
    by_node: dict[str, list[CardUsage]] = {}
    for use in cards:
        by_node.setdefault(use.node, []).append(use)
    return [_node(cluster.ledger, name, cards) for name, cards in by_node.items()]


def pod_usage(
    cluster: OfflineCluster, wanted: UsageFilter = EVERYTHING, use: MeasuredUse = NOTHING_MEASURED
) -> list[PodUsage]:
    """Pods by namespace and name. If nodes could not be listed, what the pods' own annotations say."""
    shown: set[tuple[str, str]] = set()
    if cluster.state.nodes_seen or wanted.vendors or wanted.model:
        cards = card_usage(cluster, UsageFilter(wanted.nodes, wanted.vendors, wanted.model))
        shown = {(one.node, one.card) for one in cards}
    names = {
        pod.metadata.uid: [c.name for c in (*pod.init_containers, *pod.app_containers)] for pod in cluster.pods.values()
    }
    found = []
    for (namespace, name), entries in _by_pod(cluster).items():
        if wanted.namespace and namespace != wanted.namespace:
            continue
        uses: list[tuple[str, Use]] = []
        for entry in entries:
            if cluster.state.nodes_seen:
                uses += [(uuid, holding.use) for uuid, holding in entry.holdings.items()]
            else:
                uses += _named_uses(entry.facts).items()
        node = entries[0].facts.node
        if cluster.state.nodes_seen:
            is_shown = any((node, uuid) in shown for uuid, _ in uses)
        else:
            is_shown = bool(uses) and (not wanted.nodes or node in wanted.nodes)
        if not is_shown:
            continue
        slices = [
            _with_measured(MeasuredSlice, one, use.slices.get(SliceKey(entry.facts.uid, one.container, one.card)))
            for entry in entries
            for one in holder_slices(cluster.ledger, entry.facts, names.get(entry.facts.uid, ()))
        ]
        found.append(
            PodUsage(
                namespace,
                name,
                node,
                entries[0].state.value,
                len({uuid for uuid, _ in uses}),
                sum(one.memory for _, one in uses),
                sum(one.cores for _, one in uses),
                tuple(slices),
                sum_utilization(one.measured for one in slices),
            )
        )
    return sorted(found, key=lambda one: (one.namespace, one.name))


def _by_pod(cluster: OfflineCluster) -> dict[tuple[str, str], list[Holder]]:
    """What each pod holds, with what its claims hold; a claim that no pod uses stands alone, in brackets. A claim that
    several pods use is with each of them."""
    found: dict[tuple[str, str], list[Holder]] = {}
    for entry in cluster.ledger.pods():
        facts = entry.facts
        names: tuple[str, ...] = (facts.name,)
        if kind_of(facts) is HolderKind.CLAIM:
            names = user_names(cluster.view.users_of, facts) or (f"[{facts.name}]",)
        for name in names:
            found.setdefault((facts.namespace, name), []).append(entry)
    return found


def _named_uses(facts: PodFacts) -> dict[str, Use]:
    """By card, what an allocation names; what a vendor charges for it needs the card itself."""
    by_card: dict[str, list[tuple[int, Use, bool]]] = {}
    for containers in facts.grants.values():
        for position, grants in enumerate(containers):
            for grant in grants:
                use = Use(grant.slots, grant.memory, grant.cores)
                by_card.setdefault(grant.uuid, []).append((position, use, grant.mig is not None))
    return {uuid: effective_use(facts.spans, uses) for uuid, uses in by_card.items()}


Usage = TypeVar("Usage", CardUsage, NodeUsage, PodUsage)


def sort_usage(uses: Iterable[Usage], order: str) -> list[Usage]:
    """By memory, cores or slots the fullest first, by free the most free memory first. Equal ones, and all by name,
    keep their order."""
    return sorted(uses, key=lambda use: _rank(use, order))


def _rank(use: CardUsage | NodeUsage | PodUsage, order: str) -> float:
    if isinstance(use, PodUsage):
        return -{"memory": use.memory_mib, "cores": use.cores, "slots": use.cards}.get(order, 0)
    memory = use.memory_mib
    ranks = {"memory": memory.share, "cores": use.cores.share, "slots": use.slots.share}
    return -ranks.get(order, memory.total - memory.used if order == "free" else 0)


Measured = TypeVar("Measured", MeasuredSlice, MeasuredHolder)


def _with_measured(kind: type[Measured], one: Any, measured: Utilization | None) -> Measured:
    """A value of `kind` that holds what `one` does."""
    return kind(**{each.name: getattr(one, each.name) for each in fields(one)}, measured=measured)


def usage_of(
    ledger: Ledger, node: str, card: Card, problem: str, use: MeasuredUse, users_of: ClaimUsers | None
) -> CardUsage:
    """One card. `problem` is that of its node, `users_of` says which pods use a claim."""
    device = card.device
    rules = ledger.rules.get(device.vendor)
    return CardUsage(
        node,
        device.index,
        device.uuid,
        device.vendor,
        device.model,
        device.mode,
        Amount(card.used_memory, device.memory),
        Amount(count_cores(rules, card.used_cores), count_cores(rules, device.cores)),
        Amount(card.used, device.slots),
        problem or card_state(card),
        tuple(
            _with_measured(MeasuredHolder, one, use.of_pods(uids, device.uuid))
            for one, uids in holders_with_pods(ledger, node, device.uuid, users_of)
        ),
        use.cards.get((node, device.uuid)),
    )


def mean_measured(cards: Iterable[CardUsage]) -> Utilization | None:
    """The memory of all cards together, and the mean of their percentages."""
    known = [use.measured for use in cards if use.measured is not None]
    total, busy = sum_utilization(known), [each.percent for each in known if each.percent is not None]
    return None if total is None else Utilization(total.memory_mib, round(sum(busy) / len(busy)) if busy else None)


def count_cores(rules: Rules | None, cores: int) -> int:
    """Some vendors have cores as a bit mask, which says which cores they are: then the bits count."""
    return cores.bit_count() if rules is not None and rules.core_masks else cores


def card_state(card: Card) -> str:
    """Why the card takes no new pods; empty if it does."""
    if not card.device.healthy:
        return "unhealthy"
    if card.held:
        return f"held: {card.held}"
    return "cordoned" if card.cordoned else ""


def holding_pods(cards: Iterable[CardUsage]) -> set[tuple[str, str]]:
    """The pods that hold slices of these cards, themselves or through claims. A claim without pods counts as one."""
    holders = [one for use in cards for one in use.pods]
    return {(one.namespace, name) for one in holders for name in one.pods or (one.name,)}


def _node(ledger: Ledger, name: str, cards: Sequence[CardUsage]) -> NodeUsage:
    closed = [use for use in cards if use.state]
    view = ledger.node(name)
    problem = view.facts.problem if view is not None else ""
    return NodeUsage(
        name,
        len(cards),
        tuple(dict.fromkeys(use.model for use in cards)),
        sum_amounts(use.memory_mib for use in cards),
        sum_amounts(use.cores for use in cards),
        sum_amounts(use.slots for use in cards),
        problem or (f"{len(closed)} of {len(cards)} cards closed" if closed else ""),
        len(holding_pods(cards)),
        mean_measured(cards),
    )


@dataclass(frozen=True, slots=True)
class PendingPod:
    """A device pod that has no node yet."""

    namespace: str
    name: str
    since: str
    """when it was created; empty if that is unknown"""
    asks: tuple[str, ...]
    said: str
    """kube-scheduler's last message; empty if it has not refused the pod"""


@dataclass(frozen=True, slots=True)
class UnreadableNode:
    node: str
    reason: str


@dataclass(frozen=True, slots=True)
class UsageTotals:
    """Sums over the cards that are shown."""

    nodes: int
    cards: int
    closed_cards: int
    """that take no new pods"""
    memory_mib: Amount
    cores: Amount
    slots: Amount
    pods: int
    """that hold slices"""
    measured: Utilization | None = None


def require_known(cluster: OfflineCluster, wanted: UsageFilter) -> None:
    """Raises InspectionError if a node that is wanted does not exist."""
    missing = sorted(wanted.nodes - cluster.nodes.keys())
    if missing and cluster.state.nodes_seen:
        raise InspectionError(no_such_nodes(missing, cluster.nodes))


def unread_nodes(cluster: OfflineCluster, wanted: UsageFilter = EVERYTHING) -> list[UnreadableNode]:
    """Nodes whose cards are unknown, or not all known. Vendor, model and namespace cannot exclude them."""
    found = unreadable_nodes(cluster)
    return [UnreadableNode(node, why) for node, why in found.items() if not wanted.nodes or node in wanted.nodes]


def pending_pods(cluster: OfflineCluster, wanted: UsageFilter = EVERYTHING) -> list[PendingPod]:
    """Device pods without a node, the longest waiting first."""
    found = []
    for key, pod in sorted(cluster.pods.items()):
        metadata = pod.metadata
        if pod.spec.node_name or pod.status.phase in ENDED or metadata.deletion_timestamp:
            continue
        if wanted.namespace and metadata.namespace != wanted.namespace:
            continue
        prepared = cluster.prepare(pod)
        if isinstance(prepared, BadPod):
            asks: tuple[str, ...] = (bad_pod_text(prepared),)
        elif prepared.needs_placement:
            summary = summarize_request(prepared.request, pod.annotations, cluster.vendors)
            asks = tuple(one.text for one in summary.asked)
        else:
            continue
        document = cluster.documents[key]
        since = document["metadata"].get("creationTimestamp", "")
        found.append(PendingPod(metadata.namespace, metadata.name, since, asks, last_refusal(document) or ""))
    return sorted(found, key=lambda one: one.since)


def sum_usage(cards: Sequence[CardUsage]) -> UsageTotals:
    return UsageTotals(
        len({use.node for use in cards}),
        len(cards),
        sum(bool(use.state) for use in cards),
        sum_amounts(use.memory_mib for use in cards),
        sum_amounts(use.cores for use in cards),
        sum_amounts(use.slots for use in cards),
        len(holding_pods(cards)),
        mean_measured(cards),
    )
