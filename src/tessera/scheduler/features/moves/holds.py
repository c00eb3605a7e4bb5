"""Places that are held because pods are moved: asked for by annotations of nodes (`wire.moves`).

    asked: an annotation of the node
      │    └──▶ refused: it is not free
      ▼
    held in the ledger ──▶ taken by the next pod of the workload, or by the pod that waits for it
           └─────────────▶ released: the annotation is gone, or the time is over

The ledger's book of holds (`core.holders`) is the record: a reservation for a successor; or a nomination over the pods
that are moved away, for the pod that waits. That one is woken once they have left. Annotations are answered while this
replica decides. What an earlier process has answered with `held` is held again before the first decision. How long a
place is asked for is read once, when the annotation is first seen: a wall clock that is set neither ends a hold nor
makes it last.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from typing import Any

import structlog
from msgspec import structs

from tessera.core.devices import MIG, MigPlacement, MigSlot
from tessera.core.grants import Grant, Span
from tessera.core.holders import Holder, HolderKind, move_hold_uid, owner_of
from tessera.core.holdings import Holding, PodFacts, holdings
from tessera.core.ledger import Ledger
from tessera.core.node_info import Card, NodeInfo
from tessera.core.relocation import cards_of
from tessera.core.requests import Role
from tessera.kube.errors import KubeError
from tessera.scheduler.kube_api import KubeApi
from tessera.scheduler.pod_cycle import PodCycles
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


def obstacle(ledger: Ledger, facts: PodFacts, leaving: frozenset[str]) -> str:
    """Why this place cannot be held as the ledger is, once these pods have left; empty if it can."""
    if leaving and not ledger.nominations.victims_on(facts.node) <= leaving:
        return CONTESTED
    with ledger.begin() as trial:
        for uid in leaving:
            trial.remove(uid)
        return _obstacle_on(ledger, ledger.node(facts.node, nominee=facts.uid), facts)


def _obstacle_on(ledger: Ledger, view: NodeInfo | None, facts: PodFacts) -> str:
    cards = {} if view is None or view.facts.problem else {card.device.uuid: card for card in view.cards}
    parts = holdings(facts, ledger.devices(facts.node), ledger.rules)
    for uuid in cards_of(facts):
        card = cards.get(uuid)
        if card is None or card.cordoned or card.held or not card.device.healthy or parts[uuid].held:
            return f"card {uuid} takes no such pods"
        if not _has_room(card, parts[uuid]):
            return ELSEWHERE
    return ""


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
        cycles: PodCycles,
        api: KubeApi,
        *,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        is_ready: Callable[[], bool],
        make_way: Callable[[str], None],
    ) -> None:
        """`is_ready`: whether this replica decides now, on complete lists. `make_way`: called with the uid of a pod
        before a place is held for it."""
        self._make_way = make_way
        self._ledger = cycles.ledger
        self._clock = cycles.clock
        self._on_room = cycles.unschedulable.on_room
        self._api = api
        self._spawn = spawn
        self._is_ready = is_ready
        self._asked: dict[str, dict[str, MoveHold]] = {}
        """by node, then by the uid of the pod that moves"""
        self._ends: dict[str, dict[str, tuple[float, float]]] = {}
        """the same: the time that the annotation gives, and when that is on the monotonic clock"""
        self._held: set[str] = set()
        """moves for which a place was held and not released: if the ledger has it no more, it was taken"""
        cycles.on_overdue[HolderKind.MOVE] = self._end_overdue

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
                self._release(uid)

    def _end_overdue(self, holder: Holder) -> None:
        """The process that asked has ended by then, or does not need it any more."""
        self._release(owner_of(holder.uid))
        self._on_room()

    def tick(self) -> None:
        """Remove the annotations of what is asked for no longer."""
        now = self._clock.monotonic()
        for name, asked in self._asked.items():
            late = [uid for uid, hold in asked.items() if self._ends[name][uid][1] <= now or self._is_over(uid, hold)]
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
        released = [uid for uid in gone if self._release(uid)]
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
        known, refusal = self._ledger.holder(move_hold_uid(uid)), ""
        if hold.state is HoldState.REFUSED or until <= self._clock.monotonic():
            self._ledger.extend(move_hold_uid(uid), until)
            return
        facts = _facts(node, uid, hold)
        if self._is_over(uid, hold):
            refusal = TAKEN
        elif known is not None and known.facts == facts:
            self._ledger.extend(facts.uid, until)  # A process that goes on where another one was killed asks again.
        elif known is None or is_asked:
            refusal = self._hold(uid, hold, facts, until)
        if is_asked:
            answer = structs.replace(hold, state=HoldState.REFUSED if refusal else HoldState.HELD, reason=refusal)
            self._spawn(self._write(node, {keys.MOVE_PREFIX + uid: encode_move_hold(answer)}))

    def _hold(self, uid: str, hold: MoveHold, facts: PodFacts, until: float) -> str:
        """Hold a place, instead of the one that an older plan has for the same pod; empty, or why not. What was
        promised by an earlier process is held in any case."""
        self._release(uid)
        if hold.pod:
            self._make_way(hold.pod)
        leaving = frozenset(hold.leaving)
        refusal = obstacle(self._ledger, facts, leaving) if hold.state is HoldState.ASKED else ""
        if not refusal and self._ledger.pod(hold.pod) is None:
            workload = Workload(hold.namespace, hold.kind, hold.name) if hold.kind else ""
            self._ledger.hold(facts, taker=hold.pod or workload, deadline=until, victims=leaving)
            self._held.add(uid)
            if hold.pod:
                self._on_room()  # The pod is woken, if its place is free already.
        return refusal

    def _is_over(self, uid: str, hold: MoveHold) -> bool:
        """Whether the place is taken, or the pod that it is held for has another."""
        held = self._ledger.holder(move_hold_uid(uid))
        return uid in self._held if held is None else self._ledger.pod(hold.pod) is not None

    def _release(self, uid: str) -> bool:
        """Give a place back; whether there was one."""
        self._held.discard(uid)
        return self._ledger.release(move_hold_uid(uid))

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
        move_hold_uid(uid),
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
