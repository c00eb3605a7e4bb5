"""What the room on a node costs a pod under the policy `fragmentation`, from the definition: an oracle."""

from __future__ import annotations

from statistics import fmean

from tessera.core.model.demand_forecast import GRAIN, DemandForecast
from tessera.core.model.node_info import NodeInfo
from tessera.core.model.requests import HostRequest
from tessera.core.policies.fragmentation.growth import EMPTY


def plain_emptiness(view: NodeInfo, host: HostRequest | None, forecast: DemandForecast) -> float:
    """Before the pod comes."""
    room = sum(
        forecast.worth(
            card.free_memory * GRAIN // card.device.memory, max(card.free_cores, 0) * GRAIN // card.device.cores
        )
        for card in view.cards
        if card.device.healthy and not card.cordoned
    )
    if host is not None and forecast.loads:
        weights = [load.weight for load in forecast.loads]
        cpu = fmean([load.cpu for load in forecast.loads], weights)
        memory = fmean([load.memory for load in forecast.loads], weights)
        room += forecast.host_need**2 * min(host.cpu / cpu, host.memory / memory)
    return EMPTY * forecast.turnover * room
