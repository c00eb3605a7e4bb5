"""This node's pods and its lock, as two watches show them: sinks of reflectors, in memory, never written here.

Whoever waits for news of either awaits `changed`. Pods that cannot be read are kept with their problem and logged once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from math import inf
from time import monotonic

import structlog

from tessera.kube.reflector import ListerWatcher, Reflector
from tessera.kube.resources import NODES, PODS
from tessera.node.handover.bound_pod import BoundPod, read_pod
from tessera.node.handover.claims import Claim
from tessera.wire.errors import WireError
from tessera.wire.keys import NODE_LOCK
from tessera.wire.node_lock import decode_node_lock
from tessera.wire.objects import Node, Pod

log = structlog.get_logger(__name__)

Owner = tuple[str, str]
"""namespace and name"""


class NodePods:
    """Sink of the pods of one node, and of its node object through `lock`."""

    def __init__(
        self,
        node: str,
        *,
        time: Callable[[], float] = monotonic,
        on_first: Callable[[Iterable[str]], None] = lambda _uids: None,
        on_started: Callable[[BoundPod], None] = lambda _pod: None,
        on_ended: Callable[[str], None] = lambda _uid: None,
        on_gone: Callable[[str], None] = lambda _uid: None,
    ) -> None:
        """`on_started` is told pods that run, the others uids: `on_first` those of the first list, `on_ended` of pods
        that have ended, `on_gone` of those that are not there any more."""
        self.node = node
        self._time = time
        self.lock = LockView(self._tell)
        self.ready = asyncio.Event()
        """set when all pods are known"""
        self._on_first, self._on_started, self._on_ended, self._on_gone = on_first, on_started, on_ended, on_gone
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
        self._changed = asyncio.Event()
        self.version = 0
        """of everything that is known here"""

    # -- the sink

    def put(self, key: str, pod: Pod) -> None:
        found = read_pod(pod, self.node)
        known = self._pods.get(key)
        if known is not None and (found is None or found.key.uid != known.key.uid):
            self.drop(key)
            known = None
        if found is None:
            return
        self._pods[key] = found
        self._keys[found.key.uid] = key
        # Those of the first list have been there for nobody knows how long.
        self._since.setdefault(found.key.uid, self._time() if self.ready.is_set() else -inf)
        self._log(found)
        if found.started and not (known is not None and known.started):
            self._on_started(found)
        if found.terminal and not (known is not None and known.terminal):
            self._on_ended(found.key.uid)
        if found != known:
            self._tell()

    def drop(self, key: str) -> None:
        pod = self._pods.pop(key, None)
        if pod is not None:
            self._keys.pop(pod.key.uid, None)
            self._since.pop(pod.key.uid, None)
            self._logged.pop(pod.key.uid, None)
            self._on_gone(pod.key.uid)
            self._tell()

    def synced(self) -> None:
        if not self.ready.is_set():
            self._on_first(list(self._keys))
        self.ready.set()
        self._tell()

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

    def live_claims(self) -> list[Claim] | None:
        """Of all pods that have not ended, terminating ones included; None where one of them cannot be read.

        Whoever lets go of what belongs to nobody must then let go of nothing.
        """
        live = [pod for pod in self.all() if not pod.terminal]
        if any(pod.claims_problem for pod in live):
            return None
        return [claim for pod in live for claim in pod.claims]

    def is_alive(self, uid: str) -> bool:
        pod = self.get(uid)
        return pod is not None and not pod.terminal

    async def changed(self, *, since: int) -> None:
        """Until a pod or the lock is not as it was at this version."""
        if self.version == since:
            await self._changed.wait()

    def _tell(self) -> None:
        self.version += 1
        self._ordered = None
        # Everybody who waits holds the old event; the next to wait gets a new one.
        self._changed.set()
        self._changed = asyncio.Event()

    def _log(self, pod: BoundPod) -> None:
        problem = pod.problem if pod.in_handover else pod.claims_problem if not pod.terminal else ""
        if problem and self._logged.get(pod.key.uid) != problem:
            self._logged[pod.key.uid] = problem
            log.warning("pod cannot be handed its devices", pod=str(pod.key), problem=problem)


class LockView:
    """Sink of the one node object: who holds the node's lock."""

    def __init__(self, tell: Callable[[], None]) -> None:
        self._tell = tell
        self.text: str | None = None
        """of the annotation; None where there is no lock"""

    def put(self, key: str, node: Node) -> None:
        text = node.annotations.get(NODE_LOCK)
        if text != self.text:
            self.text = text
            self._tell()

    def drop(self, key: str) -> None:
        self.text = None
        self._tell()

    def synced(self) -> None:
        """Nothing waits for it: a node without a lock is the rule."""

    @property
    def owner(self) -> Owner | None:
        """The pod that the lock names."""
        try:
            return decode_node_lock(self.text).owner if self.text is not None else None
        except WireError:
            return None

    def concerns(self, owner: Owner) -> bool:
        """Whether the pod's handover has to end with the release of the lock: it is the pod's, or nobody's."""
        return self.text is not None and (self.owner == owner or "," not in self.text)


def pod_reflector(client: ListerWatcher, pods: NodePods) -> Reflector[Pod]:
    """Keeps `pods` true to the API while it runs."""
    return Reflector(
        client,
        PODS.path(),
        Pod,
        pods,
        key=lambda pod: f"{pod.metadata.namespace}/{pod.metadata.name}",
        uid=lambda pod: pod.metadata.uid,
        version=lambda pod: pod.metadata.resource_version,
        field_selector=f"spec.nodeName={pods.node}",
    )


def lock_reflector(client: ListerWatcher, pods: NodePods) -> Reflector[Node]:
    """Keeps the view of the node's lock true to the API while it runs."""
    return Reflector(
        client,
        NODES.path(),
        Node,
        pods.lock,
        key=lambda node: node.name,
        uid=lambda node: node.metadata.uid,
        version=lambda node: node.metadata.resource_version,
        field_selector=f"metadata.name={pods.node}",
    )
