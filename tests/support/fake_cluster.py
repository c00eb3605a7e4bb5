"""An apiserver in memory for the scheduler, with faults that a test scripts call by call.

It refuses what a real one refuses (wrong uid, bound already, being deleted, stale resourceVersion), so that a test
asserts what is stored in the end. Changes wait in `changes` until the test lets an informer see them.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from tessera.kube.decoder import ListPage
from tessera.kube.errors import ApiError, KubeError, Unreachable
from tessera.kube.resources import PODS, Resource
from tessera.scheduler.kube_api import Annotations, KubeApi, Record
from tessera.wire import keys
from tessera.wire.objects import Metadata, Node, Pod
from tessera.wire.pod_groups import GroupObject, PodGroupObject
from tessera.wire.resource_api import ClaimStatus, ResourceClaim
from tests.support.builders import NodeBuilder, PodBuilder

T = TypeVar("T")
Object = TypeVar("Object", Pod, Node, ResourceClaim)


def refused(status: int, reason: str = "", *, retry_after: float | None = None) -> ApiError:
    return ApiError(status=status, reason=reason, message="scripted", retry_after=retry_after)


def not_found(what: str) -> ApiError:
    return ApiError(status=404, reason="NotFound", message=f"{what} not found")


def lost_answer() -> Unreachable:
    return Unreachable("no answer within 30 s", maybe_done=True)


def never_sent() -> Unreachable:
    return Unreachable("connection refused", maybe_done=False)


@dataclass(frozen=True)
class Step:
    """What happens to one call: a delay, another event, the effect (or none), a failure."""

    error: KubeError | None = None
    done: bool = False
    """whether the call takes effect although it fails"""
    delay: float = 0.0
    """seconds before"""
    meanwhile: Callable[[], object] = lambda: None


OK = Step()


@dataclass(frozen=True)
class Write:
    """A write, as it arrived."""

    verb: str
    name: str
    annotations: Mapping[str, str | None]
    labels: Mapping[str, str]
    version: str = ""
    """of the pod, of a binding"""


class FakeCluster(KubeApi):
    """Pods and nodes. Each call first takes the steps that are scripted for its verb."""

    def __init__(self) -> None:
        self.pods: dict[str, Pod] = {}
        self.nodes: dict[str, Node] = {}
        self.claims: dict[str, ResourceClaim] = {}
        self.pod_groups: dict[tuple[GroupObject, str, str], PodGroupObject] = {}
        self.changes: deque[tuple[str, str]] = deque()
        """kind and key of what an informer has not seen"""
        self.record: Record | None = None
        self.taints: list[dict[str, str]] = []
        """of all nodes"""
        self.full: set[str] = set()
        """keys of pods whose annotations cannot grow"""
        self.nominated: dict[str, str | None] = {}
        """status.nominatedNodeName as it was written last, by pod"""
        self.calls: list[str] = []
        self.looked_up: list[tuple[str, str]] = []
        """namespaces and names of PodGroups that were asked for"""
        self.writes: list[Write] = []
        self._steps: defaultdict[str, deque[Step]] = defaultdict(deque)
        self._always: dict[str, Step] = {}
        self._version = 0

    # -- what a test says

    def script(self, verb: str, *steps: Step | KubeError) -> None:
        """Scripts the next calls of `verb`."""
        self._steps[verb].extend(_step(step) for step in steps)

    def always(self, verb: str, step: Step | KubeError | None) -> None:
        """Scripts all further calls; None ends that."""
        if step is None:
            self._always.pop(verb, None)
        else:
            self._always[verb] = _step(step)

    def add_pod(self, built: PodBuilder) -> None:
        pod = built.api()
        self._store_pod(f"{pod.metadata.namespace}/{pod.metadata.name}", pod)

    def delete_pod(self, key: str) -> None:
        del self.pods[key]
        self.changes.append(("pod", key))

    def add_node(self, built: NodeBuilder) -> None:
        node = built.api()
        self._store_node(node.name, node)

    def delete_node(self, name: str) -> None:
        del self.nodes[name]
        self.changes.append(("node", name))

    def annotate(self, name: str, **annotations: str | None) -> None:
        """Another client changes a node."""
        self._store_node(name, _annotated(self.nodes[name], annotations))

    def mark_pod(self, key: str, annotations: Annotations) -> None:
        """Another client changes a pod."""
        self._store_pod(key, _annotated(self.pods[key], annotations))

    def add_claim(self, claim: ResourceClaim) -> ResourceClaim:
        return self._store_claim(claim)

    def delete_claim(self, key: str) -> None:
        del self.claims[key]
        self.changes.append(("claim", key))

    def change_claim(self, key: str, status: ClaimStatus | None = None, **metadata: object) -> ResourceClaim:
        """Another client changes a claim."""
        claim = _with_metadata(self.claims[key], **metadata)
        return self._store_claim(claim if status is None else msgspec.structs.replace(claim, status=status))

    # -- Cluster

    async def get_pod(self, namespace: str, name: str) -> Pod:
        return await self._call("get_pod", lambda: self._pod(f"{namespace}/{name}"))

    async def unbound_pods(self) -> list[Pod]:
        return await self._call("unbound_pods", lambda: [pod for pod in self.pods.values() if not pod.spec.node_name])

    async def list_pods(self, namespace: str) -> list[Pod]:
        return await self._call(
            "list_pods", lambda: [pod for pod in self.pods.values() if pod.metadata.namespace == namespace]
        )

    async def pages(self, resource: Resource, kind: type[T]) -> AsyncGenerator[ListPage[T], None]:
        objects: Iterable[Pod | Node] = self.pods.values() if resource is PODS else self.nodes.values()
        shown = [msgspec.to_builtins(each) for each in objects]
        if resource is not PODS:
            shown = [each | {"spec": {"taints": self.taints}} for each in shown]
        yield ListPage([msgspec.convert(each, kind) for each in shown], "1", is_first=True)

    async def find_record(self, namespace: str | None, name: str) -> Record | None:
        return await self._call("find_record", lambda: self.record)

    async def write_record(self, namespace: str | None, name: str, annotations: Annotations, *, version: str) -> None:
        def effect() -> None:
            if version != ("" if self.record is None else self.record.metadata.resource_version):
                raise refused(409, "Conflict")
            self._version += 1
            kept = {key: text for key, text in annotations.items() if text is not None}
            self.record = Record(Metadata(name=name, annotations=kept, resource_version=str(self._version)))

        await self._call("write_record", effect)

    async def get_node(self, name: str) -> Node:
        return await self._call("get_node", lambda: self._node(name))

    async def get_pod_group(self, kind: GroupObject, namespace: str, name: str) -> PodGroupObject:
        def found() -> PodGroupObject:
            if (kind, namespace, name) not in self.pod_groups:
                raise not_found(f"podgroups {namespace}/{name}")
            return self.pod_groups[kind, namespace, name]

        self.looked_up.append((namespace, name))
        return await self._call("get_pod_group", found)

    async def bind(
        self,
        namespace: str,
        name: str,
        *,
        uid: str,
        resource_version: str,
        node: str,
        annotations: Mapping[str, str],
        labels: Mapping[str, str],
    ) -> None:
        key = f"{namespace}/{name}"

        def effect() -> None:
            pod = self._pod(key)
            if pod.metadata.uid != uid or pod.metadata.resource_version != resource_version:
                raise refused(409, "Conflict")
            if pod.spec.node_name or pod.metadata.deletion_timestamp:
                raise refused(409, "Conflict")
            bound = _annotated(pod, annotations, labels)
            self._store_pod(key, msgspec.structs.replace(bound, spec=msgspec.structs.replace(pod.spec, node_name=node)))

        self.writes.append(Write("bind", key, annotations, labels, resource_version))
        await self._call("bind", effect)

    async def annotate_pod(
        self, namespace: str, name: str, annotations: Annotations, *, labels: Annotations | None = None
    ) -> Pod:
        key = f"{namespace}/{name}"

        def effect() -> Pod:
            # As long as all annotations of a pod may be, to the apiserver.
            if annotations and key in self.full:
                raise refused(422, "Invalid")
            return self._store_pod(key, _annotated(self._pod(key), annotations, labels))

        self.writes.append(Write("annotate_pod", key, annotations, {}))
        return await self._call("annotate_pod", effect)

    async def annotate_node(self, name: str, annotations: Annotations, *, resource_version: str = "") -> None:
        def effect() -> None:
            node = self._node(name)
            if resource_version and resource_version != node.metadata.resource_version:
                raise refused(409, "Conflict")
            self._store_node(name, _annotated(node, annotations))

        self.writes.append(Write("annotate_node", name, annotations, {}))
        await self._call("annotate_node", effect)

    async def evict(self, namespace: str, name: str, *, uid: str, dry_run: bool = False) -> None:
        """The pod is terminating from now on; `delete_pod` ends it. Dry runs are scripted as `evict_dry_run`."""
        key = f"{namespace}/{name}"

        def effect() -> None:
            pod = self._pod(key)
            if pod.metadata.uid != uid:
                raise refused(409, "Conflict")
            if not dry_run:
                self._store_pod(key, _with_metadata(pod, deletion_timestamp="2026-01-01T00:00:00Z"))

        verb = "evict_dry_run" if dry_run else "evict"
        self.writes.append(Write(verb, key, {}, {}))
        await self._call(verb, effect)

    async def set_nominated_node(self, namespace: str, name: str, *, uid: str, node: str | None) -> None:
        key = f"{namespace}/{name}"

        def effect() -> None:
            pod = self._pod(key)
            if pod.metadata.uid != uid:
                raise refused(409, "Conflict")
            self.nominated[key] = node
            marked = _annotated(pod, {keys.NOMINATED: node})
            status = msgspec.structs.replace(pod.status, nominated_node_name=node or "")
            self._store_pod(key, msgspec.structs.replace(marked, status=status))

        await self._call("set_nominated_node", effect)

    async def list_claims(self) -> list[ResourceClaim]:
        return await self._call("list_claims", lambda: list(self.claims.values()))

    async def get_claim(self, namespace: str, name: str) -> ResourceClaim:
        return await self._call("get_claim", lambda: self._claim(f"{namespace}/{name}"))

    async def mark_claim(
        self, claim: ResourceClaim, annotations: Annotations, *, finalizers: Sequence[str] | None = None
    ) -> ResourceClaim:
        def effect() -> ResourceClaim:
            found = self._same_claim(claim, version=finalizers is not None)
            marked = _annotated(found, annotations)
            return self._store_claim(marked if finalizers is None else _with_metadata(marked, finalizers=[*finalizers]))

        return await self._call("mark_claim", effect)

    async def write_claim_status(self, claim: ResourceClaim, status: Mapping[str, Any]) -> ResourceClaim:
        def effect() -> ResourceClaim:
            return self._store_claim(with_status(self._same_claim(claim, version=True), status))

        return await self._call("write_claim_status", effect)

    # -- inside

    async def _call(self, verb: str, effect: Callable[[], T]) -> T:
        self.calls.append(verb)
        steps = self._steps[verb]
        step = steps.popleft() if steps else self._always.get(verb, OK)
        # A call gives the loop to others even where it answers at once.
        await asyncio.sleep(step.delay)
        step.meanwhile()
        if step.error is None:
            return effect()
        if step.done:
            effect()
        raise step.error

    def _pod(self, key: str) -> Pod:
        if key not in self.pods:
            raise not_found(f'pods "{key}"')
        return self.pods[key]

    def _node(self, name: str) -> Node:
        if name not in self.nodes:
            raise not_found(f'nodes "{name}"')
        return self.nodes[name]

    def _claim(self, key: str) -> ResourceClaim:
        if key not in self.claims:
            raise not_found(f'resourceclaims "{key}"')
        return self.claims[key]

    def _same_claim(self, claim: ResourceClaim, *, version: bool) -> ResourceClaim:
        """The claim as it is, if it is still that one, and perhaps in that version."""
        found = self._claim(f"{claim.metadata.namespace}/{claim.metadata.name}")
        mine, theirs = claim.metadata, found.metadata
        if mine.uid != theirs.uid or (version and mine.resource_version != theirs.resource_version):
            raise refused(409, "Conflict")
        return found

    def _store_claim(self, claim: ResourceClaim) -> ResourceClaim:
        key = f"{claim.metadata.namespace}/{claim.metadata.name}"
        stored = self.claims[key] = self._stamped(claim)
        self.changes.append(("claim", key))
        return stored

    def _store_pod(self, key: str, pod: Pod) -> Pod:
        stored = self.pods[key] = self._stamped(pod)
        self.changes.append(("pod", key))
        return stored

    def _store_node(self, name: str, node: Node) -> None:
        self.nodes[name] = self._stamped(node)
        self.changes.append(("node", name))

    def _stamped(self, found: Object) -> Object:
        self._version += 1
        return _with_metadata(found, resource_version=str(self._version))


def with_status(claim: ResourceClaim, status: Mapping[str, Any]) -> ResourceClaim:
    """The claim after a merge patch of its status, as the apiserver validates it."""
    names = {"allocation": "allocation", "reservedFor": "reserved_for"}
    changed = msgspec.structs.replace(claim.status, **{names[key]: value for key, value in status.items()})
    old, new = claim.status.allocation, changed.allocation
    if (old is not None and new is not None and old != new) or (changed.reserved_for and new is None):
        raise refused(422, "Invalid")
    return msgspec.structs.replace(claim, status=changed)


def _step(step: Step | KubeError) -> Step:
    return step if isinstance(step, Step) else Step(error=step)


def _with_metadata(found: Object, **changes: object) -> Object:
    metadata: Metadata = msgspec.structs.replace(found.metadata, **changes)
    return msgspec.structs.replace(found, metadata=metadata)


def _annotated(found: Object, annotations: Annotations, labels: Annotations | None = None) -> Object:
    merged = {**(found.metadata.annotations or {}), **annotations}
    kept = {key: value for key, value in merged.items() if value is not None}
    return _with_metadata(found, annotations=kept, labels={**(found.metadata.labels or {}), **(labels or {})})
