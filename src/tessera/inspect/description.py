"""A cluster from YAML: a short description, or objects as `kubectl get -o yaml` prints them.

    nodes:
      - name: a100              # with count: a100-1, a100-2, ...
        count: 2
        cards: [{model: A100-SXM4-80GB, count: 8}]
    namespaces:
      - {name: team-a, limits: {nvidia.com/gpumem: 40000}}

NVIDIA cards are described by model or by numbers; cards of other vendors by the node's own annotations and capacity.
Unknown fields are refused, never ignored.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import msgspec

from tessera.core.fit.quota import QUOTA_PREFIX
from tessera.core.model.devices import HAMI_CORE, Device
from tessera.host.simulated.models import MODELS
from tessera.inspect.state import ClaimObjects, ClusterState, InspectionError, Json, Setup, documents
from tessera.vendors.nvidia import Nvidia
from tessera.vendors.nvidia.backend import PAIR_SCORES
from tessera.wire.config_file import nearest
from tessera.wire.errors import WireError
from tessera.wire.registration import encode_pair_scores, encode_registration_json

COUNT_RESOURCE = "nvidia.com/gpu"
PODS_PER_NODE = "110"
"""kubelet's default"""
KINDS = ("Node", "Pod", "ResourceQuota")
CLAIM_KINDS = ("ResourceSlice", "DeviceClass", "ResourceClaim", "ResourceClaimTemplate")
SLOTS = 10
"""how many pods share a card unless the description says otherwise; HAMi's default"""
PAIR_SCORE = 400
"""of two linked cards: that of four NVLinks between them"""

_UUIDS = uuid.UUID("6f0f3d3e-7f0c-5d5c-9d7b-0c8f3b2a1e55")


