"""The annotations that a Binding writes: one atomic record of the decision, in HAMi's format."""

from __future__ import annotations

from collections.abc import Mapping

from tessera.core.model.grants import Placement
from tessera.core.model.requests import PodRequest
from tessera.vendors.base import Bound, Vendor
from tessera.wire import keys


def binding_annotations(
    pod: PodRequest, placement: Placement, *, vendors: Mapping[str, Vendor], now: float
) -> dict[str, str]:
    """Node, times, phase and every vendor's annotations. The label `hami.io/vgpu-node` also holds the node's name."""
    second = str(int(now))
    written = {
        keys.ASSIGNED_NODE: placement.node,
        keys.ASSIGNED_TIME: second,
        keys.BIND_PHASE: keys.PHASE_ALLOCATING,
        keys.BIND_TIME: second,
    }
    if pod.forecast is not None:
        written[keys.TURNOVER] = str(pod.forecast.turnover)
    for key, grants in placement.grants.items():
        written |= vendors[key].annotations(Bound(pod, placement.node, grants, now))
    return written
