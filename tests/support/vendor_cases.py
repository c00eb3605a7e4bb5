"""Requests for cards of one vendor, without a ledger. Cards are preferred in the order given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tessera.core.fit.device_rules import UNLIMITED, Ask, QuotaRoom
from tessera.core.fit.fit import fit_request
from tessera.core.model.devices import Device, NodeFacts
from tessera.core.model.grants import Grants
from tessera.core.model.misfits import Misfit
from tessera.core.model.node_info import Card, NodeInfo
from tessera.core.model.requests import ContainerRequest, PodRequest, Request
from tessera.vendors.base import Bound, Vendor
from tessera.vendors.drafts import ContainerDraft, PodDraft, Resources
from tessera.wire.objects import Metadata, Node, NodeStatus
from tessera.wire.pod_devices import decode_pod_devices

NOW = 1_700_000_000.0
NOW_NS = "1700000000000000000"


@dataclass(frozen=True)
class VendorNode:
    """One vendor and the cards of one node."""

    vendor: Vendor
    cards: Sequence[Card]
    policy: str = "spread"
    numa_bind: bool = False
    room: QuotaRoom = UNLIMITED
    annotations: Mapping[str, str] | None = None
    traits: Mapping[str, str] = field(default_factory=dict)
    earlier: frozenset[str] = frozenset()
    """cards that earlier containers of the pod have"""

    def request(self, **limits: Any) -> Request:
        found = self.vendor.request(Resources(limits=limits))
        assert isinstance(found, Request)
        return found

    def fit(self, request: Request) -> Grants | Misfit:
        containers = (ContainerRequest("main", requests=(request,)),)
        pod = PodRequest("u", "ns", "p", containers, device_policy=self.policy, numa_bind=self.numa_bind)
        constraint = self.vendor.constraint(self.annotations or {})
        facts = NodeFacts("n1", tuple(card.device for card in self.cards), traits=self.traits)
        ask = Ask(request, pod, constraint, facts, self.cards, room=self.room, earlier=self.earlier)
        return fit_request(self.vendor, ask)

    def grants(self, **limits: Any) -> Grants:
        result = self.fit(self.request(**limits))
        assert not isinstance(result, Misfit), result
        return result

    def refusal(self, **limits: Any) -> str:
        result = self.fit(self.request(**limits))
        assert isinstance(result, Misfit), result
        return result.text

    def indexes(self, **limits: Any) -> list[int]:
        return [grant.index for grant in self.grants(**limits)]

    def written(self, *containers: Grants) -> dict[str, str]:
        """Annotations of a binding whose containers are named c0, c1, ..."""
        pod = PodRequest("u", "ns", "p", tuple(ContainerRequest(f"c{i}") for i in range(len(containers))))
        return self.vendor.annotations(Bound(pod, "n1", containers, NOW))

    def score(self, *containers: Grants) -> float:
        view = NodeInfo(NodeFacts("n1", tuple(card.device for card in self.cards)), self.cards)
        return self.vendor.node_score(view, PodRequest("u", "ns", "p", ()), containers)


def chosen(answer: Grants | Misfit) -> list[str] | str:
    """The uuids of the cards, or why there are none."""
    return answer.text if isinstance(answer, Misfit) else [grant.uuid for grant in answer]


def node(
    *,
    capacity: dict[str, Any] | None = None,
    annotations: dict[str, str] | None = None,
    labels: dict[str, str] | None = None,
) -> Node:
    return Node(Metadata(name="n1", annotations=annotations, labels=labels), NodeStatus(capacity=capacity))


def devices(vendor: Vendor, of: Node) -> tuple[Device, ...]:
    found = vendor.devices(of)
    assert isinstance(found, tuple), found
    return found


def mutated(
    vendor: Vendor, limits: dict[str, Any], requests: dict[str, Any] | None = None
) -> tuple[Any, ContainerDraft]:
    """The vendor's result and the draft. Mutates twice, because mutation may be repeated."""
    draft, pod = ContainerDraft(dict(limits), dict(requests or {}), name="main"), PodDraft()
    answer = vendor.mutate(draft, pod)
    once = (dict(draft.limits), dict(draft.requests), dict(draft.env), dict(pod.annotations), list(pod.warnings))
    assert vendor.mutate(draft, pod) == answer
    assert (draft.limits, draft.requests, draft.env, pod.annotations, pod.warnings) == once
    return answer, draft


def warnings(vendor: Vendor, limits: dict[str, Any]) -> list[str]:
    pod = PodDraft()
    vendor.mutate(ContainerDraft(dict(limits)), pod)
    return pod.warnings


def taken(vendor: Vendor, cards: Sequence[Card], grants: Grants) -> list[Card]:
    """Copies of the cards with the grants charged as a replay of the annotation charges them."""
    copies = {card.device.uuid: card.copy() for card in cards}
    for grant in grants:
        text = vendor.encode([(grant,)])
        entry = decode_pod_devices(text)[0][0]
        card = copies[grant.uuid]
        card.take(vendor.charge(card.device, vendor.decode(entry)))
    return list(copies.values())