class DescribedCards(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Equal cards of a node."""

    model: str = ""
    count: int = 1
    memory: int = 0
    """MiB; 0 = that of the model"""
    slots: int = SLOTS
    mode: str = HAMI_CORE
    numa: int = 1
    """how many NUMA nodes they are spread over"""
    linked: int = 0
    """size of the groups in which all cards are linked to each other"""


class DescribedNode(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    count: int = 0
    """0 = one node of exactly this name"""
    cards: tuple[DescribedCards, ...] = ()
    labels: dict[str, str] = {}
    taints: tuple[dict[str, str], ...] = ()
    annotations: dict[str, str] = {}
    capacity: dict[str, str | int] = {}


class DescribedNamespace(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    limits: dict[str, str | int] = {}


class ClusterDescription(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    nodes: tuple[DescribedNode, ...] = ()
    namespaces: tuple[DescribedNamespace, ...] = ()
    pods: tuple[dict[str, Any], ...] = ()
    """as the API has them"""


def read_description(text: str, *, file: str, now: float, setup: Setup) -> ClusterState:
    """Raises InspectionError with the file and what is wrong in it."""
    objects: dict[str, list[Json]] = {kind: [] for kind in (*KINDS, *CLAIM_KINDS)}
    for document in documents(text, file):
        if isinstance(document, dict) and "kind" in document:
            _add_object(document, objects, file)
        else:
            _add_described(document, objects, file)
    if not objects["Node"]:
        raise InspectionError(f"{file}: describes no nodes")
    nodes, pods, quotas = (tuple(objects[kind]) for kind in KINDS)
    slices, classes, claims, templates = (tuple(objects[kind]) for kind in CLAIM_KINDS)
    dra = ClaimObjects(slices, classes, with_uids(claims), templates)
    return ClusterState(f"description {file}", now, nodes, with_uids(pods), quotas, setup, dra=dra)


def with_uids(pods: Iterable[Json]) -> tuple[Json, ...]:
    """Gives described pods and claims a uid, which the ledger needs."""
    named = []
    for pod in pods:
        metadata = {"namespace": "default", **(pod.get("metadata") or {})}
        metadata.setdefault("uid", f"described-{metadata['namespace']}-{metadata.get('name', '')}")
        named.append({**pod, "metadata": metadata})
    return tuple(named)


def _add_object(document: Json, objects: dict[str, list[Json]], file: str) -> None:
    kind = str(document["kind"])
    if kind == "List" or kind.endswith("List"):
        for item in document.get("items") or ():
            _add_object({"kind": kind.removesuffix("List"), **item}, objects, file)
    elif kind in objects:
        objects[kind].append(document)
    else:
        raise InspectionError(f"{file}: {kind} is not supported; expected {', '.join(objects)} or a list of them")


def _add_described(document: Any, objects: dict[str, list[Json]], file: str) -> None:
    try:
        described = msgspec.convert(document, ClusterDescription)
    except msgspec.ValidationError as error:
        raise InspectionError(f"{file}: {error}; tessera simulate pod --help shows an example") from error
    for node in described.nodes:
        names = [f"{node.name}-{number}" for number in range(1, node.count + 1)] if node.count else [node.name]
        objects["Node"].extend(_node(name, node, file) for name in names)
    for namespace in described.namespaces:
        hard = {f"{QUOTA_PREFIX}{resource}": str(limit) for resource, limit in namespace.limits.items()}
        metadata = {"name": "limits", "namespace": namespace.name}
        objects["ResourceQuota"].append({"metadata": metadata, "spec": {"hard": hard}})
    objects["Pod"].extend(described.pods)


def _node(name: str, node: DescribedNode, file: str) -> Json:
    found = [device for cards in node.cards for device in _devices(name, cards, file)]
    devices = [replace(device, index=index) for index, device in enumerate(found)]
    offered: dict[str, str] = {resource: str(amount) for resource, amount in node.capacity.items()}
    annotations = dict(node.annotations)
    if devices:
        try:
            annotations[Nvidia.keys.register] = encode_registration_json(devices)
        except WireError as error:
            raise InspectionError(f"{file}: node {name}: {error}") from error
        offered.setdefault(COUNT_RESOURCE, str(sum(device.slots for device in devices)))
        if any(device.links for device in devices):
            annotations[PAIR_SCORES] = encode_pair_scores({device.uuid: device.links for device in devices})
    amounts: Mapping[str, str] = {"pods": PODS_PER_NODE, **offered}
    return {
        "metadata": {"name": name, "labels": dict(node.labels), "annotations": annotations},
        "spec": {"taints": [dict(taint) for taint in node.taints]} if node.taints else {},
        "status": {"capacity": dict(amounts), "allocatable": dict(amounts)},
    }


def make_devices(node: str, cards: DescribedCards) -> tuple[Device, ...]:
    """The cards as a node registers them. The uuids follow from `node`, so that they are the same every time."""
    devices = [
        Device(
            uuid=f"GPU-{uuid.uuid5(_UUIDS, f'{node}/{index}')}",
            vendor="NVIDIA",
            index=index,
            slots=cards.slots,
            memory=cards.memory,
            model=cards.model,
            numa=index * cards.numa // cards.count,
            mode=cards.mode,
        )
        for index in range(cards.count)
    ]
    if not cards.linked:
        return tuple(devices)
    return tuple(replace(device, links=_links(device, devices, cards.linked)) for device in devices)


def _links(device: Device, devices: Iterable[Device], group: int) -> dict[str, int]:
    return {
        other.uuid: PAIR_SCORE
        for other in devices
        if other is not device and other.index // group == device.index // group
    }


def _devices(node: str, cards: DescribedCards, file: str) -> tuple[Device, ...]:
    known = MODELS.get(cards.model)
    memory = cards.memory or (known.memory_mib if known is not None else 0)
    if not memory:
        hint = nearest(cards.model, list(MODELS), what="models")
        raise InspectionError(f"{file}: node {node}: give the memory of {cards.model or 'its cards'} in MiB{hint}")
    model = known.name if known is not None else cards.model or "GPU"
    return make_devices(f"{node}/{cards.model}", msgspec.structs.replace(cards, model=model, memory=memory))
