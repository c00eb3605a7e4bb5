"""A cluster that questions can be asked about, and the scheduler's own engine on a `ClusterState`.

Whose engine it is differs: that of a running scheduler, or one of the reader's own, `OfflineCluster`, which it may try
things on. That is fed as its informers would feed it. It never leads, so it never writes. Its clock stands at the
moment the state was taken: an old snapshot shows the pods that ran then. A cluster that is followed gives it a clock,
and puts and drops objects as they change. Create it on a running event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, NoReturn, TypeVar, cast

import msgspec

from tessera.core.ledger.ledger import Ledger
from tessera.core.model.grants import Placement
from tessera.core.model.requests import HostRequest, PodRequest
from tessera.core.policies import uses_forecast
from tessera.core.search import finish
from tessera.core.search.gang_trial import Domains
from tessera.inspect.demand import ObservedDemand, pods_seen_by_filter
from tessera.inspect.installation import build_offline_settings
from tessera.inspect.state import ClaimObjects, ClusterState, InspectionError, Json
from tessera.kube.resources import (
    DEVICE_CLASSES,
    NODES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_QUOTAS,
    RESOURCE_SLICES,
    Resource,
)
from tessera.scheduler.clock import Clock
from tessera.scheduler.engine import Engine
from tessera.scheduler.engine_view import EngineView
from tessera.scheduler.features.claims.feature import Claims
from tessera.scheduler.informers.handler import InformerHandler
from tessera.scheduler.kube_api import KubeApi
from tessera.scheduler.node_filters import FilteredNode, NodeTraits, pod_constraints
from tessera.scheduler.observer import SchedulerObserver
from tessera.scheduler.requests.demand_tracker import last_turnover
from tessera.scheduler.requests.reader import PreparedRequest
from tessera.scheduler.settings import Settings
from tessera.scheduler.tenure import Tenure
from tessera.vendors.base import Vendor
from tessera.vendors.drafts import BadPod
from tessera.vendors.pod_reader import ENDED
from tessera.wire.objects import Container, Metadata, Node, Pod, PodSpec, ResourceQuota, ResourceRequirements
from tessera.wire.resource_api import (
    DRIVER,
    ClaimStatus,
    DeviceClass,
    ResourceClaim,
    ResourceClaimTemplate,
    ResourceSlice,
)


class InspectedCluster:
    """What all answers are made from."""

    def __init__(self, view: EngineView, state: ClusterState, settings: Settings) -> None:
        self.view = view
        self.state = state
        self.settings = settings
        self.nodes: dict[str, Json] = {}
        self.pods: dict[str, Pod] = {}
        """by namespace/name"""
        self.documents: dict[str, Json] = {}
        """the same pods as JSON"""

    @property
    def ledger(self) -> Ledger:
        return self.view.ledger

    @property
    def vendors(self) -> Mapping[str, Vendor]:
        return self.view.vendors

    def prepare(self, pod: Pod) -> PreparedRequest | BadPod:
        """The pod's request as filter would read it now."""
        return self.view.read(pod)

    def domains(self, topology: str) -> Domains | None:
        """The nodes by the value of a label; None if none is asked for."""
        return self.view.domains(topology)

    def candidates(self, document: Json) -> tuple[list[str], dict[str, str]]:
        """The nodes that kube-scheduler would ask about, sorted, and why it would not ask about the others."""
        return finish(self.candidates_in_steps(document))

    def candidates_in_steps(self, document: Json) -> Generator[None, None, tuple[list[str], dict[str, str]]]:
        """The same, node by node: a pod may have thousands of terms."""
        constraints = pod_constraints(document)
        candidates: list[str] = []
        filtered_out: dict[str, str] = {}
        for name, node in sorted(self.nodes.items()):
            yield
            reason = node_traits(node).refusal(constraints)
            if reason is None:
                candidates.append(name)
            else:
                filtered_out[name] = reason
        return candidates, filtered_out


def node_traits(node: Json) -> NodeTraits:
    """Raises InspectionError for what is no node: a snapshot may hold anything."""
    try:
        return msgspec.convert(node, FilteredNode).traits
    except msgspec.ValidationError as error:
        raise InspectionError(f"a node cannot be read: {error}") from error


T = TypeVar("T")


class _NoApi:
    """Stands for the apiserver, which an inspected cluster does not have: every call is a bug in Tessera."""

    def __getattr__(self, name: str) -> NoReturn:
        raise AssertionError(f"an inspected cluster is never read again or changed: {name}")


class TemplateInformer(InformerHandler[ResourceClaimTemplate]):
    """Takes ResourceClaimTemplates, which the scheduler itself reads for admission only."""

    def __init__(self, templates: dict[str, ResourceClaimTemplate]) -> None:
        super().__init__()
        self._templates = templates

    def put(self, key: str, found: ResourceClaimTemplate) -> None:
        self._templates[key] = found

    def drop(self, key: str) -> None:
        self._templates.pop(key, None)


