"""What the cluster's pods teach a policy that looks ahead, learned as the scheduler learns it.

Every pod that was asked about is counted once, as filter prepares it and with filter's own `DemandHistory`: first those
that hold or held devices, in the order of their binding, then those that wait and were refused. The scheduler remembers pods
that the API has forgotten since; nobody else can.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tessera.core.demand_forecast import DemandForecast
from tessera.core.demand_history import FIRST, DemandHistory
from tessera.core.ledger import Ledger
from tessera.core.requests import PodRequest
from tessera.inspect.state import Json
from tessera.scheduler.demand_seed import in_order, was_placed
from tessera.vendors.base import Vendor
from tessera.wire.objects import Pod


@dataclass(frozen=True, slots=True)
class Asked:
    """A slice of one card that pods ask for."""

    memory_percent: int
    cores_percent: int
    part: float
    """of all pods with one card"""


@dataclass(frozen=True, slots=True)
class Group:
    """A number of cards that pods ask for together."""

    cards: int
    part: float
    """of the demand for cards"""


@dataclass(frozen=True, slots=True)
class Pressure:
    """Demand that accepts only some models, against the cards of one of them."""

    model: str
    pressure: float
    """1 = all of them are needed"""


@dataclass(frozen=True, slots=True)
class Expected:
    """The pods to come, as the policy expects them."""

    pods: int
    """known pods"""
    learned_from: int
    """pods known when the outlook was last renewed; 0 = the prior holds"""
    needed: int
    """pods before the first outlook of their own"""
    slices: tuple[Asked, ...]
    """the most frequent first"""
    groups: tuple[Group, ...]
    pressure: tuple[Pressure, ...]


class Learning:
    """Counts pods."""

    def __init__(self, ledger: Ledger, vendors: Mapping[str, Vendor]) -> None:
        self._ledger = ledger
        self._vendors = vendors
        self._workload = DemandHistory()
        self._pods = self._learned_from = 0

    @property
    def outlook(self) -> DemandForecast:
        return self._workload.outlook_on(self._ledger.arrays)

    @property
    def expected(self) -> Expected:
        outlook = self.outlook
        often = sorted(outlook.slices, key=lambda one: (-one.weight, one.memory, one.cores))
        return Expected(
            self._pods,
            self._learned_from,
            FIRST,
            tuple(Asked(one.memory, one.cores, round(one.weight, 4)) for one in often),
            tuple(Group(cards, round(part, 4)) for cards, part in outlook.groups),
            tuple(Pressure(model, round(number, 4)) for model, number in sorted(outlook.pressure.items())),
        )

    def observe(self, request: PodRequest) -> None:
        """A pod that was not counted before has been asked about."""
        self._pods += 1
        if self._workload.observe(request, self._ledger.arrays, self._vendors):
            self._learned_from = self._pods


def asked_before(
    pods: Mapping[str, Pod], documents: Mapping[str, Json], vendors: Mapping[str, Vendor], *, scheduler_name: str
) -> list[Pod]:
    """The pods that the scheduler was asked about, in the order in which it counts them; both tables by one key."""
    placed = [pod for pod in pods.values() if was_placed(pod, vendors)]
    refused = [
        pod
        for key, pod in pods.items()
        if not pod.spec.node_name
        and pod.spec.scheduler_name in ("", scheduler_name)
        and refusal(documents[key]) is not None
    ]
    return [*in_order(placed), *sorted(refused, key=_name)]


def refusal(document: Json) -> str | None:
    """What kube-scheduler last said about a pod that waits; None where it has refused nothing."""
    for condition in document.get("status", {}).get("conditions", ()):
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return str(condition.get("message", ""))
    return None


def _name(pod: Pod) -> tuple[str, str]:
    return pod.metadata.namespace, pod.metadata.name
