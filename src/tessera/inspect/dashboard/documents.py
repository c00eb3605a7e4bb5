"""One node as the page shows it: its cards with their slices, and the pods that hold them, as JSON.

Positional arrays keep a cluster of 40,000 cards small. Names that tenants choose appear as JSON strings only.

    pod    namespace, name, kind and name of the owner, state, since[, gang[, until]]; for a ResourceClaim, the pod
           that uses it (the first, of several), with the claim as its owner
    card   index, uuid, model, mode, memory, cores, slots, state, NVLink group, NUMA node, slices, used, utilization
           [, claims of nominated pods]

A place that is held for a member of a gang is a pod in the state `held`. Claims are not part of the slices: what is
claimed may be held by pods that leave.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from tessera.core.devices import Device
from tessera.core.holders import GrantState, HolderKind, held_gang, kind_of
from tessera.core.holdings import Holding
from tessera.core.ledger import Ledger
from tessera.core.node_info import Card
from tessera.core.topology import linked_groups
from tessera.inspect.dashboard.room import Room, SliceSize, count_room
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

encode = msgspec.json.Encoder().encode


class PodOrigin(NamedTuple):
    """What the ledger does not know about a pod."""

    kind: str = ""
    """of the workload that it belongs to; empty if no controller made it"""
    name: str = ""
    since: float | None = None
    """unix seconds of its binding"""
    created: float | None = None
    gang: str = ""

    @property
    def owner(self) -> tuple[str, str] | None:
        return (self.kind, self.name) if self.kind else None


NO_ORIGIN = PodOrigin()


class WaitingRow(msgspec.Struct, frozen=True, kw_only=True):
    """A pod or a gang that waits, now or in the past: for what, and why. It goes to the page as it is."""

    uid: str
    namespace: str
    name: str
    owner: tuple[str, str] | None
    """kind and name of the workload"""
    since: float | None
    asks: str
    why: str
    nearest: str = ""
    change: str = ""
    attempts: int | None = None
    """how often it was refused, if that is known"""
    gang: Json | None = None
    """None for a pod"""


class RenderContext:
    """What the page shows of pods beside what the ledger knows. This one knows no more than whose pods they are, as
    for the past of a journal."""

    users_of: ClaimUsers | None = None

    def __init__(self, origin: Callable[[str], PodOrigin]) -> None:
        """`origin` is asked for each pod by uid."""
        self.origin = origin

    @property
    def use(self) -> MeasuredUse:
        """What monitors measure."""
        return NOTHING_MEASURED

    def is_handing_over(self, uid: str) -> bool:
        return False

    def until(self, uid: str) -> float | None:
        """When what is held or claimed for a time ends by itself."""
        return None


@dataclass(slots=True)
class Share:
    """Amounts that were granted, of cards, of a namespace or of a model. `cards` counts by the larger share."""

    memory: int = 0
    cores: int = 0
    cards: float = 0.0

    def add(self, other: Share, sign: int = 1) -> None:
        self.memory += sign * other.memory
        self.cores += sign * other.cores
        self.cards += sign * other.cards


@dataclass(slots=True)
class NodeDocument:
    """A node of the page."""

    body: bytes
    pods: dict[str, bytes]
    """by uid, those that hold a slice; each is a member of a JSON object"""
    totals: dict[int, Share] = field(default_factory=dict)
    """by position of the model: what its cards have"""
    granted: dict[tuple[str, int], Share] = field(default_factory=dict)
    """by namespace and position of the model"""
    used: dict[str, int] = field(default_factory=dict)
    """by namespace: MiB that its containers use, as far as the monitor knows"""
    idle: Share = field(default_factory=Share)
    """what is granted to containers that use nothing"""
    waits: Counter[int] = field(default_factory=Counter)
    """seconds from creation to binding, of the pods"""
    room: Room = field(default_factory=Room)


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
    """Renders nodes of one ledger."""

    def __init__(self, ledger: Ledger, context: RenderContext) -> None:
        self.models = ModelTable()
        self._ledger = ledger
        self._context = context
        self._groups: dict[str, tuple[Mapping[str, Device], dict[str, str]]] = {}

    def render(self, name: str) -> NodeDocument | None:
        """None if the node has neither cards nor a problem."""
        view = self._ledger.node(name)
        if view is None:
            self._groups.pop(name, None)
            return None
        found = NodeDocument(b"", {})
        slices = self._render_pods(name, found)
        groups, claims = self._groups_of(name), self._claims(name)
        cards = [self._card(name, card, slices.get(card.device.uuid, ()), groups, found) for card in view.cards]
        for card, document in zip(view.cards, cards, strict=True) if claims else ():
            document.append(claims.get(card.device.uuid, []))
        if not view.facts.problem:
            count_room(found.room, view.cards, self.models.position, groups, self._ledger.rules)
        found.body = encode({"name": name, "problem": view.facts.problem, "cards": cards})
        return found

    def _render_pods(self, name: str, found: NodeDocument) -> dict[str, list[list[Any]]]:
        """Their slices by card; the pods themselves go into the document."""
        slices: dict[str, list[list[Any]]] = {}
        for entry in self._ledger.pods_on(name):
            if not entry.holdings:
                continue
            facts, uid = entry.facts, entry.facts.uid
            users = sorted_users(self._context.users_of, facts) if kind_of(facts) is HolderKind.CLAIM else []
            for uuid, holding in entry.holdings.items():
                measured = self._context.use.of_pods([user.uid for user in users] or [uid], uuid) or NOT_MEASURED
                self._count(name, facts.namespace, uuid, holding, measured, found)
                slices.setdefault(uuid, []).append(self._slice(uid, holding, measured))
            state = entry.state.value
            if entry.state is GrantState.BOUND and self._context.is_handing_over(uid):
                state = "handing-over"
            kind, owner, since, created, gang = self._context.origin(users[0].uid if users else uid)
            if since is not None and created is not None:
                found.waits[max(int(since - created), 0)] += 1
            document = [facts.namespace, facts.name, kind, owner, state, since]
            if kind_of(facts) is HolderKind.CLAIM:
                document[1:4] = [users[0].name if users else facts.name, CLAIM, facts.name]
            if gang:
                document.append(gang)
            elif holder := held_gang(facts):
                document[2:] = ["Gang", holder, HELD, None, holder, self._context.until(uid)]
            found.pods[uid] = encode({uid: document})[1:-1]
        return slices

    def _claims(self, name: str) -> dict[str, list[Json]]:
        """What nominated pods and gangs claim of the node's cards, by uuid: for whom, how much, until when, and which
        pods leave for it."""
        claims: dict[str, list[Json]] = {}
        for nomination in self._ledger.nominations.on_node(name):
            facts = nomination.facts
            leaving = sorted(uid for uid in nomination.victims if self._ledger.pod(uid) is not None)
            for uuid, holding in nomination.holdings.items():
                _, memory, cores, *_ = self._slice(facts.uid, holding, NOT_MEASURED)
                claims.setdefault(uuid, []).append(
                    {
                        "uid": facts.uid,
                        "namespace": facts.namespace,
                        "name": held_gang(facts) or facts.name,
                        "isGang": bool(held_gang(facts)),
                        "memory": memory,
                        "cores": cores,
                        "until": self._context.until(facts.uid),
                        "leaving": leaving,
                    }
                )
        return claims

    def _slice(self, uid: str, holding: Holding, measured: Utilization) -> list[Any]:
        use = holding.use
        cores = count_cores(self._ledger.rules.get(holding.vendor), use.cores)
        profiles = "+".join(slot.profile for slot in holding.mig) if holding.mig else ""
        return [uid, use.memory, cores, use.slots, measured.memory_mib, measured.percent, profiles]

    def _count(
        self, name: str, namespace: str, uuid: str, holding: Holding, measured: Utilization, found: NodeDocument
    ) -> None:
        device, use = self._ledger.devices(name)[uuid], holding.use
        rules = self._ledger.rules.get(device.vendor)
        cores, share = count_cores(rules, use.cores), share_of(use, device, rules)
        key = namespace, self.models.position(device.model)
        granted = Share(use.memory, cores, share)
        found.room.held[SliceSize(use.memory, cores)] += 1
        found.granted.setdefault(key, Share()).add(granted)
        if measured.memory_mib is not None:
            found.used[namespace] = found.used.get(namespace, 0) + measured.memory_mib
        if measured.is_idle:
            found.idle.add(granted)

    def _card(
        self,
        name: str,
        card: Card,
        slices: Sequence[list[Any]],
        groups: Mapping[str, str],
        found: NodeDocument,
    ) -> list[Any]:
        device = card.device
        model = self.models.position(device.model)
        cores = count_cores(self._ledger.rules.get(device.vendor), device.cores)
        found.totals.setdefault(model, Share()).add(Share(device.memory, cores, 1.0))
        measured = self._context.use.cards.get((name, device.uuid), NOT_MEASURED)
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
        devices = self._ledger.devices(name)
        known = self._groups.get(name)
        if known is None or known[0] is not devices:
            known = self._groups[name] = devices, nvlink_groups(devices)
        return known[1]


def nvlink_groups(devices: Mapping[str, Device]) -> dict[str, str]:
    """By uuid: the name of the group of cards that NVLinks connect."""

    def near(uuid: str) -> list[str]:
        return [other for other, score in devices[uuid].links.items() if score >= NVLINK_SCORE and other in devices]

    return {uuid: f"NVLink {number}" for uuid, number in linked_groups(devices, near).items()}
