"""This node and its pods: kept true to the API by two watches, and the calls that handover makes there.

Where the watch may be behind, `is_in_handover`, `read_all` and `read_lock` ask the API itself; that changes nothing
here. Readers that wait for news watch `version`. A pod that cannot be read is kept with its problem and logged once.
Each call has a deadline; none is retried here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Any

import structlog

from tessera.kube.client import KubeClient
from tessera.kube.errors import KubeError
from tessera.kube.reflector import Reflector
from tessera.kube.resources import NODES, PODS
from tessera.node.handover.assignments import Assignment, BoundPod, ObjectKey, read_pod
from tessera.node.watched_value import WatchedValue
from tessera.vendors.drafts import words
from tessera.wire.errors import WireError
from tessera.wire.keys import DEVICE_CORDON, NODE_LOCK
from tessera.wire.objects import Node, Pod
from tessera.wire.registration import decode_node_lock

log = structlog.get_logger(__name__)

Annotations = Mapping[str, str | None]
"""None removes"""

READ_S = 3.0
"""deadline of a read from the API while kubelet waits"""

Owner = tuple[str, str]
"""namespace and name"""


class KubeCluster:
    """Every call may raise KubeError."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client

    async def get_pod(self, namespace: str, name: str) -> Pod:
        return await self._client.get(PODS.path(namespace, name), Pod)

    async def list_pods(self, node: str) -> Sequence[Pod]:
        """All pods of a node. The list is at least as new as what kubelet knew when the call was made."""
        return (await self._client.list(PODS.path(), Pod, field_selector=f"spec.nodeName={node}")).items

    async def annotate_pod(self, pod: ObjectKey, annotations: Annotations) -> Pod:
        """The pod afterwards. A later pod of the same name is not touched: its uid cannot be changed (422)."""
        body = {"metadata": {"uid": pod.uid, "annotations": annotations}}
        return await self._client.patch(PODS.path(pod.namespace, pod.name), body, kind=Pod)

    async def get_node(self, name: str) -> Node:
        return await self._client.get(NODES.path(name=name), Node)

    async def annotate_node(self, name: str, annotations: Annotations, *, resource_version: str) -> None:
        metadata: dict[str, Any] = {"annotations": annotations, "resourceVersion": resource_version}
        await self._client.patch(NODES.path(name=name), {"metadata": metadata})


