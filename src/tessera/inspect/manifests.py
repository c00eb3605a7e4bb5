"""Reads pods from manifests: pods, the pod templates of workloads with their replicas, and the claims beside them."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

from tessera.inspect.state import InspectionError, Json, documents


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
