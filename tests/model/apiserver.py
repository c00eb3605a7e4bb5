"""The simulated apiserver: pods, nodes and quotas, the calls of schedulers, and what tenants and kubelets do.

It refuses what a real one refuses (wrong uid, bound or terminating pod, stale resourceVersion). A call takes effect at
its own time, even if the caller is gone, or paused. Every check compares with the state of this apiserver.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from msgspec import convert, to_builtins
from msgspec.structs import replace

from tessera.kube.decoder import ListPage
from tessera.kube.errors import ApiError
from tessera.kube.resources import PODS, Resource
from tessera.scheduler.kube_api import Annotations, KubeApi, Record
from tessera.wire.keys import FENCE, NOMINATED
from tessera.wire.objects import Metadata, Node, OwnerReference, Pod, PodStatus, ResourceQuota
from tessera.wire.pod_groups import GroupObject, PodGroupObject
from tessera.wire.resource_api import ClaimSpec, DeviceClass, ResourceClaim, ResourceSlice
from tests.model import virtual_time
from tests.model.faults import LATEST_EFFECT, Faults
from tests.model.tables import Table
from tests.support.fake_cluster import with_status

T = TypeVar("T")
Kept = TypeVar("Kept", Pod, Node, ResourceQuota, ResourceClaim, Record)

OF_MANY = 0.1
"""a take-over makes many calls, and waits for the slowest: with the usual share of faults it would never end"""
TERMINATING = "2026-01-01T00:00:00Z"


@dataclass(eq=False)
class Call:
    """A call in flight."""

    sender: Client
    effect: Callable[[], Any]
    answer: asyncio.Future[Any]
    binds: bool = False
    dropped: bool = False
    held_until: float = 0.0
    """it is on its way until then"""


@dataclass
class SimulatedApiserver:
    """Uses the time of the running loop."""

    rng: random.Random
    faults: Faults
    on_bound: Callable[[Pod], None] = lambda _pod: None
    on_allocated: Callable[[ResourceClaim], None] = lambda _claim: None
    pods: Table[Pod] = field(default_factory=Table)
    nodes: Table[Node] = field(default_factory=Table)
    quotas: Table[ResourceQuota] = field(default_factory=Table)
    claims: Table[ResourceClaim] = field(default_factory=Table)
    slices: Table[ResourceSlice] = field(default_factory=Table)
    classes: Table[DeviceClass] = field(default_factory=Table)
    owns_pods: bool = False
    """whether a workload owns each pod: its successors are of the same one"""
    records: dict[str, Record] = field(default_factory=dict)
    in_flight: list[Call] = field(default_factory=list)
    writes: int = 0
    evicted: list[Pod] = field(default_factory=list)
    """as they were then"""
    templates: dict[str, Pod] = field(default_factory=dict)
    """of pods, by uid"""
    calls: int = 0
    """of schedulers"""
    races: int = 0
    """filter calls about nodes with devices for which other pods are nominated"""
    went_beside: int = 0
    """those that were answered with such a node: the pod fits beside what is claimed"""
    highest_priority: int = 200
    first_sent: dict[str, float] = field(default_factory=dict)
    """by uid: when a binding of the pod was first sent"""
    _serial: int = 0

    # -- tenants and kubelets

    def create_pod(self, template: Pod, *, namespace: str, name: str, node: str = "") -> Pod:
        self._serial += 1
        if self.owns_pods and not template.metadata.owner_references:
            owner = OwnerReference(kind="Job", name=f"job-{self._serial}", controller=True)
            template = replace(template, metadata=replace(template.metadata, owner_references=[owner]))
        metadata = replace(template.metadata, namespace=namespace, name=name, uid=f"u{self._serial:05d}")
        pod = replace(template, metadata=metadata, spec=replace(template.spec, node_name=node))
        self.templates[metadata.uid] = template
        return self.put_pod(pod)

    def delete_pod(self, key: str, *, at_once: bool) -> None:
        """Without `at_once` the pod stays, terminating, until kubelet or a finalizer has seen it."""
        if at_once:
            self.pods.remove(key)
        else:
            pod = self.pods.objects[key]
            self.put_pod(replace(pod, metadata=replace(pod.metadata, deletion_timestamp=TERMINATING)))

    def mark_pod(self, key: str, annotations: Annotations, status: PodStatus | None = None) -> None:
        pod = self.pods.objects[key]
        changed = replace(pod, status=status) if status is not None else pod
        self.put_pod(_annotated(changed, annotations))

    def put_node(self, node: Node) -> None:
        old = self.nodes.objects.get(node.name)
        self._serial += 1
        uid = old.metadata.uid if old is not None else f"n{self._serial}"
        self.nodes.put(node.name, self._stamped(replace(node, metadata=replace(node.metadata, uid=uid))))

    def annotate(self, name: str, annotations: Annotations) -> None:
        self.put_node(_annotated(self.nodes.objects[name], annotations))

    def put_quota(self, quota: ResourceQuota) -> None:
        self.quotas.put(f"{quota.metadata.namespace}/{quota.metadata.name}", self._stamped(quota))

    def create_claim(self, metadata: Metadata, spec: ClaimSpec) -> ResourceClaim:
        self._serial += 1
        return self.put_claim(ResourceClaim(replace(metadata, uid=f"c{self._serial:05d}"), spec))

    def put_claim(self, claim: ResourceClaim) -> ResourceClaim:
        stamped = self._stamped(claim)
        self.claims.put(f"{claim.metadata.namespace}/{claim.metadata.name}", stamped)
        return stamped

    # -- calls

    def claim(self, namespace: str, name: str) -> ResourceClaim:
        key = f"{namespace}/{name}"
        if key not in self.claims.objects:
            raise ApiError(status=404, reason="NotFound", message=f"resourceclaims {key} not found")
        return self.claims.objects[key]

    def same_claim(self, claim: ResourceClaim, *, version: bool) -> ResourceClaim:
        found, known = self.claim(claim.metadata.namespace, claim.metadata.name), claim.metadata
        is_other = found.metadata.uid != known.uid
        if is_other or (version and found.metadata.resource_version != known.resource_version):
            raise ApiError(status=409, reason="Conflict", message=f"resourceclaim {known.name} was modified")
        return found

    def write_status(self, claim: ResourceClaim, status: Mapping[str, Any]) -> ResourceClaim:
        found = self.same_claim(claim, version=True)
        stored = self.put_claim(with_status(found, status))
        if found.status.allocation is None and stored.status.allocation is not None:
            self.on_allocated(stored)
        return stored

    def land(self, call: Call) -> None:
        """A call takes effect, unless it was lost on its way."""
        loop = asyncio.get_running_loop()
        if virtual_time.now() < call.held_until:
            loop.call_at(call.held_until, self.land, call)
            return
        self.in_flight.remove(call)
        if call.dropped:
            return
        try:
            done = call.effect()
        except ApiError as error:
            if not call.answer.done():
                call.answer.set_exception(error)
                call.answer.exception()  # The caller may be gone.
        else:
            if not call.answer.done():
                call.answer.set_result(done)

    def pod(self, key: str) -> Pod:
        if key not in self.pods.objects:
            raise ApiError(status=404, reason="NotFound", message=f"pods {key} not found")
        return self.pods.objects[key]

    def node(self, name: str) -> Node:
        if name not in self.nodes.objects:
            raise ApiError(status=404, reason="NotFound", message=f"nodes {name} not found")
        return self.nodes.objects[name]

    def put_pod(self, pod: Pod) -> Pod:
        stamped = self._stamped(pod)
        self.pods.put(f"{pod.metadata.namespace}/{pod.metadata.name}", stamped)
        return stamped

    def _stamped(self, found: Kept) -> Kept:
        self._serial += 1
        metadata: Metadata = replace(found.metadata, resource_version=str(self._serial))
        return replace(found, metadata=metadata)


@dataclass(eq=False)
class Client(KubeApi):
    """The connection of one scheduler process."""

    api: SimulatedApiserver
    on_claim: Callable[[ResourceClaim], None] = lambda _claim: None
    """hears what the process is told about a claim"""
    resume_at: float = 0.0
    """until then the process is paused: it sends nothing, and hears no answer"""

    @property
    def is_paused(self) -> bool:
        return virtual_time.now() < self.resume_at

    def crash(self) -> None:
        """The process is gone: each write that it had sent is lost, or still arrives, perhaps much later."""
        rng, now = self.api.rng, virtual_time.now()
        for call in self._in_flight:
            call.dropped = call.dropped or rng.random() < 0.5
            call.held_until = now + rng.choice((0.0, rng.uniform(0.0, LATEST_EFFECT)))

    def pause(self, seconds: float) -> None:
        """Some of its calls had got no further than the process itself."""
        self.resume_at = virtual_time.now() + seconds
        for call in self._in_flight:
            if self.api.rng.random() < 0.8:
                call.held_until = self.resume_at + self.api.rng.uniform(0.0, 3.0)

    @property
    def is_binding(self) -> bool:
        return any(call.binds for call in self._in_flight)

    @property
    def _in_flight(self) -> list[Call]:
        return [call for call in self.api.in_flight if call.sender is self]

    # -- KubeApi

    async def get_pod(self, namespace: str, name: str) -> Pod:
        return await self._call(lambda: self.api.pod(f"{namespace}/{name}"), reads=True)

    async def unbound_pods(self) -> list[Pod]:
        pods = self.api.pods.objects
        return await self._call(
            lambda: [pod for pod in pods.values() if not pod.spec.node_name], reads=True, faults=OF_MANY
        )

    async def list_pods(self, namespace: str) -> list[Pod]:
        pods = self.api.pods.objects
        return await self._call(
            lambda: [pod for pod in pods.values() if pod.metadata.namespace == namespace], reads=True
        )

    async def get_node(self, name: str) -> Node:
        return await self._call(lambda: self.api.node(name), reads=True)

    async def get_pod_group(self, kind: GroupObject, namespace: str, name: str) -> PodGroupObject:
        raise ApiError(status=404, reason="NotFound", message=f"{kind.value} podgroups {namespace}/{name} not found")

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
        key, api = f"{namespace}/{name}", self.api

        def effect() -> None:
            pod = api.pod(key)
            if pod.metadata.uid != uid or pod.metadata.resource_version != resource_version:
                raise ApiError(status=409, reason="Conflict", message=f"pod {key} was modified")
            if pod.spec.node_name or pod.metadata.deletion_timestamp:
                raise ApiError(status=409, reason="Conflict", message=f"pod {key} cannot be assigned")
            bound = replace(_annotated(pod, annotations, labels), spec=replace(pod.spec, node_name=node))
            api.on_bound(api.put_pod(bound))

        api.writes += 1
        api.first_sent.setdefault(uid, virtual_time.now())
        await self._call(effect, binds=True)

    async def annotate_pod(
        self, namespace: str, name: str, annotations: Annotations, *, labels: Annotations | None = None
    ) -> Pod:
        api, key = self.api, f"{namespace}/{name}"
        faults = OF_MANY if FENCE in annotations else 1.0
        return await self._call(lambda: api.put_pod(_annotated(api.pod(key), annotations, labels)), faults=faults)

    async def annotate_node(self, name: str, annotations: Annotations, *, resource_version: str = "") -> None:
        def effect() -> None:
            node = self.api.node(name)
            if resource_version and resource_version != node.metadata.resource_version:
                raise ApiError(status=409, reason="Conflict", message=f"node {name} was modified")
            self.api.put_node(_annotated(node, annotations))

        await self._call(effect)

    async def evict(self, namespace: str, name: str, *, uid: str, dry_run: bool = False) -> None:
        key, api = f"{namespace}/{name}", self.api

        def effect() -> None:
            pod = api.pod(key)
            if pod.metadata.uid != uid:
                raise ApiError(status=409, reason="Conflict", message=f"pod {key} was re-created")
            is_highest = (pod.spec.priority or 0) >= api.highest_priority
            assert api.owns_pods or not is_highest, f"{uid} has the highest priority of all"
            if not dry_run and not pod.metadata.deletion_timestamp:
                api.evicted.append(pod)
                api.delete_pod(key, at_once=False)

        await self._call(effect)

    async def set_nominated_node(self, namespace: str, name: str, *, uid: str, node: str | None) -> None:
        key, api = f"{namespace}/{name}", self.api

        def effect() -> None:
            pod = api.pod(key)
            if pod.metadata.uid != uid:
                raise ApiError(status=409, reason="Conflict", message=f"pod {key} was re-created")
            api.mark_pod(key, {NOMINATED: node}, replace(pod.status, nominated_node_name=node or ""))

        await self._call(effect)

    async def pages(self, resource: Resource, kind: type[Any]) -> AsyncGenerator[ListPage[Any], None]:
        table: Table[Any] = self.api.pods if resource is PODS else self.api.nodes
        found = await self._call(lambda: [to_builtins(each) for each in table.objects.values()], reads=True)
        yield ListPage([convert(each, kind) for each in found], "", is_first=True)

    async def find_record(self, namespace: str | None, name: str) -> Record | None:
        return await self._call(lambda: self.api.records.get(name), reads=True)

    async def write_record(self, namespace: str | None, name: str, annotations: Annotations, *, version: str) -> None:
        def effect() -> None:
            known = self.api.records.get(name)
            if (known.metadata.resource_version if known is not None else "") != version:
                raise ApiError(status=409, reason="Conflict", message=f"lease {name} was modified")
            kept = {key: value for key, value in annotations.items() if value is not None}
            self.api.records[name] = self.api._stamped(Record(Metadata(name, annotations=kept)))

        await self._call(effect)

    async def list_claims(self) -> list[ResourceClaim]:
        return await self._call(lambda: list(self.api.claims.objects.values()), reads=True, faults=OF_MANY)

    async def get_claim(self, namespace: str, name: str) -> ResourceClaim:
        return self._told(await self._call(lambda: self.api.claim(namespace, name), reads=True))

    async def mark_claim(
        self, claim: ResourceClaim, annotations: Annotations, *, finalizers: Sequence[str] | None = None
    ) -> ResourceClaim:
        def effect() -> ResourceClaim:
            found = _annotated(self.api.same_claim(claim, version=finalizers is not None), annotations)
            if finalizers is not None:
                found = replace(found, metadata=replace(found.metadata, finalizers=[*finalizers]))
            return self.api.put_claim(found)

        fence = annotations.get(FENCE)
        marked = await self._call(effect, faults=OF_MANY if fence else 1.0)
        # A take-over does not look at what it touches: it reads everything again.
        return marked if fence and "." not in fence else self._told(marked)

    async def write_claim_status(self, claim: ResourceClaim, status: Mapping[str, Any]) -> ResourceClaim:
        self.api.writes += 1
        return self._told(await self._call(lambda: self.api.write_status(claim, status), binds=True))

    def _told(self, claim: ResourceClaim) -> ResourceClaim:
        self.on_claim(claim)
        return claim

    # -- inside

    async def _call(
        self, effect: Callable[[], T], *, reads: bool = False, binds: bool = False, faults: float = 1.0
    ) -> T:
        await self._resumed()
        api, loop = self.api, asyncio.get_running_loop()
        api.calls += 1
        plan = api.faults.plan(faults, now=virtual_time.now(), reads=reads)
        if not plan.works or (reads and plan.error is not None):
            assert plan.error is not None
            await asyncio.sleep(plan.before)
            raise plan.error
        call = Call(self, effect, loop.create_future(), binds)
        api.in_flight.append(call)
        loop.call_later(plan.before + plan.late, api.land, call)
        try:
            if plan.error is not None:
                await asyncio.sleep(plan.before + plan.after)
                await self._resumed()
                raise plan.error
            done: T = await call.answer
            await asyncio.sleep(plan.after)
            await self._resumed()
        except asyncio.CancelledError:
            call.dropped = api.rng.random() < 0.5
            raise
        return done

    async def _resumed(self) -> None:
        while self.is_paused:
            await asyncio.sleep(self.resume_at - virtual_time.now())


def _annotated(found: Any, annotations: Annotations, labels: Annotations | None = None) -> Any:
    merged = {**(found.metadata.annotations or {}), **annotations}
    kept = {key: value for key, value in merged.items() if value is not None}
    metadata = replace(found.metadata, annotations=kept, labels={**(found.metadata.labels or {}), **(labels or {})})
    return replace(found, metadata=metadata)