class PodCache:
    """Sink of the pods of one node, and of its node object through `node_view`."""

    def __init__(
        self, node: str, cluster: KubeCluster, *, time: Callable[[], float], on_gone: Callable[[str], None]
    ) -> None:
        """`on_gone` is called with the uid of a pod that does not exist any more, before it is forgotten here."""
        self.node = node
        self._cluster = cluster
        self._time = time
        self._on_gone = on_gone
        self.node_view = NodeView(self._notify)
        self.ready = asyncio.Event()
        """set when all pods are known"""
        self.inherited: frozenset[str] = frozenset()
        """uids of the pods of the first list: an earlier process may have answered for them"""
        self._pods: dict[str, BoundPod] = {}
        """by key of the reflector, namespace/name"""
        self._since: dict[str, float] = {}
        """uid -> when it was shown first"""
        self._keys: dict[str, str] = {}
        """uid -> key"""
        self._logged: dict[str, str] = {}
        """uid -> problem"""
        self._ordered: list[BoundPod] | None = None
        """None where it has to be sorted again"""
        self.version = WatchedValue(0)
        """of everything that is known here, the node included"""

    # -- the sink

    def put(self, key: str, pod: Pod) -> None:
        found = self._read(pod)
        known = self._pods.get(key)
        if known is not None and (found is None or found.key.uid != known.key.uid):
            self.drop(key)
            known = None
        if found is None:
            return
        self._pods[key] = found
        self._keys[found.key.uid] = key
        # How long the pods of the first list have been there is not known.
        self._since.setdefault(found.key.uid, self._time() if self.ready.is_set() else -inf)
        self._log_problem(found)
        if found != known:
            self._notify()

    def drop(self, key: str) -> None:
        pod = self._pods.get(key)
        if pod is not None:
            self._on_gone(pod.key.uid)
            del self._pods[key]
            for memory in (self._keys, self._since, self._logged):
                memory.pop(pod.key.uid, None)
            self._notify()

    def synced(self) -> None:
        if not self.ready.is_set():
            self.inherited = frozenset(self._keys)
        self.ready.set()
        self._notify()

    # -- what is there

    def all(self) -> list[BoundPod]:
        """In the order of binding."""
        if self._ordered is None:
            self._ordered = sorted(self._pods.values(), key=lambda pod: pod.order)
        return self._ordered

    def get(self, uid: str) -> BoundPod | None:
        key = self._keys.get(uid)
        return None if key is None else self._pods.get(key)

    def named(self, namespace: str, name: str) -> BoundPod | None:
        return self._pods.get(f"{namespace}/{name}")

    def age(self, uid: str) -> float:
        """Seconds since the pod was shown first."""
        return self._time() - self._since.get(uid, -inf)

    def live_assignments(self) -> list[Assignment] | None:
        """Of all pods that have not ended, terminating ones included; None where one of them cannot be read, so that
        nothing may be released."""
        live = [pod for pod in self.all() if not pod.terminal]
        if any(pod.assignments_problem for pod in live):
            return None
        return [assignment for pod in live for assignment in pod.assignments]

    # -- what the API says now

    async def is_in_handover(self, key: ObjectKey) -> bool:
        """Whether the API shows this very pod in handover; False where it cannot be asked."""
        try:
            async with asyncio.timeout(READ_S):
                pod = await self._cluster.get_pod(key.namespace, key.name)
        except (KubeError, TimeoutError):
            return False
        found = self._read(pod)
        return found is not None and found.key == key and found.in_handover

    async def read_all(self) -> list[BoundPod] | None:
        """All pods as the API shows them, in the order of binding; None where it cannot be asked."""
        try:
            async with asyncio.timeout(READ_S):
                pods = await self._cluster.list_pods(self.node)
        except (KubeError, TimeoutError) as error:
            log.warning("pods of this node cannot be read", error=str(error) or type(error).__name__)
            return None
        found = (self._read(pod) for pod in pods)
        return sorted((pod for pod in found if pod is not None), key=lambda pod: pod.order)

    async def read_lock(self) -> Owner | None:
        """The pod that the node lock names in the API. Raises KubeError or TimeoutError."""
        async with asyncio.timeout(READ_S):
            node = await self._cluster.get_node(self.node)
        return _owner(node.annotations.get(NODE_LOCK))

    def _read(self, pod: Pod) -> BoundPod | None:
        """Almost all that the API shows again has been read before: the same version of a pod is the same pod."""
        meta = pod.metadata
        known = self.named(meta.namespace, meta.name)
        if known is not None and known.key.uid == meta.uid and known.version and known.version == meta.resource_version:
            return known
        return read_pod(pod, self.node)

    # -- news

    def _notify(self) -> None:
        self._ordered = None
        self.version.set(self.version.value + 1)

    def _log_problem(self, pod: BoundPod) -> None:
        problem = pod.problem if pod.in_handover else pod.assignments_problem if not pod.terminal else ""
        if problem and self._logged.get(pod.key.uid) != problem:
            self._logged[pod.key.uid] = problem
            log.warning("pod cannot be handed its devices", pod=str(pod.key), problem=problem)


class NodeView:
    """Sink of this node's object: the pod that holds the node's lock, and the cards that are cordoned."""

    def __init__(self, notify: Callable[[], None]) -> None:
        self._notify = notify
        self.uid = ""
        """empty while the node is not known"""
        self.cordoned: tuple[str, ...] = ()
        """uuids"""
        self.lock_text: str | None = None
        """of the annotation; None where there is no lock"""

    def put(self, key: str, node: Node) -> None:
        self._set(node.metadata.uid, words(node.annotations, DEVICE_CORDON), node.annotations.get(NODE_LOCK))

    def drop(self, key: str) -> None:
        self._set("", (), None)

    def synced(self) -> None:
        """Nothing waits for it: a node without a lock is the rule."""

    @property
    def lock_owner(self) -> Owner | None:
        """The pod that the lock names."""
        return _owner(self.lock_text)

    def lock_concerns(self, owner: Owner) -> bool:
        """Whether the pod's handover has to end with the release of the lock: it is the pod's, or names no pod."""
        return self.lock_text is not None and (self.lock_owner == owner or "," not in self.lock_text)

    def _set(self, uid: str, cordoned: tuple[str, ...], lock_text: str | None) -> None:
        found = uid, cordoned, lock_text
        if found != (self.uid, self.cordoned, self.lock_text):
            self.uid, self.cordoned, self.lock_text = found
            self._notify()


def _owner(text: str | None) -> Owner | None:
    try:
        return decode_node_lock(text).owner if text is not None else None
    except WireError:
        return None


def pod_reflector(client: KubeClient, pods: PodCache) -> Reflector[Pod]:
    """Keeps `pods` true to the API while it runs."""
    return Reflector(
        client,
        PODS.path(),
        Pod,
        pods,
        field_selector=f"spec.nodeName={pods.node}",
    )


def node_reflector(client: KubeClient, pods: PodCache) -> Reflector[Node]:
    """Keeps the view of the node true to the API while it runs."""
    return Reflector(
        client,
        NODES.path(),
        Node,
        pods.node_view,
        field_selector=f"metadata.name={pods.node}",
    )
