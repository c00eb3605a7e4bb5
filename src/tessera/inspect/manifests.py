"""Pods that do not exist yet: read from manifests, admitted, and given claims as in the cluster.

Manifests are pods, the pod templates of workloads with their replicas, and the claims beside them. A copy is what the
apiserver would store after the webhook's verdict. Its ResourceClaims are made of templates as kube-controller-manager
makes them, and allocated as the scheduler does when a copy has been placed. `SimulatedClaims.undo` undoes everything,
so that copies that were only counted leave no trace.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from tessera.core.model.grants import Placement
from tessera.inspect.offline_cluster import OfflineCluster
from tessera.inspect.state import InspectionError, Json, documents
from tessera.kube.resources import RESOURCE_CLAIMS
from tessera.scheduler.admission.claim_owners import NO_CLAIMS, ClaimOwner, Owner
from tessera.scheduler.admission.pod_admission import admit
from tessera.scheduler.requests.reader import PreparedRequest
from tessera.vendors.claims.allocations import allocation
from tessera.vendors.claims.asks import BadClaim, claim_grants
from tessera.wire.admission import Verdict
from tessera.wire.objects import Metadata, OwnerReference
from tessera.wire.resource_api import ClaimStatus, Consumer, ResourceClaim

POD = "Pod"


@dataclass(frozen=True, slots=True)
class Manifest:
    """A pod to try, and how many copies of it."""

    namespace: str
    name: str
    pod: Json
    count: int


CLAIM_KINDS = ("DeviceClass", "ResourceClaim", "ResourceClaimTemplate")
"""that may stand beside pods"""


def read_manifests(text: str, *, file: str, namespace: str, count: int | None) -> list[Manifest]:
    """Raises InspectionError. `count` overrides the replicas of a workload."""
    every = [item for document in documents(text, file) for item in _items(document)]
    items = [item for item in every if not _is_for_claims(item)]
    if not items:
        raise InspectionError(f"{file}: contains no pod")
    return [
        _manifest(part, file=file, namespace=namespace, count=count) for item in items for part in _jobs(item, file)
    ]


def read_claim_manifests(text: str, *, file: str, namespace: str) -> list[Json]:
    """The classes, claims and templates of claims in a manifest, each with its namespace. Raises InspectionError."""
    found = []
    for document in documents(text, file):
        for item in filter(_is_for_claims, _items(document)):
            metadata = _table(item, "metadata")
            if not isinstance(metadata.get("name"), str):
                raise InspectionError(f"{file}: a {item['kind']} has no name")
            found.append({**item, "metadata": {**metadata, "namespace": str(metadata.get("namespace") or namespace)}})
    return found


def _is_for_claims(item: Any) -> bool:
    return isinstance(item, dict) and item.get("kind") in CLAIM_KINDS


def _items(document: Any) -> list[Any]:
    if isinstance(document, dict) and document.get("kind") == "List":
        items = document.get("items")
        return items if isinstance(items, list) else []
    return [document]


def _jobs(document: Any, file: str) -> list[Any]:
    """The Jobs of a JobSet, each with as many pods as all its replicas have; other documents as they are."""
    if not isinstance(document, dict) or document.get("kind") != "JobSet":
        return [document]
    own, listed = _table(document, "metadata"), _table(document, "spec").get("replicatedJobs")
    if not isinstance(listed, list) or not listed:
        raise InspectionError(f"{file}: JobSet {own.get('name', '')} has no replicated Jobs")
    jobs = []
    for job in listed:
        template = _table(_table(job, "template"), "spec") if isinstance(job, dict) else None
        if not template:
            raise InspectionError(f"{file}: a replicated Job of JobSet {own.get('name', '')} has no template")
        replicas, parallelism = job.get("replicas", 1), template.get("parallelism", 1)
        if type(replicas) is not int or type(parallelism) is not int:
            raise InspectionError(f"{file}: JobSet {own.get('name', '')}: replicas or parallelism is not a number")
        name = f"{own.get('name', 'jobset')}-{job.get('name', 'job')}"
        spec = {**template, "parallelism": replicas * parallelism}
        jobs.append({"kind": "Job", "metadata": {**own, "name": name}, "spec": spec})
    return jobs


def _manifest(document: Any, *, file: str, namespace: str, count: int | None) -> Manifest:
    spec = document.get("spec") if isinstance(document, dict) else None
    if not isinstance(spec, dict):
        raise InspectionError(f"{file}: expected a Pod, or a workload with a pod template")
    own = _table(document, "metadata")
    name = str(own.get("name") or str(own.get("generateName") or "").rstrip("-") or "pod")
    if document.get("kind") == "CronJob":
        spec = _table(_table(spec, "jobTemplate"), "spec")
    template = spec.get("template")
    source = document if template is None else template
    replicas = 1 if template is None else spec.get("replicas", spec.get("parallelism", 1))
    containers = _table(source, "spec").get("containers") if isinstance(source, dict) else None
    if not isinstance(containers, list) or not containers:
        raise InspectionError(f"{file}: {document.get('kind', 'the document')} {name} has no containers")
    if type(replicas) is not int or replicas < 0:
        raise InspectionError(f"{file}: {document.get('kind', 'the document')} {name}: replicas is not a number")
    home = str(own.get("namespace") or namespace)
    metadata = {**_table(source, "metadata"), "namespace": home, "name": name}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": copy.deepcopy(source["spec"])}
    return Manifest(home, name, pod, replicas if count is None else count)


def _table(document: Json, field: str) -> Json:
    found = document.get(field)
    return found if isinstance(found, dict) else {}


def admit_copy(cluster: OfflineCluster, manifest: Manifest, number: int) -> tuple[Json | None, Verdict]:
    """The copy as the apiserver would store it; None if the webhook refuses it."""
    document = copy.deepcopy(manifest.pod)
    document["metadata"]["name"] = manifest.name if manifest.count == 1 and number == 1 else f"{manifest.name}-{number}"
    has_claims = cluster.settings.dra and bool(document["spec"].get("resourceClaims"))
    verdict = admit(
        document,
        namespace=manifest.namespace,
        vendors=cluster.vendors,
        # A claim that replaces the pod's requests is placed as they are.
        settings=replace(cluster.settings, dra_convert=False),
        ledger=cluster.ledger,
        # Whose they are is judged with the rest of the request: a claim of another driver is refused with a reason.
        claims=ClaimOwner(Owner.OURS) if has_claims else NO_CLAIMS,
    )
    if not verdict.allowed:
        return None, verdict
    document = verdict.changed or document
    document["metadata"]["uid"] = f"simulated-{manifest.namespace}-{manifest.name}-{number:06}"
    return document, verdict


class SimulatedClaims:
    """Claims that pods of a simulation would make, until they are taken back."""

    def __init__(self, cluster: OfflineCluster) -> None:
        self._cluster = cluster
        self._before: list[tuple[str, ResourceClaim | None]] = []
        """claims that were made or changed, as they were before; the latest last"""

    def make(self, document: Json) -> Json | str:
        """The pod with the claims that are made for it; or which template is missing."""
        own: list[dict[str, Any]] = document["spec"].get("resourceClaims") or []
        metadata = document["metadata"]
        statuses = []
        for each in own:
            if each.get("resourceClaimName"):
                self._cluster.copy_claim(f"{metadata['namespace']}/{each['resourceClaimName']}")
                continue
            template = self._cluster.templates.get(f"{metadata['namespace']}/{each.get('resourceClaimTemplateName')}")
            if template is None:
                name = each.get("resourceClaimTemplateName", "")
                return f"namespace {metadata['namespace']} has no ResourceClaimTemplate {name}: add it to the file"
            name = f"{metadata['name']}-{each['name']}"
            owner = OwnerReference(kind=POD, name=metadata["name"], uid=metadata["uid"], controller=True)
            made = Metadata(
                name=name,
                namespace=metadata["namespace"],
                uid=f"{metadata['uid']}-{each['name']}",
                resource_version="1",
                owner_references=[owner],
            )
            self._put(ResourceClaim(made, template.spec.spec))
            statuses.append({"name": each["name"], "resourceClaimName": name})
        return {**document, "status": {"resourceClaimStatuses": statuses}} if statuses else document

    def allocate(self, prepared: PreparedRequest, placement: Placement) -> None:
        """The pod has a reservation: write its claims, as the binder would."""
        view, request = self._cluster.view, prepared.request
        if prepared.claims is None:
            return
        self._cluster.copy_pool(placement.node)
        pool = view.pools[placement.node]
        for use in prepared.claims.uses:
            record = view.claim(use.key, use.uid)
            assert record is not None  # it was read a moment ago
            given = record.claim.status.allocation
            if use.ask is not None:
                grants = claim_grants(request, placement.grants)[record.claim.metadata.name]
                made = allocation(use.ask, grants, pool, new_share=lambda: "simulated")
                assert not isinstance(made, BadClaim)  # the cards are those of the pool
                given = made
            user = Consumer(resource="pods", name=request.name, uid=request.uid)
            status = ClaimStatus(given, (*(record.claim.status.reserved_for or ()), user))
            self._before.append((record.key, record.claim))
            version = str(int(record.claim.metadata.resource_version or 0) + 1)
            self._cluster.update_claim(
                msgspec.structs.replace(
                    record.claim,
                    metadata=msgspec.structs.replace(record.claim.metadata, resource_version=version),
                    status=status,
                )
            )

    def undo(self, mark: int = 0) -> None:
        """Make all claims what they were before the change of this number; see `mark`."""
        while len(self._before) > mark:
            key, claim = self._before.pop()
            if claim is None:
                self._cluster.drop(RESOURCE_CLAIMS, key)
            else:
                self._cluster.set_claim(claim)

    @property
    def mark(self) -> int:
        """How many changes there were."""
        return len(self._before)

    def _put(self, claim: ResourceClaim) -> None:
        key = f"{claim.metadata.namespace}/{claim.metadata.name}"
        known = self._cluster.view.claim(key)
        self._before.append((key, known.claim if known is not None else None))
        self._cluster.set_claim(claim)
