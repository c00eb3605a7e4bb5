"""Reduces API objects to the fields that decide placement. Snapshots hold nothing else.

Live clusters are reduced in the same way, so that a snapshot gives the same answers. Images, commands, volumes and the
values of environment variables are dropped. Annotations are kept by domain: those that Tessera or a vendor reads.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from tessera.core.model.requests import HostRequest
from tessera.inspect.state import Json
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
from tessera.scheduler.requests.host_resources import host_ask
from tessera.vendors.base import Vendor
from tessera.vendors.downward_api import is_slice_reference
from tessera.vendors.mistakes import is_misspelt
from tessera.vendors.pod_reader import ENDED
from tessera.wire.keys import CLAIM_DEVICES, DRA_DRIVER
from tessera.wire.objects import TEMPLATE_HASH, Pod
from tessera.wire.pod_groups import GROUP_KEYS

OWN_DOMAINS = frozenset({"hami.io", "tessera.io", "scheduling.x-k8s.io", "scheduling.k8s.io", "kueue.x-k8s.io"})

CONDITIONS = frozenset({"Ready", "PodScheduled"})


class Sanitizer:
    """Reduces the objects of a cluster whose scheduler has these vendors."""

    def __init__(self, vendors: Mapping[str, Vendor], *, claims: bool) -> None:
        """`claims`: whether the scheduler places pods with ResourceClaims."""
        self._vendors = vendors
        self._claims = claims
        self._kept = deciding_domains(vendors)
        self._managed = frozenset(name for vendor in vendors.values() for name in vendor.names.all)
        allocated = (vendor.keys.allocated for vendor in vendors.values() if vendor.keys.allocated)
        self._allocated = frozenset({*allocated, CLAIM_DEVICES})

    def concerns_devices(self, pod: Json) -> bool:
        """Whether a pod requests or holds devices. Other pods do not matter for placement."""
        if self._claims and (pod.get("spec") or {}).get("resourceClaims"):
            return True
        if not self._allocated.isdisjoint(pod.get("metadata", {}).get("annotations") or ()):
            return True
        return any(not self._managed.isdisjoint(names) for names in _resource_names(pod))

    def waits_for_misspelt(self, pod: Json) -> bool:
        """Whether a pod that has no node asks for a resource that looks like one of ours, misspelt: it may wait for
        ever, and its author asks why."""
        if (pod.get("spec") or {}).get("nodeName"):
            return False
        return any(is_misspelt(name, self._vendors) for names in _resource_names(pod) for name in names)

    def sanitize(self, resource: Resource, document: Json) -> Json:
        """An object of one of the resources that decide."""
        if resource is NODES:
            return sanitize_node(document, self._kept)
        return sanitize_pod(document, self._kept) if resource is PODS else _SANITIZERS[resource](document)

    def sanitize_all(self, resource: Resource, documents: Iterable[Json]) -> tuple[Json, ...]:
        """Without ResourceSlices of other drivers."""
        return tuple(self.sanitize(resource, each) for each in documents if not is_foreign(resource, each))


def is_foreign(resource: Resource, document: Json) -> bool:
    """Whether it is a ResourceSlice of another driver."""
    return resource is RESOURCE_SLICES and document["spec"].get("driver") != DRA_DRIVER


def deciding_domains(vendors: Mapping[str, Vendor]) -> frozenset[str]:
    """Domains of the annotations and resources that matter for placement."""
    found = set(OWN_DOMAINS)
    for vendor in vendors.values():
        texts = [*vendor.names.all, *_texts(dataclasses.astuple(vendor.keys))]
        found |= {text.partition("/")[0] for text in texts if "/" in text}
    return frozenset(found)


def _resource_names(pod: Json) -> Iterator[Collection[str]]:
    """The names in every list of resources of a pod."""
    spec = pod.get("spec") or {}
    for group in ("initContainers", "containers"):
        for container in spec.get(group) or ():
            for part in ("limits", "requests"):
                yield (container.get("resources") or {}).get(part) or ()


def sum_host_asks(pods: Iterable[Json]) -> dict[str, HostRequest]:
    """By node: the sum of what these pods request of the host, counted as the scheduler counts it."""
    asked: dict[str, HostRequest] = {}
    for document in pods:
        try:
            pod = msgspec.convert(document, Pod)
        except msgspec.ValidationError:
            continue  # what an unreadable pod requests cannot be counted
        if pod.spec.node_name and pod.status.phase not in ENDED:
            ask, before = host_ask(pod), asked.get(pod.spec.node_name, HostRequest())
            asked[pod.spec.node_name] = HostRequest(before.cpu + ask.cpu, before.memory + ask.memory)
    return dict(sorted(asked.items()))


def sanitize_node(node: Json, kept: frozenset[str]) -> Json:
    metadata, spec, status = node.get("metadata") or {}, node.get("spec") or {}, node.get("status") or {}
    return _without_empty(
        {
            "metadata": {
                "name": metadata.get("name", ""),
                "labels": metadata.get("labels"),
                "annotations": _annotations(metadata, kept),
            },
            "spec": _pick(spec, "taints", "unschedulable"),
            "status": {
                "capacity": status.get("capacity"),
                "allocatable": status.get("allocatable"),
                "conditions": _conditions(status),
            },
        }
    )


def sanitize_pod(pod: Json, kept: frozenset[str]) -> Json:
    metadata, spec, status = pod.get("metadata") or {}, pod.get("spec") or {}, pod.get("status") or {}
    affinity = _pick(
        (spec.get("affinity") or {}).get("nodeAffinity") or {}, "requiredDuringSchedulingIgnoredDuringExecution"
    )
    return _without_empty(
        {
            "metadata": {
                **_pick(metadata, "name", "generateName", "namespace", "uid", "creationTimestamp", "deletionTimestamp"),
                "annotations": _annotations(metadata, kept),
                "labels": _pick(metadata.get("labels") or {}, TEMPLATE_HASH, *sorted(GROUP_KEYS)),
                "ownerReferences": [
                    _pick(each, "kind", "name", "controller") for each in metadata.get("ownerReferences") or ()
                ],
            },
            "spec": {
                **_pick(spec, "nodeName", "schedulerName", "runtimeClassName", "nodeSelector", "tolerations"),
                **_pick(spec, "schedulingGates", "schedulingGroup", "priority", "preemptionPolicy"),
                **_pick(spec, "resourceClaims"),
                "affinity": {"nodeAffinity": affinity} if affinity else None,
                "initContainers": [_container(each) for each in spec.get("initContainers") or ()],
                "containers": [_container(each) for each in spec.get("containers") or ()],
            },
            "status": {
                **_pick(status, "phase", "startTime", "nominatedNodeName", "resourceClaimStatuses"),
                "conditions": _conditions(status),
                "initContainerStatuses": [_ended(each) for each in status.get("initContainerStatuses") or ()],
            },
        }
    )


def sanitize_quota(quota: Json) -> Json:
    metadata, spec = quota.get("metadata") or {}, quota.get("spec") or {}
    return {"metadata": _pick(metadata, "name", "namespace"), "spec": {"hard": dict(spec.get("hard") or {})}}


def sanitize_slice(found: Json) -> Json:
    """A ResourceSlice without its counters, which follow from its devices."""
    spec = _pick(found.get("spec") or {}, "driver", "pool", "nodeName", "devices")
    return {"metadata": _pick(found.get("metadata") or {}, "name"), "spec": spec}


def sanitize_class(found: Json) -> Json:
    """A DeviceClass without the settings of its driver."""
    spec = _pick(found.get("spec") or {}, "selectors")
    return _without_empty({"metadata": _pick(found.get("metadata") or {}, "name"), "spec": spec})


def sanitize_claim(claim: Json) -> Json:
    metadata, status = claim.get("metadata") or {}, claim.get("status") or {}
    allocation = status.get("allocation") or {}
    owners = [_pick(each, "kind", "name", "uid", "controller") for each in metadata.get("ownerReferences") or ()]
    times = ("creationTimestamp", "deletionTimestamp")
    return _without_empty(
        {
            "metadata": {
                **_pick(metadata, "name", "namespace", "uid", "resourceVersion", *times),
                "ownerReferences": owners,
            },
            "spec": _claim_spec(claim.get("spec") or {}),
            "status": {
                "allocation": {
                    "devices": _pick(allocation.get("devices") or {}, "results"),
                    **_pick(allocation, "nodeSelector", "allocationTimestamp"),
                },
                **_pick(status, "reservedFor"),
            },
        }
    )


def sanitize_template(template: Json) -> Json:
    metadata, spec = template.get("metadata") or {}, template.get("spec") or {}
    return {"metadata": _pick(metadata, "name", "namespace"), "spec": {"spec": _claim_spec(spec.get("spec") or {})}}


_SANITIZERS: dict[Resource, Callable[[Json], Json]] = {
    RESOURCE_QUOTAS: sanitize_quota,
    RESOURCE_SLICES: sanitize_slice,
    DEVICE_CLASSES: sanitize_class,
    RESOURCE_CLAIMS: sanitize_claim,
    RESOURCE_CLAIM_TEMPLATES: sanitize_template,
}


def _claim_spec(spec: Json) -> Json:
    return {"devices": _pick(spec.get("devices") or {}, "requests", "constraints")}


def _container(container: Json) -> Json:
    security = container.get("securityContext") or {}
    return _without_empty(
        {
            **_pick(container, "name", "restartPolicy"),
            "resources": _pick(container.get("resources") or {}, "limits", "requests", "claims"),
            "securityContext": _pick(security, "privileged"),
            # Only downward API references to the pod's own slices matter, and they are not secret.
            "env": [each for each in container.get("env") or () if "valueFrom" in each and is_slice_reference(each)],
        }
    )


def _ended(status: Json) -> Json:
    terminated = (status.get("state") or {}).get("terminated")
    state = {} if terminated is None else {"terminated": {"exitCode": terminated.get("exitCode", 0)}}
    return {"name": status.get("name", ""), "state": state}


def _conditions(status: Json) -> list[Json]:
    return [
        _pick(each, "type", "status", "reason", "message", "lastHeartbeatTime", "lastTransitionTime")
        for each in status.get("conditions") or ()
        if each.get("type") in CONDITIONS
    ]


def _annotations(metadata: Json, kept: frozenset[str]) -> Json:
    return {key: value for key, value in (metadata.get("annotations") or {}).items() if key.partition("/")[0] in kept}


def _pick(table: Mapping[str, Any], *names: str) -> Json:
    return {name: table[name] for name in names if table.get(name) is not None}


def _without_empty(table: Json) -> Json:
    """The table without empty members, at any depth."""
    small = {key: _without_empty(value) if isinstance(value, dict) else value for key, value in table.items()}
    return {key: value for key, value in small.items() if value is not None and value != {} and value != []}


def _texts(value: Any) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (tuple, list)):
        for member in value:
            yield from _texts(member)
