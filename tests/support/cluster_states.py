"""States of clusters as the collector reads them: small ones from builders, and large ones of many pools."""

from __future__ import annotations

import argparse
import json
import sys
import uuid
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from tessera.core.model.devices import Device
from tessera.inspect import sanitize
from tessera.inspect.checks import Finding, Severity
from tessera.inspect.description import DescribedCards, make_devices
from tessera.inspect.snapshots import encode_snapshot
from tessera.inspect.state import ClaimObjects, ClusterState, Json, Setup
from tessera.vendors.nvidia import Nvidia
from tessera.vendors.nvidia.backend import PAIR_SCORES
from tessera.wire import keys
from tessera.wire.pod_devices import DeviceEntry, encode_pod_devices
from tessera.wire.registration import encode_pair_scores, encode_registration_json
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


LARGE_NOW = 1_763_324_000.0
UUIDS = uuid.UUID("0b0f8a56-1f0c-4d7e-8f65-55f1f6a0a7c4")
POOLS = (
    DescribedCards("NVIDIA H100 80GB HBM3", memory=81_559, linked=8, numa=2),
    DescribedCards("NVIDIA A100-SXM4-40GB", memory=40_960, linked=4, numa=2),
    DescribedCards("NVIDIA L4", memory=23_034),
)
TEAMS = tuple(f"team-{letter}" for letter in "abcdefghijklmnop")
OWNERS = (("Deployment", "inference"), ("Job", "training"), ("StatefulSet", "notebook"), ("", ""))


def large_state(
    *, nodes: int = 5_000, cards: int = 8, slices_per_card: int = 2, waiting: int = 40, taken: float = LARGE_NOW
) -> ClusterState:
    """Every card holds so many slices, of pods with one card each. Some nodes have closed cards."""
    node_objects, pods = [], []
    for number in range(nodes):
        pool = POOLS[number % len(POOLS)]
        devices = _devices(f"gpu-{number:05}", pool, cards)
        node_objects.append(_node(f"gpu-{number:05}", devices, cordons=number % 97 == 5))
        for position in range(cards * slices_per_card):
            device = devices[position % cards]
            serial = number * cards * slices_per_card + position
            pods.append(_bound_pod(serial, f"gpu-{number:05}", device, slices_per_card, taken))
    pods += [_pod(f"waiting-{number}", number, memory=90_000 + number % 7, taken=taken) for number in range(waiting)]
    return ClusterState("a large cluster", taken, tuple(node_objects), tuple(pods))


def _devices(name: str, pool: DescribedCards, count: int) -> tuple[Device, ...]:
    linked = min(pool.linked, count)
    return make_devices(name, DescribedCards(pool.model, count, pool.memory, numa=pool.numa, linked=linked))


def _node(name: str, devices: tuple[Device, ...], *, cordons: bool) -> Json:
    annotations = {Nvidia.keys.register: encode_registration_json(devices)}
    if any(device.links for device in devices):
        annotations[PAIR_SCORES] = encode_pair_scores({device.uuid: device.links for device in devices})
    if cordons:
        annotations[keys.DEVICE_CORDON] = devices[0].uuid
    amounts = {"pods": "110", "nvidia.com/gpu": str(sum(device.slots for device in devices))}
    return {
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}, "annotations": annotations},
        "spec": {},
        "status": {"capacity": amounts, "allocatable": amounts},
    }


def _bound_pod(serial: int, node: str, device: Device, slices_per_card: int, taken: float) -> Json:
    # Parts of different sizes, so that cards are neither all full nor all alike.
    memory = device.memory * (1 + serial % 4) // (4 * slices_per_card)
    cores = 100 * (1 + serial % 3) // (4 * slices_per_card)
    pod = _pod(f"pod-{serial}", serial, memory=memory, cores=cores, taken=taken)
    slices = encode_pod_devices([[DeviceEntry(device.uuid, "NVIDIA", memory, cores)]])
    pod["metadata"]["annotations"] |= {
        keys.ASSIGNED_NODE: node,
        keys.ASSIGNED_TIME: str(int(taken) - 60 - serial % 86_400),
        keys.BIND_TIME: str(int(taken) - 60 - serial % 86_400),
        keys.BIND_PHASE: keys.PHASE_SUCCESS,
        Nvidia.keys.allocated: slices,
    }
    pod["spec"]["nodeName"] = node
    pod["status"] = {"phase": "Running"}
    return pod


def _pod(name: str, serial: int, *, memory: int, cores: int = 0, taken: float) -> Json:
    kind, owner = OWNERS[serial % len(OWNERS)]
    references = [{"kind": kind, "name": f"{owner}-{serial % 40}", "controller": True}] if kind else []
    limits = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": memory} | ({"nvidia.com/gpucores": cores} if cores else {})
    created = f"2025-11-16T{serial % 20:02}:{serial % 60:02}:00Z"
    return {
        "metadata": {
            "name": name,
            "namespace": TEAMS[serial // 3 % len(TEAMS)],
            "uid": str(uuid.uuid5(UUIDS, name)),
            "creationTimestamp": created,
            "annotations": {},
            "ownerReferences": references,
        },
        "spec": {
            "schedulerName": "hami-scheduler",
            "containers": [{"name": "main", "resources": {"limits": limits}}],
        },
        "status": {"phase": "Pending"},
    }


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description="Write a large cluster as a snapshot.")
    parser.add_argument("file", type=Path)
    parser.add_argument("--nodes", type=int, default=5_000)
    parser.add_argument("--cards", type=int, default=8)
    parser.add_argument("--slices-per-card", type=int, default=2)
    given = parser.parse_args(arguments)
    state = large_state(nodes=given.nodes, cards=given.cards, slices_per_card=given.slices_per_card)
    given.file.write_bytes(encode_snapshot(state))


if __name__ == "__main__":
    main(sys.argv[1:])
