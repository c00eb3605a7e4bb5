"""Everything that `tessera top` shows of a cluster at one moment.

Nothing is hidden: nodes whose cards are unknown, and pods that wait, are listed beside the cards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tessera.inspect.checks.nodes import unreadable_nodes
from tessera.inspect.collector import no_such_nodes
from tessera.inspect.demand import last_refusal
from tessera.inspect.explanation import bad_pod_text
from tessera.inspect.offline_cluster import OfflineCluster
from tessera.inspect.request import summarize_request
from tessera.inspect.state import InspectionError
from tessera.inspect.usage import EVERYTHING, Amount, CardUsage, UsageFilter, holding_pods, mean_measured, sum_amounts
from tessera.inspect.utilization import Utilization
from tessera.vendors.drafts import BadPod
from tessera.vendors.pod_reader import ENDED


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
