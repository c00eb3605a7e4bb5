"""The demand that a policy which looks ahead expects, learned from the cluster's pods as the scheduler learns it.

Every pod that filter has seen counts once, with filter's own `DemandHistory`: first the pods that hold or held
devices, in the order of their binding, then the pods that were refused and wait. The running scheduler may also
remember pods that the API has since forgotten; they are unknown here, but for the turnover, which it writes with each
binding.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tessera.core.ledger.ledger import Ledger
from tessera.core.model.demand_forecast import DemandForecast
from tessera.core.model.requests import PodRequest
from tessera.core.policies.demand_history import FIRST, DemandHistory
from tessera.core.policies.scarcity import against_what_is_left, given_back_for
from tessera.inspect.state import Json
from tessera.scheduler.requests.demand_tracker import in_order, was_placed
from tessera.vendors.base import Vendor
from tessera.wire.objects import Pod


@dataclass(frozen=True, slots=True)
class SliceDemand:
    """A slice of one card that pods ask for."""

    memory_percent: int
    cores_percent: int
    part: float
    """share of all pods that ask for one card"""


@dataclass(frozen=True, slots=True)
class GroupDemand:
    """A number of cards that pods ask for together."""

    cards: int
    part: float
    """share of the demand for cards"""


@dataclass(frozen=True, slots=True)
class ModelPressure:
    """Demand that accepts only some models, relative to the cards of one of them."""

    model: str
    pressure: float
    """1 = all cards of the model are needed"""


@dataclass(frozen=True, slots=True)
class ExpectedDemand:
    """The pods that the policy expects."""

    pods: int
    """how many pods have been observed"""
    learned_from: int
    """how many had been observed at the last forecast; 0 = the built-in assumption still applies"""
    needed: int
    """how many must be observed before the first forecast"""
    slices: tuple[SliceDemand, ...]
    """the most frequent first"""
    groups: tuple[GroupDemand, ...]
    pressure: tuple[ModelPressure, ...]


class ObservedDemand:
    """Counts requests and forecasts from them."""

    def __init__(self, ledger: Ledger, vendors: Mapping[str, Vendor]) -> None:
        self._ledger = ledger
        self._vendors = vendors
        self._history = DemandHistory()
        self._forecast: DemandForecast | None = None
        self._pods = self._learned_from = 0
        self.turnover = 0.0
        """that the newest pod was decided by"""

    @property
    def forecast(self) -> DemandForecast:
        """Put against what is left now; the scheduler looks at that again after some pods only."""
        arrays = self._ledger.arrays
        expected = self._history.expected(arrays)
        ended = max(self._history.ended, given_back_for(self.turnover, arrays))
        self._forecast = against_what_is_left(expected, arrays, ended=ended, current=self._forecast)
        return self._forecast

    @property
    def expected(self) -> ExpectedDemand:
        forecast = self.forecast
        often = sorted(forecast.slices, key=lambda one: (-one.weight, one.memory, one.cores))
        return ExpectedDemand(
            self._pods,
            self._learned_from,
            FIRST,
            tuple(SliceDemand(one.memory, one.cores, round(one.weight, 4)) for one in often),
            tuple(GroupDemand(cards, round(part, 4)) for cards, part in sorted(_parts_by_cards(forecast).items())),
            tuple(ModelPressure(model, round(number, 4)) for model, number in sorted(forecast.pressure.items())),
        )

    def observe(self, request: PodRequest, *, has_ended: bool = False) -> None:
        """Counts a request that was not counted before."""
        self._pods += 1
        if has_ended:
            self._history.note_ended(request)
        if self._history.observe(request, self._ledger.arrays, self._vendors):
            self._learned_from = self._pods


def _parts_by_cards(forecast: DemandForecast) -> dict[int, float]:
    """Whatever models and hosts the groups need."""
    parts: dict[int, float] = {}
    for group in forecast.groups:
        parts[group.cards] = parts.get(group.cards, 0.0) + group.part
    return parts


def pods_seen_by_filter(
    pods: Mapping[str, Pod], documents: Mapping[str, Json], vendors: Mapping[str, Vendor], *, scheduler_name: str
) -> list[Pod]:
    """The pods that filter has seen, in the order in which it counts them. Both tables have the same keys."""
    placed = [pod for pod in pods.values() if was_placed(pod, vendors)]
    refused = [
        pod
        for key, pod in pods.items()
        if not pod.spec.node_name
        and pod.spec.scheduler_name in ("", scheduler_name)
        and last_refusal(documents[key]) is not None
    ]
    return [*in_order(placed), *sorted(refused, key=_name)]


def last_refusal(document: Json) -> str | None:
    """What kube-scheduler last said about a waiting pod; None if it has not refused the pod."""
    for condition in document.get("status", {}).get("conditions", ()):
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return str(condition.get("message", ""))
    return None


def _name(pod: Pod) -> tuple[str, str]:
    return pod.metadata.namespace, pod.metadata.name
