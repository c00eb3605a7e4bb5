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
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tessera.core.fit.topology import linked_groups
from tessera.core.ledger.holders import GrantState, Holder, HolderKind, held_gang, kind_of
from tessera.core.ledger.holdings import Holding
from tessera.core.ledger.ledger import Ledger
from tessera.core.model.devices import Device
from tessera.core.model.node_info import Card
from tessera.inspect.dashboard.documents import encode
from tessera.inspect.dashboard.pods import PodOrigin
from tessera.inspect.dashboard.totals import Sums, count_room
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


class ModelTable:
    """The models of cards; documents refer to them by position."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._positions: dict[str, int] = {}

    def position(self, name: str) -> int:
        found = self._positions.get(name)
        if found is None:
            found = self._positions[name] = len(self.names)
            self.names.append(name)
        return found


class NodeRenderer:
    """Renders nodes of one cluster."""

    def __init__(self, shown: ShownCluster) -> None:
        self.models = ModelTable()
        self._shown = shown
        self._groups: dict[str, tuple[Mapping[str, Device], dict[str, str]]] = {}

    def render(self, name: str) -> NodeDocument | None:
        """None if the node has neither cards nor a problem."""
        ledger = self._shown.ledger
        view = ledger.node(name)
        if view is None:
            self._groups.pop(name, None)
            return None
        sums = Sums()
        pods, slices = self._holders(name, sums)
        groups, claims = self._groups_of(name), self._claims(name)
        cards = [self._card(name, card, slices.get(card.device.uuid, ()), groups, sums) for card in view.cards]
        for card, document in zip(view.cards, cards, strict=True) if claims else ():
            document.append(claims.get(card.device.uuid, []))
        if not view.facts.problem:
            count_room(sums, view.cards, self.models.position, groups, ledger.rules)
        return NodeDocument(encode({"problem": view.facts.problem, "cards": cards, "pods": pods}), sums)

    def _holders(self, name: str, sums: Sums) -> tuple[Json, dict[str, list[list[Any]]]]:
        """The node's pods by uid, and their slices by card."""
        pods: dict[str, list[Any]] = {}
        slices: dict[str, list[list[Any]]] = {}
        for entry in self._shown.ledger.pods_on(name):
            if not entry.holdings:
                continue
            facts, uid = entry.facts, entry.facts.uid
            users = sorted_users(self._shown.users_of, facts) if kind_of(facts) is HolderKind.CLAIM else []
            uids = [user.uid for user in users] or [uid]
            pods[uid], waited = self._pod(entry, uids[0], [user.name for user in users])
            if waited is not None:
                sums.waits[waited] += 1
            for uuid, holding in entry.holdings.items():
                measured = self._shown.measurements.of_pods(uids, uuid) or NOT_MEASURED
                self._count(name, facts.namespace, uuid, holding, measured, sums)
                slices.setdefault(uuid, []).append(self._slice(uid, holding, measured))
        for found in slices.values():
            found.sort(key=lambda one: (-one[1], *pods[one[0]][:2], one[0]))
        return pods, slices

    def _pod(self, entry: Holder, uid: str, users: Sequence[str]) -> tuple[list[Any], int | None]:
        """The document of what holds slices, and how many seconds it waited for them. `uid` is that of the pod that
        uses them."""
        facts, state = entry.facts, entry.state.value
        if entry.state is GrantState.BOUND and self._shown.is_handing_over(facts.uid):
            state = "handing-over"
        kind, owner, since, created, gang = self._shown.origin(uid)
        document = [facts.namespace, facts.name, kind, owner, state, since]
        if kind_of(facts) is HolderKind.CLAIM:
            document[1:4] = [users[0] if users else facts.name, CLAIM, facts.name]
        if gang:
            document.append(gang)
        elif holder := held_gang(facts):
            document[2:] = ["Gang", holder, HELD, None, holder, self._shown.held_until(facts.uid)]
        return document, max(int(since - created), 0) if since is not None and created is not None else None

    def _claims(self, name: str) -> dict[str, list[Json]]:
        """What nominated pods and gangs claim of the node's cards, by uuid: for whom, how much, until when, and which
        pods leave for it."""
        claims: dict[str, list[Json]] = {}
        ledger = self._shown.ledger
        for nomination in ledger.nominations.on_node(name):
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
        return count_cores(self._shown.ledger.rules.get(holding.vendor), holding.use.cores)

    def _slice(self, uid: str, holding: Holding, measured: Utilization) -> list[Any]:
        use = holding.use
        profiles = "+".join(slot.profile for slot in holding.mig) if holding.mig else ""
        return [uid, use.memory, self._cores(holding), use.slots, measured.memory_mib, measured.percent, profiles]

    def _count(self, name: str, namespace: str, uuid: str, holding: Holding, measured: Utilization, sums: Sums) -> None:
        device = self._shown.ledger.devices(name)[uuid]
        share = share_of(holding.use, device, self._shown.ledger.rules.get(device.vendor))
        key = namespace, self.models.position(device.model)
        sums.count_slice(key, holding.use.memory, self._cores(holding), share, measured)

    def _card(
        self, name: str, card: Card, slices: Sequence[list[Any]], groups: Mapping[str, str], sums: Sums
    ) -> list[Any]:
        device = card.device
        model = self.models.position(device.model)
        cores = count_cores(self._shown.ledger.rules.get(device.vendor), device.cores)
        sums.count_card(model, device.memory, cores)
        measured = self._shown.measurements.cards.get((name, device.uuid), NOT_MEASURED)
        return [
            device.index,
            device.uuid,
            model,
            device.mode,
            device.memory,
            cores,
            device.slots,
            card_state(card),
            groups.get(device.uuid, ""),
            device.numa,
            slices,
            measured.memory_mib,
            measured.percent,
        ]

    def _groups_of(self, name: str) -> dict[str, str]:
        """NVLink groups by uuid; found again only when the node's registration has changed."""
        devices = self._shown.ledger.devices(name)
        known = self._groups.get(name)
        if known is None or known[0] is not devices:
            known = self._groups[name] = devices, nvlink_groups(devices)
        return known[1]


def nvlink_groups(devices: Mapping[str, Device]) -> dict[str, str]:
    """By uuid: the name of the group of cards that NVLinks connect."""

    def near(uuid: str) -> list[str]:
        return [other for other, score in devices[uuid].links.items() if score >= NVLINK_SCORE and other in devices]

    return {uuid: f"NVLink {number}" for uuid, number in linked_groups(devices, near).items()}
