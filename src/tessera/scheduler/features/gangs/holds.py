"""The places in the ledger that are kept for members of gangs: how they are found, taken and released.

A hold is a reservation in the ledger under a uid that no pod has, without a deadline: `lifecycle` ends it. A
member takes its hold in one step of the event loop (the hold is released and the pod's own reservation made), so
nothing can come between. Every plan sees what is held for other gangs, so two gangs never hold parts of each other.
The account of the namespace (`accounts`) pays for everything that is held, until it ends or is bound.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Generator, Hashable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from typing import NamedTuple

from tessera.core.gang_demand import GangDemand
from tessera.core.gang_trial import Domains, GangMember, Placed
from tessera.core.gangs import GangMisfit, GangPlan, GangPlanning
from tessera.core.grants import Placement
from tessera.core.requests import PodRequest
from tessera.core.selection import CandidateNames, Candidates, Selected, Selector, Unfinished
from tessera.scheduler.features.gangs.accounts import HoldAccounts, Span, cards_taken
from tessera.scheduler.features.gangs.assignment import take_any_hold, take_hold
from tessera.scheduler.features.gangs.gang import Gang, GangState, Hold, Member
from tessera.scheduler.pod_cycle import CycleState, PodCycles
from tessera.scheduler.unschedulable_pods import fits
from tessera.wire.objects import Node, Workload

HOLD_PREFIX = "gang/"
"""of the uids of holds; no pod's uid has a slash"""
MEMBERS_AT_ONCE = 24
"""placed between two pauses of a plan: 4 ms for one card each, 8 ms for eight"""
PLAN_AGAIN = 3
"""times at once, if members come or go in a pause"""
MAX_EXCHANGED = 8
"""nodes on which the holds of other members may make way for a member"""
UNIQUE_LABELS = frozenset({"kubernetes.io/hostname"})
"""labels that every node has its own value of: not worth the memory, the node's name is the same"""


class Unpaid(NamedTuple):
    """The account of the namespace does not pay for the places."""

    cards: float
    """that they take"""


Planning = Generator[None, None, GangPlan | GangMisfit | Unfinished | Unpaid | None]
"""pauses at each yield; its return value is None if the gang has changed in a pause"""


class NodeLabels:
    """The labels of all nodes. Equal words are kept once, so a node costs a dictionary of pointers."""

    def __init__(self) -> None:
        self._labels: dict[str, dict[str, str]] = {}

    def put(self, node: Node) -> None:
        labels = {sys.intern(key): sys.intern(value) for key, value in node.labels.items() if key not in UNIQUE_LABELS}
        self._labels[node.name] = labels

    def drop(self, name: str) -> None:
        self._labels.pop(name, None)

    def domains(self, label: str) -> Domains | None:
        """The nodes by the value of this label; None if no label is asked for."""
        if not label:
            return None
        if label in UNIQUE_LABELS:
            return Domains(label, {name: name for name in self._labels})
        return Domains(label, {name: labels[label] for name, labels in self._labels.items() if label in labels})


