"""Cluster states for tests of `tessera inspect`, read from builders as from a live cluster."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from tessera.inspect import sanitize
from tessera.inspect.checks import Finding, Severity
from tessera.inspect.state import ClaimObjects, ClusterState, Json, Setup
from tessera.wire.resource_api import DRIVER, DeviceClass, ResourceClaim
from tests.support.builders import NOW, NodeBuilder, PodBuilder, vendors
from tests.support.claim_scheduler import MIB, device_class, published


def quota(namespace: str, limits: Mapping[str, Any], name: str = "q") -> Json:
    hard = {f"limits.{resource}": str(limit) for resource, limit in limits.items()}
    return {"metadata": {"name": name, "namespace": namespace}, "spec": {"hard": hard}}


def plain(thing: NodeBuilder | PodBuilder) -> Json:
    """As plain JSON: every amount is a string or a number."""
    found: Json = json.loads(json.dumps(thing.manifest()))
    return found


def state_of(
    nodes: Sequence[NodeBuilder],
    pods: Sequence[PodBuilder] = (),
    *,
    quotas: Sequence[Json] = (),
    setup: Setup | None = None,
    taken: float = NOW,
    dra: ClaimObjects | None = None,
) -> ClusterState:
    kept = sanitize.deciding_domains(vendors())
    return ClusterState(
        "a test",
        taken,
        tuple(sanitize.sanitize_node(plain(node), kept) for node in nodes),
        tuple(sanitize.sanitize_pod(plain(pod), kept) for pod in pods),
        tuple(sanitize.sanitize_quota(one) for one in quotas),
        setup or Setup(),
        dra=dra or ClaimObjects(),
    )


def document_of(thing: Any) -> Json:
    """An object as plain JSON, without what it does not say."""

    def told(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: told(member) for key, member in value.items() if member is not None}
        return [told(member) for member in value] if isinstance(value, list) else value

    found: Json = told(json.loads(msgspec.json.encode(thing)))
    return found


def claim_objects(
    nodes: Sequence[NodeBuilder],
    claims: Sequence[ResourceClaim] = (),
    *,
    classes: Sequence[DeviceClass] | None = None,
    templates: Sequence[Json] = (),
) -> ClaimObjects:
    """What these nodes publish for claims, the class of our driver, and these claims."""
    found = [device_class()] if classes is None else classes
    return ClaimObjects(
        tuple(sanitize.sanitize_slice(document_of(published(node))) for node in nodes),
        tuple(sanitize.sanitize_class(document_of(each)) for each in found),
        tuple(sanitize.sanitize_claim(document_of(each)) for each in claims),
        tuple(sanitize.sanitize_template(each) for each in templates),
    )


def held(claim: ResourceClaim, card: str, *users: PodBuilder, memory: int = 4096, cores: int = 30) -> ResourceClaim:
    """The claim as a scheduler wrote it."""
    amounts = {"memory": str(memory * MIB), "cores": str(cores), "shares": "1"}
    result = {"request": "gpu", "driver": DRIVER, "pool": card.rpartition("-")[0], "device": card.lower()}
    reserved = [{"resource": "pods", "name": each.name, "uid": each.manifest()["metadata"]["uid"]} for each in users]
    results = [{**result, "shareID": "s", "consumedCapacity": amounts}]
    status = {"allocation": {"devices": {"results": results}}, "reservedFor": reserved}
    document = document_of(claim)
    return msgspec.convert({**document, "status": status}, ResourceClaim)


def not_fine(findings: Iterable[Finding]) -> list[Finding]:
    return [each for each in findings if each.severity is not Severity.FINE]
