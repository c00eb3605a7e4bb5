"""The pods of the page: whose they are, which of them wait, and for what.

A pod that waits asks for devices and is on no node. Which pods these are is read from the objects of a cluster
(`PendingPods`); a running scheduler and a journal know it by themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from typing import NamedTuple

import msgspec

from tessera.core.model.requests import PodRequest
from tessera.core.search.selection import Candidates
from tessera.inspect.explanation import bad_pod_text
from tessera.inspect.offline_cluster import OfflineCluster
from tessera.inspect.state import Json
from tessera.vendors.drafts import BadPod
from tessera.vendors.pod_reader import ENDED
from tessera.wire import keys
from tessera.wire.objects import Pod
from tessera.wire.pod_groups import PodGroup, read_pod_group


class PodOrigin(NamedTuple):
    """What the ledger does not know about a pod."""

    kind: str = ""
    """of the workload that it belongs to; empty if no controller made it"""
    name: str = ""
    since: float | None = None
    """unix seconds of its binding; of a pod that waits, when it began to"""
    created: float | None = None
    gang: str = ""

    @property
    def owner(self) -> tuple[str, str] | None:
        return (self.kind, self.name) if self.kind else None


NO_ORIGIN = PodOrigin()


def pod_origin(pod: Pod) -> PodOrigin:
    """What a bound pod itself says."""
    text = pod.annotations.get(keys.BIND_TIME) or pod.annotations.get(keys.ASSIGNED_TIME) or ""
    since = float(text) if text.isdecimal() and text.isascii() and len(text) < 16 else None
    workload = pod.workload
    group = read_pod_group(pod)
    gang = group.name if isinstance(group, PodGroup) else ""
    return PodOrigin(workload.kind, workload.name, since, created_at(pod), gang)


def created_at(pod: Pod) -> float | None:
    """Unix seconds; None if that is not known."""
    try:
        return datetime.fromisoformat(pod.metadata.creation_timestamp or "").timestamp()
    except ValueError:
        return None


@dataclass(frozen=True, eq=False)
class NodeNames:
    """Nodes to choose from. One object for all pods that may use the same ones, so that it is compared by identity."""

    names: tuple[str, ...] = ()


NO_NODES = NodeNames()


@dataclass(frozen=True, slots=True)
class WaitingPod:
    """A pod that asks for devices and has none."""

    uid: str
    namespace: str
    name: str
    request: PodRequest | None
    """None if it cannot be read"""
    candidates: NodeNames | Candidates = NO_NODES
    problem: str = ""
    """why it is never placed, whatever is free"""
    origin: PodOrigin = NO_ORIGIN
    """`since` is when it began to wait"""
    attempts: int | None = None
    """how often it was refused, if that is known"""
    nominated_node: str = ""
    """as the API shows it"""


class WaitingRow(msgspec.Struct, frozen=True, kw_only=True):
    """A pod or a gang that waits, now or in the past: for what, and why. It goes to the page as it is."""

    uid: str
    namespace: str
    name: str
    owner: tuple[str, str] | None
    """kind and name of the workload"""
    since: float | None
    asks: str
    why: str
    nearest: str = ""
    change: str = ""
    attempts: int | None = None
    """how often it was refused, if that is known"""
    gang: Json | None = None
    """None for a pod"""


def waiting_row(pod: WaitingPod, why: str, nearest: str = "", change: str = "") -> WaitingRow:
    return WaitingRow(
        uid=pod.uid,
        namespace=pod.namespace,
        name=pod.name,
        owner=pod.origin.owner,
        since=pod.origin.since,
        asks=asks_text(pod.request) if pod.request is not None else "",
        why=why,
        nearest=nearest,
        change=change,
        attempts=pod.attempts,
    )


def asks_text(request: PodRequest) -> str:
    """The request in a few words: `2 x 20000 MiB, 30 cores`."""
    parts = []
    for container in request.containers:
        for one in container.requests:
            memory = f"{one.memory} MiB" if one.memory else f"{one.percent} % of the memory" if one.percent else ""
            cores = f"{one.cores} cores" if one.cores else ""
            amounts = ", ".join(filter(None, (memory, cores))) or "cards"
            parts.append(f"{one.count} x {amounts}")
    return " + ".join(parts)


class PendingPods:
    """The pods of a cluster that ask for devices and are on no node.

    What is read of a pod, and the nodes that kube-scheduler would ask about for it, are kept until the pod or a node
    changes: this is asked several times a second.
    """

    def __init__(self, cluster: OfflineCluster) -> None:
        self._cluster = cluster
        self._pods: dict[str, WaitingPod | None] = {}
        """by key; None until it is asked for"""
        self._candidates: dict[bytes, NodeNames] = {}
        """by what pods say about nodes"""

    def put(self, key: str) -> None:
        """The pod appeared or changed."""
        pod = self._cluster.pods[key]
        is_over = pod.status.phase in ENDED or pod.metadata.deletion_timestamp
        if pod.spec.node_name or is_over or pod.spec.scheduling_gates:
            self._pods.pop(key, None)
        else:
            self._pods[key] = None

    def drop(self, key: str) -> None:
        self._pods.pop(key, None)

    def on_claims(self) -> None:
        """A claim, a class or what nodes offer to claims has changed: what pods with claims ask for may be another."""
        for key in self._pods:
            if self._cluster.pods[key].spec.resource_claims:
                self._pods[key] = None

    def on_nodes(self) -> None:
        """What kube-scheduler looks at has changed on some node."""
        self._candidates.clear()
        self._pods = dict.fromkeys(self._pods)

    def pods(self) -> Iterator[WaitingPod]:
        for key, known in list(self._pods.items()):
            pod = known if known is not None else self._read(key)
            self._pods[key] = pod
            is_waiting = pod.problem or pod.request is not None
            if is_waiting and self._cluster.ledger.pod(pod.uid) is None:
                yield pod

    def _read(self, key: str) -> WaitingPod:
        pod, prepared = self._cluster.pods[key], self._cluster.prepare(self._cluster.pods[key])
        metadata, origin = pod.metadata, pod_origin(pod)
        origin = origin._replace(since=origin.created)
        found = WaitingPod(metadata.uid, metadata.namespace, metadata.name, None, origin=origin)
        if isinstance(prepared, BadPod):
            return replace(found, problem=bad_pod_text(prepared))
        if not prepared.needs_placement:
            return found
        nodes = self._nodes(self._cluster.documents[key])
        pinned = prepared.claims.node if prepared.claims is not None else ""
        if prepared.claims is not None and pinned:
            if pinned not in nodes.names:
                return replace(found, problem=prepared.claims.elsewhere.text)
            nodes = NodeNames((pinned,))
        nominated = pod.status.nominated_node_name
        return replace(found, request=prepared.request, candidates=nodes, nominated_node=nominated)

    def _nodes(self, document: Json) -> NodeNames:
        spec = document["spec"]
        told = msgspec.json.encode([spec.get("nodeSelector"), spec.get("affinity"), spec.get("tolerations")])
        found = self._candidates.get(told)
        if found is None:
            found = self._candidates[told] = NodeNames(tuple(self._cluster.candidates(document)[0]))
        return found