class GangHolds:
    """The holds of all gangs on one ledger."""

    def __init__(self, selector: Selector, cycles: PodCycles, labels: NodeLabels, accounts: HoldAccounts) -> None:
        self.accounts = accounts
        self._selector = selector
        self._cycles = cycles
        self._labels = labels
        self._serial = count(1)
        """of names: a gang may go and come again under its name while its last plan pauses"""
        self._displaced: list[tuple[Gang, Hold]] = []
        """with their new places, which count as soon as the member that takes their old ones is placed"""

    def is_placed(self, uid: str) -> bool:
        """Whether the pod has a placement of its own that the API does not show yet."""
        cycle = self._cycles.get(uid)
        return cycle is not None and cycle.state in (
            CycleState.RESERVED,
            CycleState.BINDING,
            CycleState.UNCERTAIN,
            CycleState.BOUND,
        )

    def unplaced(self, gang: Gang) -> list[Member]:
        """Members that wait for a place."""
        return [member for member in gang.pending() if not self.is_placed(member.request.uid)]

    def plan(self, gang: Gang, asking: Member | None, *, missing: int, work: float = math.inf) -> Planning:
        """Hold places for all members that have none, and for `missing` ones that do not exist yet, in slices.

        These ask for what the `asking` member asks for. Nothing is held if not all required members fit, or the
        account does not pay for it. Pods beyond the size of the gang have no place in its plan: there may be any number
        of them.
        """
        waiting = self.unplaced(gang)
        placed = gang.present() - len(waiting)
        if gang.present() > gang.group.size:
            waiting.sort(key=lambda member: member is not asking)
            del waiting[max(gang.group.size - placed, 1) :]
        members = [GangMember(member.request, _candidates(member, asking)) for member in waiting]
        model = asking or (waiting[0] if waiting else None)
        if model is not None:
            members += [GangMember(_to_come(gang, model.request, i), model.candidates) for i in range(missing)]
        planning = GangPlanning(
            self._selector,
            members,
            required=min(max(gang.required - placed, 0), len(members)),
            domains=self._labels.domains(gang.group.topology),
            work=work,
            name=partial(self.named, gang),
        )
        answer = yield from self._make(gang, planning)
        if isinstance(answer, GangPlan):
            for place, (held, placement) in zip(answer.places, planning.keep(), strict=True):
                self._add(gang, Hold(held.uid, held, placement, place.request.uid))
            if not self.accounts.pays_for(gang.namespace):
                cards = sum(hold.span.cards for found in gang.holds.values() for hold in found if hold.span)
                self.release(gang)
                return Unpaid(cards)
        else:
            planning.take_back()
        return answer

    def _make(self, gang: Gang, planning: GangPlanning) -> Planning:
        """Pauses after so many members, and ends if the gang is another one afterwards."""
        steps, before = planning.steps(), self._state(gang)
        for number in count(1):
            try:
                next(steps)
            except StopIteration as end:
                answer: GangPlan | GangMisfit | Unfinished = end.value
                return answer
            if number % MEMBERS_AT_ONCE == 0:
                planning.pause()
                try:
                    yield
                except GeneratorExit:
                    planning.take_back()
                    raise
                if self._state(gang) != before:
                    return None
                planning.resume()
        raise AssertionError  # the steps end

    def _state(self, gang: Gang) -> Hashable:
        """What must stay as it is while a plan pauses. It has places for members that come, up to those required."""
        return bool(gang.members), gang.state, max(gang.present(), gang.required), gang.required, self._cycles.term

    async def prepare(self, gang: Gang) -> None:
        """Judge the members' shapes on all nodes, between other work: then a plan is quick."""
        for member in {member.request.shape: member for member in self.unplaced(gang)}.values():
            names = self._selector.ledger.node_names()
            candidates = member.candidates or self._selector.candidates(names)
            await fits(self._selector, member.request, candidates)

    def hold(self, gang: Gang, places: Iterable[Placed]) -> bool:
        """Whether the account pays for it; otherwise nothing is held."""
        for request, placement in places:
            self.hold_one(gang, request, placement)
        is_paid = self.accounts.pays_for(gang.namespace)
        if not is_paid:
            self.release(gang)
        return is_paid

    def hold_one(self, gang: Gang, request: PodRequest, placement: Placement, span: Span | None = None) -> None:
        """For the member that asks for it."""
        held = self.named(gang, request)
        self.put(gang, Hold(held.uid, held, placement, request.uid, span))

    def hold_moved(self, gang: Gang, workload: Workload) -> bool:
        """Hold for the gang what is held because pods are moved (`move_holds`): whether it is enough for the gang. That
        is held for its members by name, and taken once all of it is free; or for the successors of its members, which
        are alike because one workload made them."""
        moves, members = self._cycles.moves, self.unplaced(gang)
        if not moves.are_free({member.request.uid for member in members}):
            return False
        for member in members:
            named = member.candidates
            while len(moves) and named and (found := moves.take(workload, member.request, named)) is not None:
                held = self.named(gang, member.request)
                self.put(gang, Hold(held.uid, held, found[1]))
        if gang.free_holds and gang.free_holds + gang.present() - len(self.unplaced(gang)) >= gang.required:
            return True
        self.release(gang)
        return False

    def named(self, gang: Gang, request: PodRequest) -> PodRequest:
        """The request under the next name of the gang's holds and nominations."""
        uid = f"{HOLD_PREFIX}{gang.namespace}/{gang.group.name}/{next(self._serial)}"
        return request.called(uid=uid, namespace=gang.namespace, name=f"{gang.group.name} (held)")

    def put(self, gang: Gang, hold: Hold) -> None:
        self._cycles.hold(hold.request, hold.placement)
        self._add(gang, hold)

    def _add(self, gang: Gang, hold: Hold) -> None:
        """What is in the ledger: the account pays for it from now on, if it does not already."""
        if hold.span is None:
            entry = self._cycles.ledger.pod(hold.uid)
            devices = self._cycles.ledger.devices(hold.placement.node)
            cards = cards_taken(entry.holdings, devices) if entry is not None else 0.0
            hold.span = self.accounts.open(gang.namespace, cards)
        gang.put(hold)

    def _close(self, gang: Gang, span: Span | None, *, bound: bool = False) -> None:
        if span is not None:
            self.accounts.close(gang.namespace, span, bound=bound)

    def _hand_over(self, gang: Gang, uid: str, span: Span | None) -> None:
        """A member has got a place for what was held. It is paid for until the gang is bound; a member of a gang that
        is bound already waits for no other."""
        if span is None:
            return
        if gang.state is GangState.PLANNED:
            self.drop_taken(gang, uid)
            gang.taken[uid] = span
        else:
            self._close(gang, span, bound=True)

    def drop_taken(self, gang: Gang, uid: str) -> None:
        """What the member had reserved is free again."""
        self._close(gang, gang.taken.pop(uid, None))

    def end_taken(self, gang: Gang, *, bound: bool) -> None:
        """The plan has ended: its members are bound, or given up."""
        taken, gang.taken = gang.taken, {}
        for span in taken.values():
            self._close(gang, span, bound=bound)

    def take_back(self, gang: Gang, uid: str) -> None:
        """The bind of a member that had its hold has waited too long: it is a hold of the gang again."""
        cycle = self._cycles.get(uid)
        if cycle is None or cycle.state is not CycleState.RESERVED or cycle.placement is None:
            return
        placement = cycle.placement
        self._cycles.give_up(cycle)
        self.put_back(gang.members[uid].request, placement, gang)

    def put_back(self, request: PodRequest, placement: Placement, gang: Gang | None) -> None:
        """A member has given its reservation up: while the gang has a plan, the place is a hold of it again."""
        span = gang.taken.pop(request.uid, None) if gang is not None else None
        if gang is None:
            return
        if gang.state not in (GangState.WAITING, GangState.NOMINATED):
            self.hold_one(gang, gang.members[request.uid].request, placement, span)
        else:
            self._close(gang, span)

    def demand(self, gang: Gang, *, priority: int) -> GangDemand:
        """What the gang needs, for a search of victims. All members exist."""
        waiting = self.unplaced(gang)
        return GangDemand(
            [GangMember(member.request, member.candidates) for member in waiting],
            required=min(gang.required, len(waiting)),
            priority=priority,
            free=frozenset(hold.uid for found in gang.holds.values() for hold in found),
            fitting=gang.places or (),
            domains=self._labels.domains(gang.group.topology),
        )

    def take(self, gang: Gang, request: PodRequest, named: CandidateNames) -> Placement | None:
        """A placement on the node of a hold, if it is one of these nodes; the hold is free for the member from now on.

        The node may have changed since it was planned, so the plain rule decides again. A hold that does not fit any
        more is dropped.
        """
        while (hold := take_hold(gang, request, named)) is not None:
            self._cycles.release_hold(hold.uid)
            placement = self._selector.ledger.fit(request, hold.placement.node)
            if isinstance(placement, Placement):
                self._hand_over(gang, request.uid, hold.span)
                return placement
            self._close(gang, hold.span)
        return None

    def exchange(
        self, gang: Gang, request: PodRequest, named: CandidateNames, *, at_any_cost: bool = False
    ) -> Placement | None:
        """A place on one of these nodes instead of a hold on another one; None if that is not possible.

        Holds of other members on it make way if there is room for them elsewhere, or `at_any_cost`. `settle` follows
        once the member is placed.
        """
        own = take_any_hold(gang, request)
        if own is not None:
            self._cycles.release_hold(own.uid)
        answer = self._selector.select(request, named)
        span = own.span if own is not None else None
        if isinstance(answer, Selected):
            self._hand_over(gang, request.uid, span or self._asked(gang, request))
            return answer.placement
        nodes = sorted({hold.placement.node for found in gang.holds.values() for hold in found})
        for node in [name for name in nodes if name in named][:MAX_EXCHANGED]:
            placement = self._displace(gang, request, node, at_any_cost=at_any_cost)
            if placement is not None:
                self._hand_over(gang, request.uid, span or self._asked(gang, request))
                return placement
        if own is not None:
            self.put(gang, own)
        return None

    def _displace(self, gang: Gang, request: PodRequest, node: str, *, at_any_cost: bool) -> Placement | None:
        """A place on the node instead of the holds there."""
        displaced = gang.take_from(node)
        for hold in displaced:
            self._cycles.release_hold(hold.uid)
        placement = self._selector.ledger.fit(request, node)
        moved = []
        if isinstance(placement, Placement):
            taken = self.named(gang, request)
            self._cycles.hold(taken, placement)
            for hold in displaced:
                again = self._selector.select(hold.request, self._candidates_for(gang, hold))
                if isinstance(again, Selected):
                    self._cycles.hold(hold.request, again.placement)
                    moved.append(replace(hold, placement=again.placement))
            self._cycles.release_hold(taken.uid)
        for hold in moved:
            self._cycles.release_hold(hold.uid)
        if isinstance(placement, Placement) and (at_any_cost or len(moved) == len(displaced)):
            # The member is decided first, on the ledger without them: a card whose cores are all taken refuses it.
            self._displaced = [(gang, hold) for hold in moved]
            stay = {hold.uid for hold in moved}
            for hold in displaced:
                if hold.uid not in stay:
                    self._close(gang, hold.span)
            return placement
        for hold in displaced:
            self.put(gang, hold)
        return None

    def _asked(self, gang: Gang, request: PodRequest) -> Span:
        """For a member that gets a place without a hold: whole cards, since it is not in the ledger yet."""
        return self.accounts.open(gang.namespace, sum(asked.count for _, asked in request.requests))

    def _candidates_for(self, gang: Gang, hold: Hold) -> Candidates:
        member = gang.members.get(hold.member)
        known = None if member is None else member.known_candidates
        return self._selector.candidates(self._selector.ledger.node_names() if known is None else known.names)

    def settle(self) -> None:
        """The member is placed: hold the new places of those that have made way for it."""
        displaced, self._displaced = self._displaced, []
        for gang, hold in displaced:
            self.put(gang, hold)

    def release(self, gang: Gang) -> None:
        holds: Sequence[Hold] = [hold for found in gang.holds.values() for hold in found]
        gang.holds.clear()
        for hold in holds:
            self._cycles.release_hold(hold.uid)
            self._close(gang, hold.span)
        if holds:
            self._cycles.unschedulable.on_room()

    def pay_for_nominations(self, gang: Gang) -> None:
        """From now on, for what is free of the places that the gang is nominated for. What victims still hold is not
        held for the gang."""
        span, gang.claim = gang.claim, None
        self._close(gang, span)
        if gang.nominations:
            gang.claim = self.accounts.open(gang.namespace, self._claimed(gang))

    def _claimed(self, gang: Gang) -> float:
        ledger = self._cycles.ledger
        found: dict[tuple[str, str], float] = {}
        for nomination in gang.nominations:
            claim = ledger.nominations.get(nomination.uid)
            for uuid, holding in claim.holdings.items() if claim is not None else ():
                part = cards_taken({uuid: holding}, ledger.devices(nomination.placement.node))
                found[nomination.placement.node, uuid] = found.get((nomination.placement.node, uuid), 0.0) + part
        for uid in gang.victims:
            entry = ledger.pod(uid)
            for uuid, holding in entry.holdings.items() if entry is not None else ():
                if entry is not None and (entry.facts.node, uuid) in found:
                    part = cards_taken({uuid: holding}, ledger.devices(entry.facts.node))
                    found[entry.facts.node, uuid] -= part
        return sum(max(0.0, cards) for cards in found.values())

    def give_up(self, gang: Gang) -> None:
        """Release the holds, and what members have reserved and is not being written."""
        self.release(gang)
        self.end_taken(gang, bound=False)
        for uid in gang.members:
            cycle = self._cycles.get(uid)
            if cycle is not None and cycle.state is CycleState.RESERVED:
                self._cycles.give_up(cycle)


def _candidates(member: Member, asking: Member | None) -> Candidates | None:
    """Its own, if it has asked before; else those of the asking member, if both want the same."""
    known = member.known_candidates
    if known is None and asking is not None and member.request.shape == asking.request.shape:
        return asking.candidates
    return known


def _to_come(gang: Gang, model: PodRequest, position: int) -> PodRequest:
    return model.called(uid=f"to-come/{position}", namespace=gang.namespace, name=f"{gang.group.name}-{position}")
