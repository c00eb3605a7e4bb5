"""The annotations that a binding writes: one atomic record of the decision, in HAMi's words."""

from __future__ import annotations

from collections.abc import Mapping

from tessera.core.devices import NodeFacts
from tessera.core.grants import Placement
from tessera.core.requests import PodRequest
from tessera.vendors.base import Bound, Vendor
from tessera.wire import keys


def binding_annotations(
    pod: PodRequest, placement: Placement, *, node: NodeFacts, vendors: Mapping[str, Vendor], now: float
) -> dict[str, str]:
    """Node, times, phase and every vendor's own annotations. The label `hami.io/vgpu-node` has the node's name too."""
    written = {
        keys.ASSIGNED_NODE: placement.node,
        keys.ASSIGNED_TIME: str(int(now)),
        keys.BIND_PHASE: keys.PHASE_ALLOCATING,
        keys.BIND_TIME: str(int(now)),
    }
    for key, grants in placement.grants.items():
        devices = {device.uuid: device for device in node.devices if device.vendor == key}
        written |= vendors[key].annotations(Bound(pod, placement.node, grants, now, devices))
    return written
