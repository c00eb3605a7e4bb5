"""The places in the ledger that are kept for members of gangs: how they are found, taken and released.

The ledger's book has them (`core.ledger.holders`), with the gang as owner. A member takes its hold in one step of the
event loop (the hold is released and the pod's own reservation made), so nothing can come between. Every plan sees what
is held for other gangs, so two gangs never hold parts of each other. The account of the namespace (`accounts`) pays for
everything that is held, until it ends or is bound.

A plan has a hold for each member. If kube-scheduler does not allow the node of a member's hold, members that ask for
the same exchange their holds, each within the candidates that it had last. Members that have taken theirs stay where
they are: kube-scheduler counts their cpu and memory there.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Generator, Hashable, Iterable, Iterator, Sequence
from functools import partial
from itertools import count
from typing import NamedTuple

from tessera.core.ledger.holders import GrantState, Holder, HolderKind, owner_of
from tessera.core.ledger.ledger import facts_of
from tessera.core.model.grants import Placement
from tessera.core.model.requests import PodRequest
from tessera.core.search import finish
from tessera.core.search.gang_trial import Domains, GangMember, Placed, card_choices, find_path
from tessera.core.search.gangs import GangMisfit, GangPlan, GangPlanning
from tessera.core.search.relocation import take_moved
from tessera.core.search.selection import CandidateNames, Candidates, Selected, Selector, Unfinished
from tessera.scheduler.features.gangs.accounts import HoldAccounts, cards_taken
from tessera.scheduler.features.gangs.gang import Gang, GangState, Member, MemberState
from tessera.scheduler.pod_cycle import CycleState, PodCycles
from tessera.scheduler.queue.unschedulable_pods import fits
from tessera.wire.objects import Node, Workload

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
        self.labels = labels
        self._ledger = cycles.ledger
        self._displaced: list[tuple[Gang, Holder, Placement]] = []
        """with their new places, which count as soon as the member that takes their old ones is placed"""

    def of(self, gang: Gang) -> list[Holder]:
        """The free ones."""
        return self._ledger.holds.of_gang(gang.name)

    def count(self, gang: Gang) -> int:
        return self._ledger.holds.count_of_gang(gang.name)

    def nominations(self, gang: Gang) -> list[Holder]:
        """Places whose victims have not left yet."""
        return self._ledger.holds.of_gang(gang.name, GrantState.NOMINATED)

    def is_holding(self, gang: Gang) -> bool:
        """Whether the account of its namespace pays for something."""
        if self.count(gang) or gang.state is GangState.NOMINATED:
            return True
        return any(self.accounts.cards_of(uid) for uid in gang.members)

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
        return [member for member in gang.members.pending() if not self.is_placed(member.request.uid)]

    def plan(self, gang: Gang, asking: Member | None, *, missing: int, work: float = math.inf) -> Planning:
        """Hold places for all members that have none, and for `missing` ones that do not exist yet, in slices.

        These ask for what the `asking` member asks for. Nothing is held if not all required members fit, or the
        account does not pay for it. Pods beyond the size of the gang have no place in its plan: there may be any number
        of them.
        """
        waiting = self.unplaced(gang)
        placed = gang.present - len(waiting)
        if gang.present > gang.group.size:
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
            domains=self.labels.domains(gang.group.topology),
            work=work,
            name=partial(self._ledger.name_hold, gang.name),
        )
        answer = yield from self._make(gang, planning)
        if isinstance(answer, GangPlan):
            for place, (held, _) in zip(answer.places, planning.keep(), strict=True):
                self._pay(gang, self._ledger.keep_for(held, place.request.uid))
            if not self.accounts.pays_for(gang.namespace):
                cards = sum(self.accounts.cards_of(hold.uid) or 0.0 for hold in self.of(gang))
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
        return bool(gang.members), gang.state, max(gang.present, gang.required), gang.required, self._cycles.term

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

    def hold_one(self, gang: Gang, request: PodRequest, placement: Placement) -> None:
        """For the member that asks for it. What the account pays for its place goes on."""
        held = self._ledger.name_hold(gang.name, request)
        self.accounts.rename(request.uid, held.uid)
        self.put(gang, held, placement, request.uid)

    def hold_moved(self, gang: Gang, workload: Workload) -> bool:
        """Hold for the gang what is held because pods are moved: whether it is enough for the gang. That is held for
        its members by name, and taken once all of it is free; or for the successors of its members, which are alike
        because one workload made them."""
        ledger, members = self._ledger, self.unplaced(gang)
        if not all(map(ledger.is_free, self._moved_for(members))):
            return False
        for member in members:
            named = member.candidates
            while ledger.holds.has_moves and named:
                found = take_moved(ledger, member.request, workload, named)
                if found is None:
                    break
                self.put(gang, ledger.name_hold(gang.name, member.request), found[1], "")
        held = self.count(gang)
        if held and held + gang.present - len(self.unplaced(gang)) >= gang.required:
            return True
        self.release(gang)
        return False

    def has_moves_for(self, gang: Gang) -> bool:
        """Whether moves are made for one of its members."""
        return self._ledger.holds.has_moves and bool(self._moved_for(gang.members.values()))

    def _moved_for(self, members: Iterable[Member]) -> list[Holder]:
        return self._ledger.holds.meant_for(HolderKind.MOVE, *(member.request.uid for member in members))

    def put(self, gang: Gang, held: PodRequest, placement: Placement, member: Hashable) -> None:
        """Hold a place under the uid of this request. The rest of a gang that is bound has its places for a while."""
        self._pay(gang, self._ledger.reserve(held, placement, deadline=gang.holds_end, meant_for=member))

    def put_again(self, gang: Gang, hold: Holder, placement: Placement | None = None) -> None:
        """What was released for a moment; in another place, if one is given."""
        self.put(gang, _request(hold), placement or hold.placement, hold.meant_for)

    def _pay(self, gang: Gang, hold: Holder) -> None:
        """The account pays for it from now on, if it does not already."""
        devices = self._ledger.devices(hold.facts.node)
        self.accounts.open(gang.namespace, hold.facts.uid, cards_taken(hold.holdings, devices))

    def _hand_over(self, gang: Gang, request: PodRequest, hold: Holder | None) -> None:
        """A member has got a place, for what was held or without. It is paid for until the gang is bound; a member of a
        gang that is bound already waits for no other."""
        if gang.state is not GangState.PLANNED:
            if hold is not None:
                self.accounts.close(hold.uid, bound=True)
        elif hold is not None:
            self.accounts.rename(hold.uid, request.uid)
        else:
            # Whole cards, since it is not in the ledger yet.
            self.accounts.close(request.uid)
            self.accounts.open(gang.namespace, request.uid, sum(asked.count for _, asked in request.requests))

    def end_taken(self, gang: Gang, *, bound: bool) -> None:
        """The plan has ended: its members are bound, or given up."""
        for uid in gang.members:
            self.accounts.close(uid, bound=bound)

    def take_back(self, gang: Gang, uid: str) -> None:
        """The bind of a member that had its hold has waited too long: it is a hold of the gang again."""
        cycle = self._cycles.get(uid)
        if cycle is None or cycle.state is not CycleState.RESERVED or cycle.placement is None:
            return
        self.put_back(gang.members[uid].request, self._cycles.give_up(cycle), gang)

    def put_back(self, request: PodRequest, placement: Placement | None, gang: Gang | None) -> None:
        """A member has given its reservation up: while the gang has a plan, the place is a hold of it again."""
        if gang is not None and placement is not None and gang.state not in (GangState.WAITING, GangState.NOMINATED):
            self.hold_one(gang, gang.members[request.uid].request, placement)
        else:
            self.accounts.close(request.uid)

    def take(self, gang: Gang, request: PodRequest, named: CandidateNames) -> Placed | None:
        """A placement on the node of a hold, if it is one of these nodes; the hold is free for the member from now on.

        The node may have changed since it was planned, so the plain rule decides again. A hold that does not fit any
        more is dropped.
        """
        while (hold := self._find(gang, request, named)) is not None:
            self._ledger.release(hold.uid)
            for asked in card_choices(request):
                placement = self._ledger.fit(asked, hold.node)
                if isinstance(placement, Placement):
                    self._hand_over(gang, request, hold)
                    return Placed(asked, placement)
            self.accounts.close(hold.uid)
        return None

    def _find(self, gang: Gang, request: PodRequest, allowed: CandidateNames) -> Holder | None:
        """A hold for a member on a node that is allowed; None if no exchange makes one free."""
        own = self._own(gang, request)
        if own is not None and own.node in allowed:
            return own
        moves = finish(_Exchange(gang, self.alike(gang, request), request.uid, allowed).find())
        for uid, hold in moves or ():
            self._ledger.keep_for(_request(hold), uid)
        return moves[0][1] if moves else None

    def _own(self, gang: Gang, request: PodRequest) -> Holder | None:
        for hold in self._ledger.holds.meant_for(HolderKind.GANG, request.uid):
            is_free = hold.state is GrantState.RESERVED and owner_of(hold.uid) == gang.name
            if is_free and _is_alike(hold, request):
                return hold
        return None

    def alike(self, gang: Gang, request: PodRequest) -> list[Holder]:
        """Holds for what this member asks for."""
        return [hold for hold in self.of(gang) if _is_alike(hold, request)]

    def exchange(
        self, gang: Gang, request: PodRequest, named: CandidateNames, *, at_any_cost: bool = False
    ) -> Placed | None:
        """A place on one of these nodes instead of a hold on another one; None if that is not possible.

        Holds of other members on it make way if there is room for them elsewhere, or `at_any_cost`. `settle` follows
        once the member is placed.
        """
        own = self._own(gang, request)
        if own is None:
            # There may be fewer holds than members, and not all are required.
            own = min(self.alike(gang, request), key=lambda hold: _is_meant(gang, hold), default=None)
        if own is not None:
            self._ledger.release(own.uid)
        answer = self._selector.select(request, named)
        if isinstance(answer, Selected):
            self._hand_over(gang, request, own)
            return Placed(request, answer.placement)
        nodes = sorted({hold.node for hold in self.of(gang)})
        for node in [name for name in nodes if name in named][:MAX_EXCHANGED]:
            placement = self._displace(gang, request, node, at_any_cost=at_any_cost)
            if placement is not None:
                self._hand_over(gang, request, own)
                return Placed(request, placement)
        if own is not None:
            self.put_again(gang, own)
        return None

    def _displace(self, gang: Gang, request: PodRequest, node: str, *, at_any_cost: bool) -> Placement | None:
        """A place on the node instead of the holds there."""
        displaced = [hold for hold in self.of(gang) if hold.node == node]
        moved: list[tuple[Gang, Holder, Placement]] = []
        with self._ledger.begin() as trial:
            for hold in displaced:
                trial.remove(hold.uid)
            placement = self._ledger.fit(request, node)
            if not isinstance(placement, Placement):
                return None
            trial.put(facts_of(self._ledger.name_hold(gang.name, request), placement), GrantState.RESERVED)
            for hold in displaced:
                again = self._selector.select(_request(hold), self._candidates_for(gang, hold))
                if isinstance(again, Selected):
                    trial.put(facts_of(_request(hold), again.placement), GrantState.RESERVED)
                    moved.append((gang, hold, again.placement))
        if len(moved) < len(displaced) and not at_any_cost:
            return None
        # The member is decided first, on the ledger without them: a card whose cores are all taken refuses it.
        self._displaced, stay = moved, {hold.uid for _, hold, _ in moved}
        for hold in displaced:
            self._ledger.release(hold.uid)
            if hold.uid not in stay:
                self.accounts.close(hold.uid)
        return placement

    def _candidates_for(self, gang: Gang, hold: Holder) -> Candidates:
        member = _taker(gang, hold)
        known = None if member is None else member.known_candidates
        return self._selector.candidates(self._ledger.node_names() if known is None else known.names)

    def settle(self) -> None:
        """The member is placed: hold the new places of those that have made way for it."""
        displaced, self._displaced = self._displaced, []
        for gang, hold, placement in displaced:
            self.put_again(gang, hold, placement)

    def release(self, gang: Gang) -> None:
        holds = self.of(gang)
        for hold in holds:
            self._ledger.release(hold.uid)
            self.accounts.close(hold.uid)
        if holds:
            self._cycles.unschedulable.on_room()

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
    return model.called(uid="", namespace=gang.namespace, name=f"{gang.group.name}-{position}")


class _Exchange:
    """Exchanges holds that are alike, for one member."""

    def __init__(self, gang: Gang, holds: Sequence[Holder], asking: str, allowed: CandidateNames) -> None:
        self._gang = gang
        self._holds = holds
        self._asking = asking
        self._allowed = allowed

    def find(self) -> Generator[None, None, list[tuple[str, Holder]] | None]:
        return find_path(self._asking, kind=self._kind, free=self._free, taken=self._taken)

    def _kind(self, uid: str) -> Hashable:
        return "" if uid == self._asking else id(self._gang.members[uid].known_candidates)

    def _free(self, uid: str) -> Generator[None, None, Holder | None]:
        """The hold of the member that asks is free for others."""
        yield from ()
        return next((hold for hold in self._usable(uid) if not self._belongs_to_another(hold)), None)

    def _taken(self, uid: str) -> Iterator[tuple[Holder, str]]:
        return ((hold, str(hold.meant_for)) for hold in self._usable(uid) if self._belongs_to_another(hold))

    def _belongs_to_another(self, hold: Holder) -> bool:
        return hold.meant_for != self._asking and _is_meant(self._gang, hold)

    def _usable(self, uid: str) -> Iterator[Holder]:
        if uid == self._asking:
            return (hold for hold in self._holds if hold.node in self._allowed)
        candidates = self._gang.members[uid].known_candidates
        if candidates is None:
            return iter(self._holds)
        names = frozenset(candidates.names)
        return (hold for hold in self._holds if hold.node in names)


def _request(hold: Holder) -> PodRequest:
    assert hold.request is not None  # every hold for a gang has one
    return hold.request


def _is_alike(hold: Holder, request: PodRequest) -> bool:
    return hold.request is not None and hold.request.shape == request.shape


def _taker(gang: Gang, hold: Holder) -> Member | None:
    return gang.members.get(str(hold.meant_for))


def _is_meant(gang: Gang, hold: Holder) -> bool:
    """Whether the hold is meant for a member that waits for its place."""
    member = _taker(gang, hold)
    return member is not None and member.state is MemberState.PENDING
