"""A cluster from YAML: a short description, or objects as `kubectl get -o yaml` prints them.

    nodes:
      - name: a100              # with count: a100-1, a100-2, ...
        count: 2
        cards: [{model: A100-SXM4-80GB, count: 8}]
    namespaces:
      - {name: team-a, limits: {nvidia.com/gpumem: 40000}}

Describes NVIDIA cards by model or by numbers; cards of other vendors are given as the node's own annotations and
capacity. What is written but not known is refused, never passed over.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import msgspec
import yaml

from tessera.core.devices import HAMI_CORE, Device
from tessera.host.simulated.models import MODELS
from tessera.inspect.state import InspectionError, Json, Setup, State
from tessera.lab.sandbox.nodes.cards import SPLIT, gpu_cards
from tessera.vendors.node_reader import QUOTA_PREFIX
from tessera.vendors.nvidia import Nvidia
from tessera.vendors.nvidia.backend import PAIR_SCORES
from tessera.wire.errors import WireError
from tessera.wire.expectations import nearest
from tessera.wire.pair_scores import encode_pair_scores
from tessera.wire.registration import encode_registration_json

GPU = "nvidia.com/gpu"
PODS_A_NODE = "110"
KINDS = ("Node", "Pod", "ResourceQuota")


class Cards(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Equal cards of a node."""

    model: str = ""
    count: int = 1
    memory: int = 0
    """MiB; 0 = as the model has it"""
    slots: int = SPLIT
    mode: str = HAMI_CORE
    numa: int = 1
    """NUMA nodes that they are spread over"""
    linked: int = 0
    """cards of a group that are linked to each other"""


class DescribedNode(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    count: int = 0
    """0 = one node of this very name"""
    cards: tuple[Cards, ...] = ()
    labels: dict[str, str] = {}
    taints: tuple[dict[str, str], ...] = ()
    annotations: dict[str, str] = {}
    capacity: dict[str, str | int] = {}


class DescribedNamespace(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    limits: dict[str, str | int] = {}


class Description(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    nodes: tuple[DescribedNode, ...] = ()
    namespaces: tuple[DescribedNamespace, ...] = ()
    pods: tuple[dict[str, Any], ...] = ()
    """as the API shows them"""


def describe(text: str, *, file: str, now: float, setup: Setup) -> State:
    """Raises InspectionError that names the file and what is wrong in it."""
    try:
        documents = [document for document in yaml.safe_load_all(text) if document is not None]
    except yaml.YAMLError as error:
        raise InspectionError(f"{file}: not YAML: {error}") from error
    objects: dict[str, list[Json]] = {kind: [] for kind in KINDS}
    for document in documents:
        if isinstance(document, dict) and "kind" in document:
            _sort_in(document, objects, file)
        else:
            _add_described(document, objects, file)
    if not objects["Node"]:
        raise InspectionError(f"{file}: describes no nodes")
    nodes, pods, quotas = (tuple(objects[kind]) for kind in KINDS)
    return State(f"description {file}", now, nodes, with_uids(pods), quotas, setup)


def with_uids(pods: Iterable[Json]) -> tuple[Json, ...]:
    """Pods that nobody created have no uid; the ledger needs one."""
    named = []
    for pod in pods:
        metadata = {"namespace": "default", **(pod.get("metadata") or {})}
        metadata.setdefault("uid", f"described-{metadata['namespace']}-{metadata.get('name', '')}")
        named.append({**pod, "metadata": metadata})
    return tuple(named)


def _sort_in(document: Json, objects: dict[str, list[Json]], file: str) -> None:
    kind = str(document["kind"])
    if kind == "List" or kind.endswith("List"):
        for item in document.get("items") or ():
            _sort_in({"kind": kind.removesuffix("List"), **item}, objects, file)
    elif kind in objects:
        objects[kind].append(document)
    else:
        raise InspectionError(f"{file}: {kind} is none of {', '.join(KINDS)} or a list of them")


def _add_described(document: Any, objects: dict[str, list[Json]], file: str) -> None:
    try:
        described = msgspec.convert(document, Description)
    except msgspec.ValidationError as error:
        raise InspectionError(f"{file}: {error}; tessera simulate pod --help shows a description") from error
    for node in described.nodes:
        names = [f"{node.name}-{number}" for number in range(1, node.count + 1)] if node.count else [node.name]
        objects["Node"].extend(_node(name, node, file) for name in names)
    for namespace in described.namespaces:
        hard = {f"{QUOTA_PREFIX}{resource}": str(limit) for resource, limit in namespace.limits.items()}
        metadata = {"name": "limits", "namespace": namespace.name}
        objects["ResourceQuota"].append({"metadata": metadata, "spec": {"hard": hard}})
    objects["Pod"].extend(described.pods)


def _node(name: str, node: DescribedNode, file: str) -> Json:
    devices = _numbered(device for cards in node.cards for device in _devices(name, cards, file))
    offered: dict[str, str] = {resource: str(amount) for resource, amount in node.capacity.items()}
    annotations = dict(node.annotations)
    if devices:
        try:
            annotations[Nvidia.keys.register] = encode_registration_json(devices)
        except WireError as error:
            raise InspectionError(f"{file}: node {name}: {error}") from error
        offered.setdefault(GPU, str(sum(device.slots for device in devices)))
        if any(device.links for device in devices):
            annotations[PAIR_SCORES] = encode_pair_scores({device.uuid: device.links for device in devices})
    amounts: Mapping[str, str] = {"pods": PODS_A_NODE, **offered}
    return {
        "metadata": {"name": name, "labels": dict(node.labels), "annotations": annotations},
        "spec": {"taints": [dict(taint) for taint in node.taints]} if node.taints else {},
        "status": {"capacity": dict(amounts), "allocatable": dict(amounts)},
    }


def _devices(node: str, cards: Cards, file: str) -> tuple[Device, ...]:
    known = MODELS.get(cards.model)
    memory = cards.memory or (known.memory_mib if known is not None else 0)
    if not memory:
        hint = nearest(cards.model, list(MODELS), what="models")
        raise InspectionError(f"{file}: node {node}: give the memory of {cards.model or 'its cards'} in MiB{hint}")
    return gpu_cards(
        f"{node}/{cards.model}",
        cards.count,
        model=known.name if known is not None else cards.model or "GPU",
        memory=memory,
        slots=cards.slots,
        mode=cards.mode,
        numa_nodes=cards.numa,
        linked=cards.linked,
    )


def _numbered(devices: Iterable[Device]) -> tuple[Device, ...]:
    return tuple(replace(device, index=index) for index, device in enumerate(devices))
