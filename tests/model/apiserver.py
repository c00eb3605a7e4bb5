"""The simulated apiserver: pods, nodes and quotas, the calls of the scheduler, and what tenants and kubelets do.

It refuses what a real one refuses (wrong uid, bound or terminating pod, stale resourceVersion). A call takes effect at
its own time, even if the caller is gone. Every check compares with the state of this apiserver.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from msgspec.structs import replace

from tessera.kube.errors import ApiError
from tessera.scheduler.kube_api import Annotations
from tessera.wire.objects import Metadata, Node, Pod, PodStatus, ResourceQuota
from tests.model.faults import Faults
from tests.model.tables import Table

T = TypeVar("T")
Kept = TypeVar("Kept", Pod, Node, ResourceQuota)

TERMINATING = "2026-01-01T00:00:00Z"


@dataclass(eq=False)
class Call:
    """A write in flight."""

    generation: int
    """which process sent it"""
    effect: Callable[[], Any]
    answer: asyncio.Future[Any]
    node: str = ""
    """of a binding"""
    dropped: bool = False


@dataclass
class SimulatedApiserver:
    """Uses the time of the running loop."""

    rng: random.Random
    faults: Faults
    on_bound: Callable[[Pod, Call], None] = lambda _pod, _call: None
    pods: Table[Pod] = field(default_factory=Table)
    nodes: Table[Node] = field(default_factory=Table)
    quotas: Table[ResourceQuota] = field(default_factory=Table)
    generation: int = 0
    in_flight: list[Call] = field(default_factory=list)
    writes: int = 0
    _serial: int = 0

    # -- tenants and kubelets

    def create_pod(self, template: Pod, *, namespace: str, name: str, node: str = "") -> Pod:
        self._serial += 1
        metadata = replace(template.metadata, namespace=namespace, name=name, uid=f"u{self._serial:05d}")
        pod = replace(template, metadata=metadata, spec=replace(template.spec, node_name=node))
        return self._put_pod(pod)

    def delete_pod(self, key: str, *, at_once: bool) -> None:
        """Without `at_once` the pod stays, terminating, until kubelet or a finalizer has seen it."""
        if at_once:
            self.pods.remove(key)
        else:
            pod = self.pods.objects[key]
            self._put_pod(replace(pod, metadata=replace(pod.metadata, deletion_timestamp=TERMINATING)))

    def mark_pod(self, key: str, annotations: Annotations, status: PodStatus | None = None) -> None:
        pod = self.pods.objects[key]
        changed = replace(pod, status=status) if status is not None else pod
        self._put_pod(_annotated(changed, annotations))

    def put_node(self, node: Node) -> None:
        old = self.nodes.objects.get(node.name)
        self._serial += 1
        uid = old.metadata.uid if old is not None else f"n{self._serial}"
        self.nodes.put(node.name, self._stamped(replace(node, metadata=replace(node.metadata, uid=uid))))

    def annotate(self, name: str, annotations: Annotations) -> None:
        self.put_node(_annotated(self.nodes.objects[name], annotations))

    def put_quota(self, quota: ResourceQuota) -> None:
        self.quotas.put(f"{quota.metadata.namespace}/{quota.metadata.name}", self._stamped(quota))

    def crash(self) -> None:
        """The scheduler's process is gone: each write that it had sent is lost or still arrives."""
        self.generation += 1
        for call in self.in_flight:
            call.dropped = call.dropped or self.rng.random() < 0.5

    # -- Cluster

    async def get_pod(self, namespace: str, name: str) -> Pod:
        return await self._call(lambda: self._pod(f"{namespace}/{name}"), reads=True)

    async def get_node(self, name: str) -> Node:
        return await self._call(lambda: self._node(name), reads=True)

    async def bind(
        self,
        namespace: str,
        name: str,
        *,
        uid: str,
        node: str,
        annotations: Mapping[str, str],
        labels: Mapping[str, str],
    ) -> None:
        key = f"{namespace}/{name}"

        def effect(call: Call) -> None:
            pod = self._pod(key)
            if pod.metadata.uid != uid or pod.spec.node_name or pod.metadata.deletion_timestamp:
                raise ApiError(status=409, reason="Conflict", message=f"pod {key} cannot be assigned")
            bound = replace(_annotated(pod, annotations, labels), spec=replace(pod.spec, node_name=node))
            self.on_bound(self._put_pod(bound), call)

        self.writes += 1
        await self._call(effect, node=node)

    async def annotate_pod(self, namespace: str, name: str, annotations: Annotations) -> None:
        key = f"{namespace}/{name}"
        await self._call(lambda: self._put_pod(_annotated(self._pod(key), annotations)))

    async def annotate_node(self, name: str, annotations: Annotations, *, resource_version: str = "") -> None:
        def effect() -> None:
            node = self._node(name)
            if resource_version and resource_version != node.metadata.resource_version:
                raise ApiError(status=409, reason="Conflict", message=f"node {name} was modified")
            self.put_node(_annotated(node, annotations))

        await self._call(effect)

    # -- inside

    async def _call(self, effect: Callable[..., T], *, reads: bool = False, node: str = "") -> T:
        plan = self.faults.plan()
        loop = asyncio.get_running_loop()
        if not plan.works or (reads and plan.error is not None):
            assert plan.error is not None
            await asyncio.sleep(plan.before)
            raise plan.error
        call = Call(self.generation, effect, loop.create_future(), node)
        self.in_flight.append(call)
        arguments = (call,) if node else ()
        loop.call_later(plan.before + plan.late, self._land, call, arguments)
        try:
            if plan.error is not None:
                await asyncio.sleep(plan.before + plan.after)
                raise plan.error
            done: T = await call.answer
            await asyncio.sleep(plan.after)
        except asyncio.CancelledError:
            call.dropped = self.rng.random() < 0.5
            raise
        return done

    def _land(self, call: Call, arguments: tuple[Any, ...]) -> None:
        self.in_flight.remove(call)
        if call.dropped:
            return
        try:
            done = call.effect(*arguments)
        except ApiError as error:
            if not call.answer.done():
                call.answer.set_exception(error)
                call.answer.exception()  # The caller may be gone.
        else:
            if not call.answer.done():
                call.answer.set_result(done)

    def _pod(self, key: str) -> Pod:
        if key not in self.pods.objects:
            raise ApiError(status=404, reason="NotFound", message=f"pods {key} not found")
        return self.pods.objects[key]

    def _node(self, name: str) -> Node:
        if name not in self.nodes.objects:
            raise ApiError(status=404, reason="NotFound", message=f"nodes {name} not found")
        return self.nodes.objects[name]

    def _put_pod(self, pod: Pod) -> Pod:
        stamped = self._stamped(pod)
        self.pods.put(f"{pod.metadata.namespace}/{pod.metadata.name}", stamped)
        return stamped

    def _stamped(self, found: Kept) -> Kept:
        self._serial += 1
        metadata: Metadata = replace(found.metadata, resource_version=str(self._serial))
        return replace(found, metadata=metadata)


def _annotated(found: Any, annotations: Annotations, labels: Mapping[str, str] | None = None) -> Any:
    merged = {**(found.metadata.annotations or {}), **annotations}
    kept = {key: value for key, value in merged.items() if value is not None}
    metadata = replace(found.metadata, annotations=kept, labels={**(found.metadata.labels or {}), **(labels or {})})
    return replace(found, metadata=metadata)
