"""The calls that the scheduling pipeline makes to the apiserver. Each has a deadline; none is retried here."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Mapping, Sequence
from typing import Any, TypeVar

import structlog

from tessera.kube.client import KubeClient
from tessera.kube.decoder import ListPage, UnreadableObject
from tessera.kube.resources import LEASES, NODES, POD_GROUPS, PODS, RESOURCE_CLAIMS, Resource
from tessera.scheduler.observer import SchedulerObserver
from tessera.wire import keys
from tessera.wire.objects import Metadata, Node, Partial, Pod
from tessera.wire.pod_groups import GroupObject, PodGroupObject
from tessera.wire.resource_api import ResourceClaim

log = structlog.get_logger(__name__)

T = TypeVar("T")
Annotations = Mapping[str, str | None]
"""None removes the annotation"""


class Record(Partial, frozen=True):
    """What is recorded between the lives of processes."""

    metadata: Metadata = Metadata()


class KubeApi:
    """The apiserver as binder, take-over, node locks, wake-ups and node registration see it."""

    def __init__(self, client: KubeClient, observer: SchedulerObserver) -> None:
        self._client = client
        self._observer = observer

    async def get_pod(self, namespace: str, name: str) -> Pod:
        return await self._client.get(PODS.path(namespace, name), Pod)

    async def unbound_pods(self) -> Sequence[Pod]:
        """As they are now, not as a cache of the apiserver remembers them."""
        # A pod that cannot be decoded was never placed: filter could not read it either.
        found = await self._client.list(PODS.path(), Pod, field_selector="spec.nodeName=", on_unreadable=_skip)
        return found.items

    async def list_pods(self, namespace: str) -> Sequence[Pod]:
        """As they are now, not as a cache of the apiserver remembers them."""
        return (await self._client.list(PODS.path(namespace), Pod, on_unreadable=_skip)).items

    def pages(self, resource: Resource, kind: type[T]) -> AsyncGenerator[ListPage[T], None]:
        """All objects, one page in memory at a time. A page that `is_first` voids the ones before it."""
        return self._client.pages(resource.path(), kind, on_unreadable=_skip)

    async def find_record(self, namespace: str | None, name: str) -> Record | None:
        """A Lease that no process holds: its annotations are the record. `namespace`: None = that of the client."""
        return await self._client.find(LEASES.path(namespace or self._client.namespace, name), Record)

    async def write_record(self, namespace: str | None, name: str, annotations: Annotations, *, version: str) -> None:
        """If it still has this version (409 otherwise); without one, if there is none yet."""
        self._observer.on_write("patch")
        namespace = namespace or self._client.namespace
        metadata: dict[str, Any] = {"name": name, "annotations": annotations}
        if version:
            metadata["resourceVersion"] = version
            await self._client.patch(LEASES.path(namespace, name), {"metadata": metadata})
        else:
            body = {"apiVersion": LEASES.api_version, "kind": "Lease", "metadata": metadata}
            await self._client.create(LEASES.path(namespace), body)

    async def get_node(self, name: str) -> Node:
        return await self._client.get(NODES.path(name=name), Node)

    async def get_pod_group(self, kind: GroupObject, namespace: str, name: str) -> PodGroupObject:
        return await self._client.get(POD_GROUPS[kind.value].path(namespace, name), PodGroupObject)

    def bind(
        self,
        namespace: str,
        name: str,
        *,
        uid: str,
        resource_version: str,
        node: str,
        annotations: Mapping[str, str],
        labels: Mapping[str, str],
    ) -> Awaitable[None]:
        # Not a coroutine itself: every pod passes here, and each frame of the chain costs on every resumption.
        self._observer.on_write("bind")
        return self._client.bind(
            namespace,
            name,
            uid=uid,
            resource_version=resource_version,
            node=node,
            annotations=annotations,
            labels=labels,
        )

    async def annotate_pod(
        self, namespace: str, name: str, annotations: Annotations, *, labels: Annotations | None = None
    ) -> Pod:
        self._observer.on_write("patch")
        body = {"metadata": {"annotations": annotations, "labels": labels or {}}}
        return await self._client.patch(PODS.path(namespace, name), body, kind=Pod)

    async def annotate_node(self, name: str, annotations: Annotations, *, resource_version: str = "") -> None:
        metadata: dict[str, Any] = {"annotations": annotations}
        if resource_version:
            metadata["resourceVersion"] = resource_version
        self._observer.on_write("patch")
        await self._client.patch(NODES.path(name=name), {"metadata": metadata})

    async def evict(self, namespace: str, name: str, *, uid: str, dry_run: bool = False) -> None:
        """Deletes the pod if it still has this uid (409 otherwise) and its disruption budget allows it (429). As a
        `dry_run` it only asks whether it would."""
        if not dry_run:
            self._observer.on_write("evict")
        await self._client.evict(namespace, name, uid=uid, dry_run=dry_run)

    async def set_nominated_node(self, namespace: str, name: str, *, uid: str, node: str | None) -> None:
        """Writes `status.nominatedNodeName`, and its mark `tessera.io/nominated-node`, if the pod still has this uid
        (409 otherwise); None removes both."""
        self._observer.on_write("patch")
        metadata = {"uid": uid, "annotations": {keys.NOMINATED: node}}
        body = {"metadata": metadata, "status": {"nominatedNodeName": node}}
        await self._client.patch(PODS.path(namespace, name, "status"), body)

    async def list_claims(self) -> Sequence[ResourceClaim]:
        """As they are now, not as a cache of the apiserver remembers them."""
        # A claim that cannot be decoded was never allocated here, either.
        found = await self._client.list(RESOURCE_CLAIMS.path(), ResourceClaim, on_unreadable=_skip)
        return found.items

    async def get_claim(self, namespace: str, name: str) -> ResourceClaim:
        return await self._client.get(RESOURCE_CLAIMS.path(namespace, name), ResourceClaim)

    async def mark_claim(
        self, claim: ResourceClaim, annotations: Annotations, *, finalizers: Sequence[str] | None = None
    ) -> ResourceClaim:
        """Changes the claim's metadata, whatever version it has, if it still has this uid (409 otherwise). With
        `finalizers`, which replace all that it has, only if it still has this version."""
        known = claim.metadata
        metadata: dict[str, Any] = {"uid": known.uid, "annotations": annotations}
        if finalizers is not None:
            metadata |= {"finalizers": finalizers, "resourceVersion": known.resource_version}
        self._observer.on_write("patch")
        path = RESOURCE_CLAIMS.path(known.namespace, known.name)
        return await self._client.patch(path, {"metadata": metadata}, kind=ResourceClaim)

    async def write_claim_status(self, claim: ResourceClaim, status: Mapping[str, Any]) -> ResourceClaim:
        """Changes these parts of the status (None removes one) if the claim still has this uid and version (409
        otherwise)."""
        # A patch, not an update: other programs write parts of the status that are not read here.
        known = claim.metadata
        body = {"metadata": {"uid": known.uid, "resourceVersion": known.resource_version}, "status": status}
        self._observer.on_write("claim")
        path = RESOURCE_CLAIMS.path(known.namespace, known.name, "status")
        return await self._client.patch(path, body, kind=ResourceClaim)


def _skip(found: UnreadableObject) -> None:
    log.warning("object not read", error=str(found))
