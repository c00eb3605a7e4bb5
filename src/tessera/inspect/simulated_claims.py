"""ResourceClaims of pods that do not exist: made of templates as kube-controller-manager makes them, and allocated as
the scheduler does when a copy has been placed.

Everything is undone by `undo`, so that copies that were only counted leave no trace.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from tessera.core.grants import Placement
from tessera.inspect.offline_cluster import OfflineCluster
from tessera.inspect.state import Json
from tessera.kube.resources import RESOURCE_CLAIMS
from tessera.scheduler.pod_requests import PreparedRequest
from tessera.vendors.claims import BadClaim, allocation, claim_grants
from tessera.wire.objects import Metadata, OwnerReference
from tessera.wire.resource_api import ClaimStatus, Consumer, ResourceClaim

POD = "Pod"


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
                self._cluster.borrow_claim(f"{metadata['namespace']}/{each['resourceClaimName']}")
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
        self._cluster.borrow_pool(placement.node)
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
                replace(record.claim, metadata=replace(record.claim.metadata, resource_version=version), status=status)
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
