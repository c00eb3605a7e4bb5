"""The nodes of a cluster as JSON: their cards with the slices of each, and the pods that hold them.

Positional arrays keep a cluster of 40,000 cards small. Names that tenants choose appear as JSON strings only.

    node   {problem, cards: [card], pods: {uid: pod}}
    pod    namespace, name, kind and name of the owner, state, since[, gang[, until]]; for a ResourceClaim, the pod
           that uses it (the first, of several), with the claim as its owner
    card   index, uuid, model, mode, memory, cores, slots, state, NVLink group, NUMA node, slices, used, utilization
           [, claims of nominated pods]
    slice  uid, memory, cores, slots, used, utilization, MIG profiles; in the order of `tessera top`

A place that is held for a member of a gang is a pod in the state `held`. Claims are not part of the slices: what is
claimed may be held by pods that leave.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, NamedTuple

from tessera.core.fit.topology import linked_groups
from tessera.core.ledger.holders import GrantState, Holder, HolderKind, held_gang, kind_of
from tessera.core.ledger.holdings import Holding
from tessera.core.ledger.ledger import Ledger
from tessera.core.model.devices import Device
from tessera.core.model.node_info import Card, NodeInfo
from tessera.inspect.dashboard.documents import encode
from tessera.inspect.dashboard.pods import PodOrigin
from tessera.inspect.dashboard.totals import Share, Sums, count_room
from tessera.inspect.slices import sorted_users
from tessera.inspect.state import Json
from tessera.inspect.usage import card_state, count_cores
from tessera.inspect.utilization import NOT_MEASURED, NOTHING_MEASURED, MeasuredUse, Utilization
from tessera.scheduler.engine_view import ClaimUsers
from tessera.scheduler.metrics.granted_time import share_of

NVLINK_SCORE = 100
"""pair score of one NVLink; PCIe alone scores less"""

CLAIM = "ResourceClaim"
"""kind of the owner of a slice that a claim holds"""
HELD = "held"
"""the state of a place that is held for a member of a gang"""


class ShownCluster(ABC):
    """A cluster at one moment, now or in the past. What is not known of the past is empty here."""

    users_of: ClaimUsers | None = None
    """which pods use a claim; None if that is not known"""
    measurements: MeasuredUse = NOTHING_MEASURED

    @property
    @abstractmethod
    def ledger(self) -> Ledger: ...

    @abstractmethod
    def origin(self, uid: str) -> PodOrigin: ...

    def is_handing_over(self, uid: str) -> bool:
        return False

    def held_until(self, uid: str) -> float | None:
        """When what is held or claimed for a time ends by itself."""
        return None

    def node_facts(self, name: str) -> Json:
        """What the ledger does not know about a node, for people."""
        return {}


class NodeDocument(NamedTuple):
    """A node of the page."""

    body: bytes
    sums: Sums


def render_node(shown: ShownCluster, name: str) -> NodeDocument | None:
    """None if the node has neither cards nor a problem."""
    view = shown.ledger.node(name)
    return None if view is None else _Node(shown, name, view).document()


class _Node:
    """One node, while it is rendered."""

    def __init__(self, shown: ShownCluster, name: str, view: NodeInfo) -> None:
        self._shown = shown
        self._name = name
        self._view = view
        self._rules = shown.ledger.rules
        self._devices = shown.ledger.devices(name)
        self._sums = Sums()
        self._pods: dict[str, list[Any]] = {}
        """by uid"""
        self._slices: dict[str, list[list[Any]]] = {}
        """by card"""

    def document(self) -> NodeDocument:
        for entry in self._shown.ledger.pods_on(self._name):
            if entry.holdings:
                self._add_holder(entry)
        for found in self._slices.values():
            found.sort(key=lambda one: (-one[1], *self._pods[one[0]][:2], one[0]))
        groups, claims, problem = nvlink_groups(self._devices), self._claims(), self._view.facts.problem
        cards = [self._card(card, groups) for card in self._view.cards]
        for card, document in zip(self._view.cards, cards, strict=True) if claims else ():
            document.append(claims.get(card.device.uuid, []))
        if not problem:
            count_room(self._sums, self._view.cards, groups, self._rules)
        return NodeDocument(encode({"problem": problem, "cards": cards, "pods": self._pods}), self._sums)

    def _add_holder(self, entry: Holder) -> None:
        """A pod, or what else holds slices, with its slices."""
        facts, uid = entry.facts, entry.facts.uid
        users = sorted_users(self._shown.users_of, facts) if kind_of(facts) is HolderKind.CLAIM else []
        uids = [user.uid for user in users] or [uid]
        origin, state = self._shown.origin(uids[0]), entry.state.value
        if entry.state is GrantState.BOUND and self._shown.is_handing_over(uid):
            state = "handing-over"
        document = [facts.namespace, facts.name, origin.kind, origin.name, state, origin.since]
        if kind_of(facts) is HolderKind.CLAIM:
            document[1:4] = [users[0].name if users else facts.name, CLAIM, facts.name]
        if origin.gang:
            document.append(origin.gang)
        elif gang := held_gang(facts):
            document[2:] = ["Gang", gang, HELD, None, gang, self._shown.held_until(uid)]
        self._pods[uid] = document
        if origin.since is not None and origin.created is not None:
            self._sums.waits[max(int(origin.since - origin.created), 0)] += 1
        for uuid, holding in entry.holdings.items():
            measured = self._shown.measurements.of_pods(uids, uuid) or NOT_MEASURED
            self._add_slice(uid, facts.namespace, uuid, holding, measured)

    def _add_slice(self, uid: str, namespace: str, uuid: str, holding: Holding, measured: Utilization) -> None:
        use, device, cores = holding.use, self._devices[uuid], self._cores(holding)
        profiles = "+".join(slot.profile for slot in holding.mig) if holding.mig else ""
        found = [uid, use.memory, cores, use.slots, measured.memory_mib, measured.percent, profiles]
        self._slices.setdefault(uuid, []).append(found)
        share = share_of(use, device, self._rules.get(device.vendor))
        self._sums.count_slice((namespace, device.model), Share(use.memory, cores, share), measured)

    def _claims(self) -> dict[str, list[Json]]:
        """What nominated pods and gangs claim of the node's cards, by uuid: for whom, how much, until when, and which
        pods leave for it."""
        claims: dict[str, list[Json]] = {}
        ledger = self._shown.ledger
        for nomination in ledger.nominations.on_node(self._name):
            facts = nomination.facts
            leaving = sorted(uid for uid in nomination.victims if ledger.pod(uid) is not None)
            for uuid, holding in nomination.holdings.items():
                claims.setdefault(uuid, []).append(
                    {
                        "uid": facts.uid,
                        "namespace": facts.namespace,
                        "name": held_gang(facts) or facts.name,
                        "isGang": bool(held_gang(facts)),
                        "memory": holding.use.memory,
                        "cores": self._cores(holding),
                        "until": self._shown.held_until(facts.uid),
                        "leaving": leaving,
                    }
                )
        return claims

    def _cores(self, holding: Holding) -> int:
        return count_cores(self._rules.get(holding.vendor), holding.use.cores)

    def _card(self, card: Card, groups: Mapping[str, str]) -> list[Any]:
        device = card.device
        cores = count_cores(self._rules.get(device.vendor), device.cores)
        self._sums.count_card(device.model, device.memory, cores)
        measured = self._shown.measurements.cards.get((self._name, device.uuid), NOT_MEASURED)
        return [
            device.index,
            device.uuid,
            device.model,
            device.mode,
            device.memory,
            cores,
            device.slots,
            card_state(card),
            groups.get(device.uuid, ""),
            device.numa,
            self._slices.get(device.uuid, ()),
            measured.memory_mib,
            measured.percent,
        ]


def nvlink_groups(devices: Mapping[str, Device]) -> dict[str, str]:
    """By uuid: the name of the group of cards that NVLinks connect."""

    def near(uuid: str) -> list[str]:
        return [other for other, score in devices[uuid].links.items() if score >= NVLINK_SCORE and other in devices]

    return {uuid: f"NVLink {number}" for uuid, number in linked_groups(devices, near).items()}