class OfflineCluster(InspectedCluster):
    """A cluster with an engine of its own."""

    def __init__(
        self, state: ClusterState, *, settings: Settings | None = None, now: Callable[[], float] | None = None
    ) -> None:
        """`settings` are those of a running scheduler, in place of what the state's setup says."""
        settings = settings or build_offline_settings(state.setup)
        clock = now or (lambda: state.taken)
        self._engine = Engine(
            settings,
            cast("KubeApi", _NoApi()),
            clock=Clock(clock, clock, datetime.now().astimezone().tzinfo or UTC),
            spawn=_never,
            observer=SchedulerObserver(),
            tenure=Tenure(lambda: None),
        )
        super().__init__(EngineView(self._engine), state, settings)
        self.templates: dict[str, ResourceClaimTemplate] = {}
        """by namespace/name"""
        self._origin: EngineView | None = None
        """for a fork: where pools, claims and labels are taken from"""
        self._simulated: list[PodRequest] = []
        claims = self._claims = self._engine.feature(Claims)
        self.handlers: dict[Resource, tuple[type[Any], InformerHandler[Any]]] = {
            # First: nodes have to be read again for every slice that comes later.
            RESOURCE_SLICES: (ResourceSlice, claims.pools),
            DEVICE_CLASSES: (DeviceClass, claims.classes),
            RESOURCE_CLAIMS: (ResourceClaim, claims.claims),
            NODES: (Node, self._engine.nodes),
            PODS: (Pod, self._engine.pods),
            RESOURCE_QUOTAS: (ResourceQuota, self._engine.quotas),
            RESOURCE_CLAIM_TEMPLATES: (ResourceClaimTemplate, TemplateInformer(self.templates)),
        }
        """by resource, how its objects are read and who takes them"""
        for resource in self.handlers:
            for document in state.objects(resource):
                self.put(resource, document)
        for name, ask in state.others.items():
            self.add_host_load(f"others of {name}", name, ask)

    # -- objects

    def put(self, resource: Resource, document: Json) -> None:
        """Raises InspectionError if the object cannot be read."""
        kind, handler = self.handlers[resource]
        found = _read(document, kind)
        name = found.metadata.name
        key = f"{found.metadata.namespace}/{name}" if resource.namespaced else name
        if resource is NODES:
            self.nodes[key] = document
        elif resource is PODS:
            self.pods[key], self.documents[key] = found, document
        handler.put(key, found)

    def drop(self, resource: Resource, key: str) -> None:
        if resource is NODES:
            self.nodes.pop(key, None)
        elif resource is PODS:
            self.pods.pop(key, None)
            self.documents.pop(key, None)
        self.handlers[resource][1].drop(key)

    def put_manifest(self, document: Json) -> None:
        """A DeviceClass, ResourceClaim or template that does not exist yet."""
        metadata = document["metadata"]
        match document["kind"]:
            case "DeviceClass":
                self.put(DEVICE_CLASSES, document)
            case "ResourceClaimTemplate":
                self.put(RESOURCE_CLAIM_TEMPLATES, document)
            case _:
                uid = f"simulated-{metadata['namespace']}-{metadata['name']}"
                self.set_claim(_read({**document, "metadata": {"uid": uid, **metadata}}, ResourceClaim))

    # -- questions

    @cached_property
    def demand(self) -> ObservedDemand:
        """What pods have asked for: those of the state first, then those simulated since."""
        demand = ObservedDemand(self.ledger, self.vendors)
        seen = pods_seen_by_filter(self.pods, self.documents, self.vendors, scheduler_name=self.settings.scheduler_name)
        demand.turnover = last_turnover(seen)
        for pod in seen:
            prepared = self.view.read(pod)
            if isinstance(prepared, PreparedRequest) and prepared.request.asks_for_devices:
                demand.observe(prepared.request, has_ended=pod.status.phase in ENDED)
        for request in self._simulated:
            demand.observe(request)
        return demand

    def observe_request(self, request: PodRequest) -> None:
        """Counts a simulated pod as demand, as filter counts a pod that it has not seen before."""
        self._simulated.append(request)
        if "demand" in self.__dict__:
            self.demand.observe(request)

    def prepare(self, pod: Pod) -> PreparedRequest | BadPod:
        prepared = self.view.read(pod)
        if isinstance(prepared, BadPod) or prepared.request.forecast is None:
            return prepared
        ahead = replace(prepared.request, forecast=self.demand.forecast)
        if prepared.claims is None:
            return msgspec.structs.replace(prepared, request=ahead)
        variants = tuple(replace(each, forecast=self.demand.forecast) for each in prepared.variants)
        return msgspec.structs.replace(prepared, request=ahead, claims=replace(prepared.claims, variants=variants))

    @contextmanager
    def without_pod(self, key: str) -> Iterator[None]:
        """Removes the pod for as long as the block lasts, and takes the claims back that only it uses."""
        pod = self.pods[key]
        found = [each.claim for each in self.view.claims_of(pod) if each.is_allocated]
        own = [each for each in found if {user.uid for user in each.status.reserved_for or ()} <= {pod.metadata.uid}]
        self._engine.pods.drop(key)
        for claim in own:
            self.set_claim(msgspec.structs.replace(claim, status=ClaimStatus()))
        try:
            yield
        finally:
            for claim in own:
                self.set_claim(claim)
            self._engine.pods.put(key, pod)

    def set_claim(self, claim: ResourceClaim) -> None:
        """Make the claim what this says, whatever version it is."""
        key = f"{claim.metadata.namespace}/{claim.metadata.name}"
        self._claims.book.drop(key)
        self.update_claim(claim)

    def update_claim(self, claim: ResourceClaim) -> None:
        """The claim appeared, or has a later version."""
        self._claims.book.observe(claim)

    def reserve(self, prepared: PreparedRequest, placement: Placement) -> None:
        """As filter does for a pod that it places."""
        self._engine.cycles.reserve(prepared, placement)
        self._claims.reserve(prepared)

    def release(self, uid: str) -> None:
        """The pod is gone."""
        self._engine.cycles.observe_gone(uid)

    def tick(self) -> None:
        """Plugins that do not answer a handshake in time are gone, though no object changes."""
        self._engine.nodes.tick()

    def fork(self) -> OfflineCluster:
        """The same cluster, for questions that last: between two decisions other requests are served, and a transaction
        must not stay open for so long. Nodes are copied with `Ledger.copy_node`, and nothing that happens to the copy
        changes this one. What simulated pods take of hosts is not counted there."""
        empty = replace(self.state, nodes=(), pods=(), quotas=(), others={}, dra=ClaimObjects())
        fork = OfflineCluster(empty, settings=self.settings)
        fork.fork_from(self.view, self.nodes, self.templates)
        fork.pods, fork.documents = self.pods, self.documents
        return fork

    def fork_from(
        self, origin: EngineView, nodes: dict[str, Json], templates: Mapping[str, ResourceClaimTemplate]
    ) -> None:
        """Know what another engine knows beside its cards; pools and claims are taken over one by one, where they
        matter."""
        self._origin = origin
        # The device configuration may have been read again since the settings were.
        self._engine.vendors.clear()
        self._engine.vendors.update(origin.vendors)
        self.nodes = nodes
        self.templates.update(templates)
        self.ledger.quotas = origin.ledger.quotas.copy()
        for name, found in origin.device_classes.items():
            self._claims.classes.put(name, found)

    def copy_pool(self, node: str) -> None:
        pool = self._origin.pools.get(node) if self._origin is not None else None
        if pool is not None and node not in self.view.pools:
            self._claims.pools.take_over(pool)

    def copy_claim(self, key: str) -> None:
        found = self._origin.claim(key) if self._origin is not None else None
        if found is not None and self.view.claim(key) is None:
            for device in found.claim.devices_of(DRIVER):
                self.copy_pool(device.pool)
            self.update_claim(found.claim)

    def add_host_load(self, key: str, node: str, ask: HostRequest) -> None:
        """Counts cpu and memory on a host that no pod of the state accounts for. Policies that ignore hosts skip it."""
        if not uses_forecast(self.settings.policies.node, self.settings.policies.device):
            return
        amounts: dict[str, str | int | float] = {"cpu": f"{ask.cpu}m", "memory": f"{ask.memory}Mi"}
        containers = [Container(resources=ResourceRequirements(requests=amounts))]
        self.count_host(key, Pod(Metadata(uid=key), PodSpec(containers=containers, node_name=node)))

    def count_host(self, key: str, pod: Pod) -> None:
        """Counts what a pod without devices takes of its host."""
        self._engine.pods.put(key, pod)

    def remove_host_load(self, key: str) -> None:
        self._engine.pods.drop(key)

    def domains(self, topology: str) -> Domains | None:
        return (self._origin or self.view).domains(topology)


def _read(document: Json, kind: type[T]) -> T:
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        metadata = document.get("metadata") if isinstance(document, dict) else None
        name = metadata.get("name", "?") if isinstance(metadata, dict) else "?"
        raise InspectionError(f"{kind.__name__} {name} cannot be read: {error}") from error


def _never(work: Coroutine[Any, Any, None]) -> None:
    work.close()
