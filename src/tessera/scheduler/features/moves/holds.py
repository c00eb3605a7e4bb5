"""Places that are held because pods are moved: who may take them, and how they end.

    asked: an annotation of the node
      │    └──▶ refused: it is not free
      ▼
    held in the ledger ──▶ taken by the next pod of the workload, or by the pod that waits for it
           └─────────────▶ released: the annotation is gone, or the time is over

`HeldMoves` is the record, under a uid that no pod has: a reservation in the ledger, for a successor; or a nomination
(`core.nominations`) over the pods that are moved away, for the pod that waits. That one is woken once they have left.
`MoveHolds` follows the annotations (`wire.moves`) and answers them while this replica decides. What an earlier process
has answered with `held` is held again before the first decision. How long a place is asked for is read once, when the
annotation is first seen: a wall clock that is set neither ends a hold nor makes it last.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Iterator
from dataclasses import dataclass, replace
from typing import Any

import structlog
from msgspec import structs

from tessera.core.devices import MIG, MigPlacement, MigSlot
from tessera.core.grants import Grant, Placement, Span
from tessera.core.holdings import Holding, PodFacts, holdings
from tessera.core.ledger import GrantState, Ledger
from tessera.core.node_info import Card
from tessera.core.relocation import cards_of, fit_held, hold_uid
from tessera.core.requests import PodRequest, Role
from tessera.core.selection import CandidateNames
from tessera.kube.errors import KubeError
from tessera.scheduler.clock import Clock
from tessera.scheduler.kube_api import KubeApi
from tessera.wire import keys
from tessera.wire.errors import WireError
from tessera.wire.moves import HeldCard, HoldState, MoveHold, decode_move_hold, encode_move_hold
from tessera.wire.objects import Node, Workload

log = structlog.get_logger(__name__)

ELSEWHERE = "the cards are not free any more"
TAKEN = "the pod that it is held for has its place already"
CONTESTED = "pods are evicted there for another pod"
LONGEST_S = 86_400.0
"""that a place is held, whatever the annotation says"""


@dataclass(frozen=True, slots=True)
class Held:
    """One place."""

    facts: PodFacts
    workload: Workload
    until: float
    """on the monotonic clock"""
    pod: str = ""
    """uid of the pod that it is held for; empty: any of the workload"""
    leaving: frozenset[str] = frozenset()
    """uids of pods that are moved first: they have the place, or what another member of the gang waits for"""


class HeldMoves:
    """The places that are held now, by the uid of the pod that moves."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._held: dict[str, Held] = {}
        self._taken: set[str] = set()
        """moves whose successor has its place, while the annotation is there"""

    def __len__(self) -> int:
        return len(self._held)

    def get(self, uid: str) -> Held | None:
        return self._held.get(uid)

    def is_over(self, uid: str) -> bool:
        """Whether the place is taken, or the pod that it is held for has another."""
        held = self._held.get(uid)
        return uid in self._taken or (held is not None and self.has_place(held.pod))

    def has_place(self, pod: str) -> bool:
        """Whether this pod needs no place any more, as after a restart that follows its bind."""
        return self._ledger.pod(pod) is not None

    def obstacle(self, held: Held) -> str:
        """Why this cannot be held as the ledger is; empty if it can."""
        facts, ledger = held.facts, self._ledger
        if held.leaving and not ledger.nominations.victims_on(facts.node) <= held.leaving:
            return CONTESTED
        after = ledger.node_after(facts.node, held.leaving, claimant=facts.uid) if held.leaving else None
        view = after or ledger.node(facts.node)
        cards = {} if view is None or view.facts.problem else {card.device.uuid: card for card in view.cards}
        parts = holdings(facts, ledger.devices(facts.node), ledger.rules)
        for uuid in cards_of(facts):
            card = cards.get(uuid)
            if card is None or card.cordoned or card.held or not card.device.healthy or parts[uuid].held:
                return f"card {uuid} takes no such pods"
            if not _has_room(card, parts[uuid]):
                return ELSEWHERE
        return ""

    def hold(self, uid: str, held: Held) -> None:
        self._held[uid] = held
        if held.leaving:
            self._ledger.nominate(held.facts, held.leaving)
        else:
            self._ledger.put_pod(held.facts, GrantState.RESERVED)

    def extend(self, uid: str, until: float) -> None:
        """Hold a place for longer, or for less long."""
        held = self._held.get(uid)
        if held is not None:
            self._held[uid] = replace(held, until=until)

    def release(self, uid: str) -> bool:
        """Give a place back; whether there was one."""
        self._taken.discard(uid)
        held = self._held.pop(uid, None)
        if held is None:
            return False
        return self._ledger.withdraw(held.facts.uid) or self._ledger.give_up(held.facts.uid)

    def take(
        self, workload: Workload, request: PodRequest, named: CandidateNames
    ) -> tuple[PodRequest, Placement] | None:
        """The place that is held for this pod or its workload, on one of these nodes, with the request that leads to
        it; it is free for the pod from now on.

        The plain rule decides again: on the cards that were held, else on their node. A place that does not fit any
        more is dropped.
        """
        for uid, held in sorted(self._held.items()):
            is_meant = held.pod == request.uid if held.pod else bool(workload.kind) and held.workload == workload
            if not is_meant or held.facts.node not in named or not self._is_free(held):
                continue
            self.release(uid)
            self._taken.add(uid)
            found = fit_held(self._ledger, request, held.facts)
            if found is not None:
                return found
        return None

    def are_free(self, pods: Collection[str]) -> bool:
        """Whether all pods have left that hold places of these pods; true if these have none."""
        return all(self._is_free(held) for held in self._held.values() if held.pod in pods)

    def has_any_for(self, pods: Collection[str]) -> bool:
        """Whether moves are made for one of these pods."""
        return any(held.pod in pods for held in self._held.values())

    def ready(self) -> list[str]:
        """Uids of pods whose places are free for them."""
        return sorted(held.pod for held in self._held.values() if held.pod and self._is_free(held))

    def _is_free(self, held: Held) -> bool:
        return all(self._ledger.pod(uid) is None for uid in held.leaving)

    def overdue(self, now: float) -> list[str]:
        return sorted(uid for uid, held in self._held.items() if held.until <= now)


