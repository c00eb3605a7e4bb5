"""Converts API nodes and quotas to core values.

A registration that cannot be read, or that names a card twice, gives the node a problem: it keeps its pods and takes
no new ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from tessera.core.devices import Device, NodeFacts
from tessera.core.quota import QuotaFacts
from tessera.vendors.base import NodeProblem, Vendor
from tessera.vendors.drafts import words
from tessera.wire import keys
from tessera.wire.objects import Node, ResourceQuota
from tessera.wire.quantity import NotWhole, Whole, read

QUOTA_PREFIX = "limits."


def node_facts(node: Node, vendors: Mapping[str, Vendor]) -> NodeFacts:
    """The node's cards of all vendors, in order of vendor and registration."""
    devices: list[Device] = []
    problems: list[str] = []
    for key in sorted(vendors):
        answer = vendors[key].devices(node)
        if isinstance(answer, NodeProblem):
            problems.append(f"{key}: {answer.text}")
        else:
            devices.extend(answer)
    repeated = sorted(uuid for uuid, count in Counter(d.uuid for d in devices).items() if count > 1)
    if repeated:
        problems.append(f"card {repeated[0]} is registered by two vendors")
        devices = [device for device in devices if device.uuid not in repeated]
    annotations = node.annotations
    traits = {trait for vendor in vendors.values() for trait in vendor.keys.traits}
    return NodeFacts(
        name=node.name,
        devices=tuple(devices),
        cordoned=frozenset(words(annotations, keys.DEVICE_CORDON)),
        traits={trait: annotations[trait] for trait in sorted(traits) if trait in annotations},
        problem="; ".join(problems),
    )


def quota_facts(quota: ResourceQuota, vendors: Mapping[str, Vendor]) -> QuotaFacts:
    """The limits on device resources, rounded down. Scopes are ignored: a limit applies to all pods."""
    ours = {name for v in vendors.values() for name in (v.quota_memory, v.quota_cores) if name}
    limits: dict[str, int] = {}
    for name, text in (quota.spec.hard or {}).items():
        resource = name.removeprefix(QUOTA_PREFIX)
        if name.startswith(QUOTA_PREFIX) and resource in ours:
            match read(text):
                case Whole(value):
                    limits[resource] = value
                case NotWhole(fraction):
                    limits[resource] = int(fraction // 1)
    return QuotaFacts(quota.metadata.namespace, quota.metadata.name, limits)
