"""One node as the page shows it, as JSON: its cards with their slices, the pods that hold them; and sums over nodes.

Positional arrays keep a cluster of 40,000 cards small. Names that tenants choose appear as JSON strings only.

    pod    namespace, name, kind and name of the owner, state, since[, gang[, until]]; for a ResourceClaim, the pod
           that uses it (the first, of several), with the claim as its owner
    card   index, uuid, model, mode, memory, cores, slots, state, NVLink group, NUMA node, slices, used, utilization
           [, claims of nominated pods]

A place that is held for a member of a gang is a pod in the state `held`. Claims are not part of the slices: what is
claimed may be held by pods that leave.

Sums are of what cards have, what is granted and used of them, what is free and of no use, and how long pods wait. Each
node's part is added and taken away with its document, so that a change costs one node. Waits are those of the pods that
hold cards now, from creation to binding in whole seconds; `longest` also looks at the pods that still wait.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from tessera.core.fit.topology import linked_groups
from tessera.core.ledger.holders import GrantState, HolderKind, held_gang, kind_of
from tessera.core.ledger.holdings import Holding
from tessera.core.ledger.ledger import Ledger
from tessera.core.model.devices import Device
from tessera.core.model.node_info import Card
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

DIGITS = 2
"""of numbers of cards"""


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


class Totals:
    """Sums over the nodes that have a document."""

    def __init__(self, models: ModelTable) -> None:
        self._models = models
        self._totals: dict[int, Share] = {}
        self._granted: dict[tuple[str, int], Share] = {}
        self._used: Counter[str] = Counter()
        self._measured = 0
        """nodes with figures of the monitor"""
        self._idle = Share()
        self._waits: Counter[int] = Counter()
        self._room = Room()

    def replace(self, before: NodeDocument | None, after: NodeDocument | None) -> None:
        """A node has another document; None if it has none."""
        for document, sign in ((before, -1), (after, 1)):
            if document is None:
                continue
            for model, share in document.totals.items():
                self._totals.setdefault(model, Share()).add(share, sign)
            for key, share in document.granted.items():
                self._granted.setdefault(key, Share()).add(share, sign)
            for namespace, memory in document.used.items():
                self._used[namespace] += sign * memory
            self._measured += sign * bool(document.used)
            self._idle.add(document.idle, sign)
            for seconds, number in document.waits.items():
                self._waits[seconds] += sign * number
        if before is not None:
            self._room.remove(before.room)
        if after is not None:
            self._room.add(after.room)

    def shapes(self) -> list[Json]:
        """How many more of the usual shapes fit."""
        return self._room.document({model: self._models.names[model] for model in self._present()})

    def document(self, asked: Counter[SliceSize], waiting: Iterable[float] = ()) -> Json:
        """`asked` are the slices that waiting pods ask for, `waiting` the seconds that they have waited."""
        by_model: dict[int, Share] = {}
        by_namespace: dict[str, Share] = {}
        for (namespace, model), share in self._granted.items():
            by_model.setdefault(model, Share()).add(share)
            by_namespace.setdefault(namespace, Share()).add(share)
        total, granted = Share(), Share()
        for share in self._totals.values():
            total.add(share)
        for share in by_model.values():
            granted.add(share)
        is_measured = self._measured > 0
        fragmented = self._room.fragmented(asked)
        return {
            "cards": round(total.cards),
            "granted": _amounts(granted),
            "total": _amounts(total),
            "used": _used(sum(self._used.values())) if is_measured else None,
            "fragmented": {"memory": fragmented.memory, "cores": fragmented.cores},
            "idle": _amounts(self._idle) if is_measured else None,
            "waits": _waits(self._waits, waiting),
            "byNamespace": [
                {
                    "namespace": name,
                    "granted": _amounts(share),
                    "used": _used(self._used[name]) if is_measured else None,
                }
                for name, share in sorted(by_namespace.items(), key=lambda one: (-one[1].cards, one[0]))
                if share.cards > 0
            ],
            "byModel": [
                {
                    "model": self._models.names[model],
                    "cards": round(self._totals[model].cards),
                    "granted": _amounts(by_model.get(model, Share())),
                    "total": _amounts(self._totals[model]),
                }
                for model in sorted(self._present(), key=lambda model: self._models.names[model])
            ],
        }

    def _present(self) -> list[int]:
        """The models that there are cards of now."""
        return [model for model, share in self._totals.items() if share.cards > 0.5]


def _amounts(share: Share) -> Json:
    return {"memory": share.memory, "cores": share.cores, "cards": round(max(share.cards, 0.0), DIGITS)}


def _used(memory: int) -> Json:
    """The monitor knows the memory of slices; cores and cards are those of the grants."""
    return {"memory": memory, "cores": 0, "cards": 0.0}


def _waits(waits: Counter[int], waiting: Iterable[float]) -> Json:
    found = sorted((seconds, number) for seconds, number in waits.items() if number > 0)
    count = sum(number for _, number in found)
    longest = max([*waiting, *(seconds for seconds, _ in found[-1:])], default=None)
    return {"count": count, "p50": _quantile(found, 0.5), "p95": _quantile(found, 0.95), "longest": longest}


def _quantile(found: list[tuple[int, int]], part: float) -> int | None:
    """The smallest wait that so many of the pods had at most."""
    need, seen = part * sum(number for _, number in found), 0
    for seconds, number in found:
        seen += number
        if seen >= need:
            return seconds
    return None