def _has_room(card: Card, part: Holding) -> bool:
    device, use = card.device, part.use
    if device.mode == MIG:
        return not any(new.placement.overlaps(old.placement) for new in part.mig for old in card.mig)
    return (
        card.used + use.slots <= device.slots
        and card.used_memory + use.memory <= device.memory
        and card.used_cores + use.cores <= device.cores
    )


class MoveHolds:
    """Follows what nodes say about moves."""

    def __init__(
        self,
        moves: HeldMoves,
        api: KubeApi,
        *,
        clock: Clock,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        is_ready: Callable[[], bool],
        on_room: Callable[[], None],
        make_way: Callable[[str], None],
    ) -> None:
        """`is_ready`: whether this replica decides now, on complete lists. `make_way`: called with the uid of a pod
        before a place is held for it, to release what is held for its gang in other ways."""
        self._moves = moves
        self._api = api
        self._clock = clock
        self._spawn = spawn
        self._is_ready = is_ready
        self._on_room = on_room
        self._make_way = make_way
        self._asked: dict[str, dict[str, MoveHold]] = {}
        """by node, then by the uid of the pod that moves"""
        self._ends: dict[str, dict[str, tuple[float, float]]] = {}
        """the same: the time that the annotation gives, and when that is on the monotonic clock"""

    def put_node(self, node: Node) -> None:
        found: dict[str, MoveHold] = {}
        for key, text in node.annotations.items():
            if key.startswith(keys.MOVE_PREFIX):
                try:
                    found[key.removeprefix(keys.MOVE_PREFIX)] = decode_move_hold(text)
                except WireError as error:
                    log.warning("hold not read", node=node.name, annotation=key, error=str(error))
        self._replace(node.name, found)

    def drop_node(self, name: str) -> None:
        self._replace(name, {})

    def recover(self) -> None:
        """Decisions can be made from now on: first of all, hold what was promised."""
        for name, asked in self._asked.items():
            for uid, hold in asked.items():
                self._answer(name, uid, hold)

    def end_term(self) -> None:
        """This replica does not decide any more; the annotations stay for the one that does."""
        for asked in self._asked.values():
            for uid in asked:
                self._moves.release(uid)

    def end_overdue(self) -> None:
        """Release what was held for too long, and remove what is asked for no longer; called at every tick. The process
        that asked has ended by then, or does not need it any more."""
        now = self._clock.monotonic()
        overdue = self._moves.overdue(now)
        for uid in overdue:
            self._moves.release(uid)
        if overdue:
            self._on_room()
        for name, asked in self._asked.items():
            late = [uid for uid in asked if self._ends[name][uid][1] <= now or self._moves.is_over(uid)]
            if late and self._is_ready():
                self._spawn(self._write(name, {keys.MOVE_PREFIX + uid: None for uid in late}))

    def _replace(self, name: str, found: dict[str, MoveHold]) -> None:
        gone = [uid for uid in self._asked.get(name, {}) if uid not in found]
        if found:
            known = self._ends.get(name, {})
            self._ends[name] = {uid: self._end(hold, known.get(uid)) for uid, hold in found.items()}
            self._asked[name] = found
        else:
            self._ends.pop(name, None)
            self._asked.pop(name, None)
        released = [uid for uid in gone if self._moves.release(uid)]
        if released:
            self._on_room()
        if self._is_ready():
            for uid, hold in found.items():
                self._answer(name, uid, hold)

    def _end(self, hold: MoveHold, known: tuple[float, float] | None) -> tuple[float, float]:
        if known is not None and known[0] == hold.until:
            return known
        return hold.until, self._clock.monotonic() + min(hold.until - self._clock.now(), LONGEST_S)

    def _answer(self, node: str, uid: str, hold: MoveHold) -> None:
        _, until = self._ends[node][uid]
        is_asked = hold.state is HoldState.ASKED
        if hold.state is HoldState.REFUSED or until <= self._clock.monotonic():
            self._moves.extend(uid, until)
            return
        workload = Workload(hold.namespace, hold.kind, hold.name)
        held = Held(_facts(node, uid, hold), workload, until, hold.pod, frozenset(hold.leaving))
        known, obstacle = self._moves.get(uid), ""
        if self._moves.is_over(uid):
            obstacle = TAKEN
        elif known is not None and known.facts == held.facts:
            self._moves.extend(uid, until)  # A process that goes on where another one was killed asks again.
        elif known is None or is_asked:
            obstacle = self._hold(uid, held, is_promised=not is_asked)
        if is_asked:
            answer = structs.replace(hold, state=HoldState.REFUSED if obstacle else HoldState.HELD, reason=obstacle)
            self._spawn(self._write(node, {keys.MOVE_PREFIX + uid: encode_move_hold(answer)}))

    def _hold(self, uid: str, held: Held, *, is_promised: bool) -> str:
        """Hold a place, instead of the one that an older plan has for the same pod; empty, or why not. What was
        promised by an earlier process is held in any case."""
        self._moves.release(uid)
        if held.pod:
            self._make_way(held.pod)
        obstacle = "" if is_promised else self._moves.obstacle(held)
        if not obstacle and not self._moves.has_place(held.pod):
            self._moves.hold(uid, held)
            if held.pod:
                self._on_room()  # The pod is woken, if its place is free already.
        return obstacle

    async def _write(self, node: str, annotations: dict[str, str | None]) -> None:
        try:
            await self._api.annotate_node(node, annotations)
        except KubeError as error:
            log.warning("hold not answered", node=node, error=str(error))


def _facts(node: str, uid: str, hold: MoveHold) -> PodFacts:
    """In no namespace: the pod that moves counts against its quotas until it is gone, and then its successor does."""
    by_vendor: dict[str, list[Grant]] = {}
    for card in hold.cards:
        by_vendor.setdefault(card.vendor, []).extend(_grants(card))
    return PodFacts(
        hold_uid(uid),
        "",
        f"{hold.name} (moves here)",
        node,
        (Span(Role.APP),),
        {vendor: (tuple(grants),) for vendor, grants in by_vendor.items()},
    )


def _grants(card: HeldCard) -> Iterator[Grant]:
    """One, or one for each instance: the first of them has the amounts of all."""
    whole = Grant(card.uuid, card.vendor, card.memory, card.cores, slots=card.slots)
    slots = [MigSlot(each.profile, MigPlacement(each.start, each.size)) for each in card.mig]
    yield replace(whole, mig=slots[0]) if slots else whole
    yield from (Grant(card.uuid, card.vendor, 0, 0, slots=0, mig=slot) for slot in slots[1:])
