"""Converts API nodes and quotas to core values.

A registration that cannot be read, or that names a card twice, gives the node a problem: it keeps its pods and takes
no new ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from tessera.core.fit.quota import QUOTA_PREFIX, QuotaFacts
from tessera.core.model.devices import Device, NodeFacts
from tessera.vendors.base import NodeProblem, Vendor
from tessera.vendors.drafts import words
from tessera.wire import keys
from tessera.wire.objects import Node, QuantityText, ResourceQuota
from tessera.wire.quantity import NotWhole, Whole, read

MAX_DOUBTFUL = 8
"""entries of one quota that are kept for warnings"""
MAX_BELIEVED = 2**24
"""of a quota, in its own unit: 16 TiB of memory. A larger number may be right, but may also have had a unit (`30Gi`)"""


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
    domains = tuple({f"{name.partition('/')[0]}/" for v in vendors.values() for name in v.names.all})
    limits: dict[str, int] = {}
    doubtful: dict[str, QuantityText] = {}
    for name, text in (quota.spec.hard or {}).items():
        resource = name.removeprefix(QUOTA_PREFIX)
        limit = quota_limit(text) if name.startswith(QUOTA_PREFIX) and resource in ours else None
        if limit is not None:
            limits[resource] = limit
        is_doubtful = resource.startswith(domains) and (limit is None or limit > MAX_BELIEVED)
        if is_doubtful and len(doubtful) < MAX_DOUBTFUL:
            doubtful[name] = text
    return QuotaFacts(quota.metadata.namespace, quota.metadata.name, limits, doubtful)


def quota_limit(text: QuantityText) -> int | None:
    """The limit that a quota's text means, rounded down; None if it is no quantity."""
    match read(text):
        case Whole(value):
            return value
        case NotWhole(fraction):
            return int(fraction // 1)
    return None
