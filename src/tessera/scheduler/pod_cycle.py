"""One record per pod from filter to the end of its handover, and the only place where its state changes.

    (absent)
       | the API shows the pod, or filter meets it
       v       refuse
    PENDING <----------> REFUSED --- nominate ---> NOMINATED
       |  ^    forget       |  ^                     |  | forget: as REFUSED
       |  |                 |  '---- renounce -------'  | reserve
       |  '-- give_up, expire (RESERVED), void (BINDING, UNCERTAIN, BOUND)
       | reserve            | reserve
       v                    |
    RESERVED <--------------'---------------------------'
       |  ^
       |  | put_back: not written
       v  |
    BINDING --- put_back: the write may have taken effect ---> UNCERTAIN
       |    <----------------- start_bind -----------------------  |
       | confirm                                                   | confirm: looked up
       v                                                           |
    BOUND <--------------------------------------------------------'
       | the API shows the binding, from any state
       v
    HANDING_OVER
       | Allocate is over, the pod ended, or it is gone, from any state; at once if its claims have everything
       v
    SETTLED --> (absent)

What the API shows wins over every decision of this process, so observations are legal in every state. All other
transitions are legal only where `Transition` says so, and raise elsewhere. For pods, `PodCycles` alone calls the
ledger's methods that reserve, bind, nominate and end that, so that record and ledger cannot disagree:

    RESERVED               the ledger has a reservation, which expires
    UNCERTAIN              the ledger has a reservation, which only a look-up or the API ends
    BINDING, BOUND         the ledger holds the grants for good; the API does not show them yet
    HANDING_OVER           the ledger holds what the API shows
    NOMINATED              the ledger has a nomination: a claim on what victims still hold
    PENDING, REFUSED       the ledger holds nothing

A pod that is settled has no record: the ledger alone knows it until it ends. What is placed for a ResourceClaim that
is not allocated yet is the pod's until the claim is written; then it is the claim's (`claims/book`), whatever becomes
of the pod. What becomes of the claim does not matter either: `requests/pod_claims`. This module writes nothing to the
API.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum

import structlog

from tessera.core.ledger.holders import GrantState, Holder, HolderKind
from tessera.core.ledger.holdings import PodFacts
from tessera.core.ledger.ledger import Ledger, facts_of
from tessera.core.model.devices import NOTHING
from tessera.core.model.grants import Placement
from tessera.core.model.requests import PodRequest
from tessera.core.search.selection import Candidates
from tessera.scheduler.clock import Clock
from tessera.scheduler.observer import ReleasedEvent, SchedulerObserver
from tessera.scheduler.queue.allocation_queue import AllocationQueue, Ticket, TicketState
from tessera.scheduler.queue.unschedulable_pods import UnschedulablePods
from tessera.scheduler.requests.pod_claims import ClaimUsers, Parts
from tessera.scheduler.requests.reader import PreparedRequest
from tessera.services.failpoints import Failpoint, failpoint
from tessera.wire.journal import ReleaseReason

log = structlog.get_logger(__name__)

SHOWN_S = 65.0
"""seconds after which a binding that was answered is looked up, if the informer has not shown it"""
UNSEEN_TICKS = 22
"""ticks, 15 s apart, that a refused pod may be missing from the API: longer than kube-scheduler lets a pod sleep"""


class CycleState(Enum):
    """Where a pod is between filter and the end of its handover."""

    PENDING = "pending"
    REFUSED = "refused"
    NOMINATED = "nominated"
    RESERVED = "reserved"
    BINDING = "binding"
    UNCERTAIN = "uncertain"
    BOUND = "bound"
    HANDING_OVER = "handing over"
    SETTLED = "settled"


PENDING, REFUSED, RESERVED = CycleState.PENDING, CycleState.REFUSED, CycleState.RESERVED
NOMINATED = CycleState.NOMINATED
BINDING, UNCERTAIN, BOUND = CycleState.BINDING, CycleState.UNCERTAIN, CycleState.BOUND
HANDING_OVER, SETTLED = CycleState.HANDING_OVER, CycleState.SETTLED


class Transition(Enum):
    """Everything that can happen to a record: the states in which it is legal, and the state it leads to."""

    RESERVE = ({PENDING, REFUSED, NOMINATED}, RESERVED)
    REFUSE = ({PENDING}, REFUSED)
    NOMINATE = ({REFUSED}, NOMINATED)
    RENOUNCE = ({NOMINATED}, REFUSED)
    """also by expiry"""
    FORGET = ({REFUSED, NOMINATED}, PENDING)
    GIVE_UP = ({RESERVED}, PENDING)
    """also by expiry"""
    START_BIND = ({RESERVED, UNCERTAIN}, BINDING)
    CONFIRM = ({BINDING, UNCERTAIN}, BOUND)
    PUT_BACK = ({BINDING}, RESERVED)
    LOSE_TRACK = ({BINDING}, UNCERTAIN)
    VOID = ({BINDING, UNCERTAIN, BOUND}, PENDING)
    OBSERVE_BOUND = (set(CycleState) - {HANDING_OVER}, HANDING_OVER)
    SETTLE = (set(CycleState) - {SETTLED}, SETTLED)
    OBSERVE_AGAIN = ({SETTLED}, PENDING)
    """by a list that is older than the last watch event"""

    def __init__(self, sources: set[CycleState], target: CycleState) -> None:
        self.sources = frozenset(sources)
        self.target = target


UNSCHEDULABLE = (REFUSED, NOMINATED)
"""states in which a pod waits in `UnschedulablePods`"""
HOLDS_RESERVATION = (RESERVED, BINDING, UNCERTAIN)
"""states in which a pod has a placement that the API does not show"""


class IllegalTransition(Exception):
    """A fault of this program: a pod was about to skip a part of its cycle."""


@dataclass(slots=True, eq=False)
class PodCycle:
    """Everything that the scheduler knows about one pod until it is handed over. Changed by `PodCycles` only."""

    uid: str
    state: CycleState = PENDING
    prepared: PreparedRequest | None = None
    """as filter read it; from RESERVED until the API shows the binding"""
    term: int = 0
    """the term of `PodCycles` in which the placement was chosen"""
    placement: Placement | None = None
    """from RESERVED to BOUND"""
    handed: frozenset[str] = frozenset()
    """uids of its claims that hold their parts of the placement themselves"""
    ticket: Ticket | None = None
    """place in the allocation queue of its node, from BINDING until it is handed over"""
    written_at: float | None = None
    """when a binding was sent that has taken effect, or may yet; until the API shows it, or it is void"""
    is_checked_out: bool = False
    """a bind or a look-up works on it: no other may, and filter decides nothing"""
    is_shown: bool = False
    """the API shows the pod, not bound"""
    unseen_ticks: int = 0
    """of a refused pod that the API does not show"""


class PodCycles:
    """The records by uid. Used from the event loop only."""

    def __init__(
        self,
        ledger: Ledger,
        queue: AllocationQueue,
        unschedulable: UnschedulablePods,
        *,
        clock: Clock,
        reservation_s: float,
        observer: SchedulerObserver,
    ) -> None:
        self.ledger = ledger
        self.queue = queue
        self.unschedulable = unschedulable
        self.clock = clock
        self._reservation_s = reservation_s
        self._observer = observer
        self.term = 0
        """grows when this replica stops leading: another one may then give away what was reserved here"""
        self.on_overdue: dict[HolderKind, Callable[[Holder], None]] = {}
        """what ends holds, and nominations of pods, whose time is over, and what depends on them"""
        self.users = ClaimUsers(ledger, unschedulable.on_room)
        self._cycles: dict[str, PodCycle] = {}
        self._before_settle = failpoint(Failpoint.BEFORE_SETTLE)

    def __iter__(self) -> Iterator[PodCycle]:
        return iter(list(self._cycles.values()))

    def get(self, uid: str) -> PodCycle | None:
        return self._cycles.get(uid)

    def count(self, *states: CycleState) -> int:
        return sum(1 for cycle in self._cycles.values() if cycle.state in states)

    @property
    def checked_out(self) -> int:
        """Binds and look-ups that run now."""
        return sum(1 for cycle in self._cycles.values() if cycle.is_checked_out)

    # -- filter

    def reserve(self, prepared: PreparedRequest, placement: Placement) -> PodCycle:
        """PENDING, REFUSED, NOMINATED -> RESERVED: a nomination has served its purpose."""
        cycle = self._get_or_add(prepared.request.uid)
        self._apply(Transition.RESERVE, cycle)
        self.ledger.reserve(prepared.request, placement, deadline=self._deadline())
        cycle.prepared, cycle.placement, cycle.term = prepared, placement, self.term
        cycle.handed = frozenset()
        return cycle

    def refuse(
        self,
        request: PodRequest,
        candidates: Candidates,
        *,
        is_judged: bool = True,
        others: tuple[PodRequest, ...] = (),
    ) -> bool:
        """PENDING -> REFUSED; whether it is the pod's first refusal. Not `is_judged`: the decision is not finished.
        `others`: what would do instead of the request.

        A nominated pod keeps its nomination.
        """
        cycle = self._get_or_add(request.uid)
        if cycle.state not in UNSCHEDULABLE:
            self._apply(Transition.REFUSE, cycle)
        cycle.unseen_ticks = 0
        return self.unschedulable.add(request, candidates, is_judged=is_judged, others=others)

    def give_up(self, cycle: PodCycle) -> Placement | None:
        """RESERVED -> PENDING: filter is asked again, or the bind is for another node. What is free again; None if
        claims of the pod have a part of it."""
        placement = None if cycle.handed else cycle.placement
        self._apply(Transition.GIVE_UP, cycle)
        self._release(cycle)
        return placement

    def forget(self, cycle: PodCycle) -> None:
        """REFUSED, NOMINATED -> PENDING: the API does not know the pod any more."""
        self._apply(Transition.FORGET, cycle)
        if self.ledger.withdraw(cycle.uid):
            self.unschedulable.on_room()

    # -- preemption

    def nominate(self, cycle: PodCycle, facts: PodFacts, victims: frozenset[str], *, deadline: float) -> None:
        """REFUSED -> NOMINATED: the placement is the pod's once the victims have left."""
        self._apply(Transition.NOMINATE, cycle)
        self.ledger.nominate(facts, victims, deadline=deadline)

    def renounce(self, cycle: PodCycle) -> None:
        """NOMINATED -> REFUSED: what it was nominated for is free for other pods."""
        self._apply(Transition.RENOUNCE, cycle)
        if self.ledger.withdraw(cycle.uid):
            self.unschedulable.on_room()

    # -- bind

    def check_out(self, uid: str) -> PodCycle | None:
        """The record for a bind or a look-up alone; None if another one works on it."""
        cycle = self._get_or_add(uid)
        if cycle.is_checked_out:
            return None
        cycle.is_checked_out = True
        return cycle

    def check_in(self, cycle: PodCycle) -> None:
        cycle.is_checked_out = False
        self._drop_if_over(cycle)

    def may_be_written(self, cycle: PodCycle) -> bool:
        """Whether no other replica has led since the placement was chosen."""
        return cycle.term == self.term

    def has_cards(self, placement: Placement) -> bool:
        """Whether the node still has every card of the placement."""
        cards = self.ledger.devices(placement.node)
        for containers in placement.grants.values():
            for grants in containers:
                for grant in grants:
                    if grant.uuid not in cards:
                        return False
        return True

    def may_be_bound(self, uid: str) -> bool:
        """Whether a bind of the pod is under way, or one may have taken effect."""
        cycle = self.get(uid)
        return cycle is not None and (cycle.is_checked_out or cycle.state in (UNCERTAIN, BOUND))

    def hand_to_claim(self, cycle: PodCycle, claim: str) -> None:
        """A claim of the pod holds its part of the placement itself from now on."""
        prepared, placement, entry = cycle.prepared, cycle.placement, self.ledger.pod(cycle.uid)
        if prepared is None or placement is None or prepared.claims is None or claim in cycle.handed:
            return
        if entry is None or entry.observed or claim not in prepared.claims.uids:
            return
        cycle.handed |= {claim}
        facts = prepared.claims.rest(prepared.request, placement, cycle.handed)
        self.ledger.put_pod(facts, entry.state, deadline=entry.deadline)

    def use_claims(self, cycle: PodCycle, parts: Parts) -> None:
        """BINDING: the Binding is about to record what the pod uses of its claims."""
        prepared, placement = cycle.prepared, cycle.placement
        if cycle.state is BINDING and prepared is not None and prepared.claims is not None and placement is not None:
            self.users.bind(prepared.claims.rest(prepared.request, placement, cycle.handed), parts)

    def start_bind(self, cycle: PodCycle) -> None:
        """RESERVED, UNCERTAIN -> BINDING: the reservation no longer expires."""
        self._apply(Transition.START_BIND, cycle)
        assert cycle.prepared is not None  # both states have them
        assert cycle.placement is not None
        self.ledger.bind(cycle.uid)
        if cycle.ticket is None or cycle.ticket.state is TicketState.OUT:
            request, placement = cycle.prepared.request, cycle.prepared.classic_part(cycle.placement)
            # kubelet calls Allocate for no claim.
            if placement.grants:
                cycle.ticket = self.queue.issue(
                    cycle.uid,
                    (request.namespace, request.name),
                    placement,
                    uses_downward_api=cycle.prepared.uses_downward_api,
                )

    def mark_written(self, cycle: PodCycle) -> None:
        """A binding was sent that may have taken effect, or may yet."""
        if cycle.state is BINDING:
            cycle.written_at = self.clock.monotonic()

    def renew(self, cycle: PodCycle, prepared: PreparedRequest) -> None:
        """The pod is not bound and has another version: no binding that was sent for the old one can land any more."""
        if cycle.state is BINDING:
            cycle.prepared, cycle.written_at = prepared, None

    def confirm(self, cycle: PodCycle) -> None:
        """BINDING, UNCERTAIN -> BOUND: the binding is written."""
        if cycle.state in (BINDING, UNCERTAIN):
            self._apply(Transition.CONFIRM, cycle)
            self.ledger.bind(cycle.uid)
        if cycle.state is BOUND:
            cycle.written_at = self.clock.monotonic()
        if cycle.ticket is not None:
            self.queue.restart_clock(cycle.ticket)

    def put_back(self, cycle: PodCycle) -> None:
        """BINDING -> RESERVED if no write can land any more, else UNCERTAIN. An unknown write is never free."""
        if cycle.state is not BINDING:
            return  # The API has shown what became of it.
        if cycle.written_at is not None:
            self.ledger.unbind(cycle.uid, deadline=math.inf)
            self._apply(Transition.LOSE_TRACK, cycle)
        elif cycle.term != self.term:
            self.void(cycle)  # Another replica may have given the devices away.
        else:
            self.ledger.unbind(cycle.uid, deadline=self._deadline())
            self._apply(Transition.PUT_BACK, cycle)
            cycle.ticket = None

    def void(self, cycle: PodCycle) -> None:
        """BINDING, UNCERTAIN, BOUND -> PENDING: the placement came to nothing."""
        if cycle.state in Transition.VOID.sources:  # Otherwise the API has shown what became of it.
            self._apply(Transition.VOID, cycle)
            self._release(cycle)

    def unconfirmed(self) -> list[PodCycle]:
        """Bindings of unknown effect, and those that the API should have shown by now."""
        latest = self.clock.monotonic() - SHOWN_S
        return [
            cycle
            for cycle in self._cycles.values()
            if not cycle.is_checked_out
            and (cycle.state is UNCERTAIN or (cycle.state is BOUND and (cycle.written_at or 0.0) <= latest))
        ]

    # -- informer

    def observe_pending(self, uid: str) -> None:
        """The API shows the pod, not bound."""
        entry = self.ledger.pod(uid)
        if entry is not None and entry.observed:
            return  # A list that is older than the last watch event: a binding is never undone.
        cycle = self._get_or_add(uid)
        cycle.is_shown, cycle.unseen_ticks = True, 0
        if cycle.state is SETTLED:
            self._apply(Transition.OBSERVE_AGAIN, cycle)

    def observe_bound(self, facts: PodFacts, *, is_allocating: bool, parts: Parts = NOTHING) -> PodCycle | None:
        """Any state -> HANDING_OVER, or SETTLED if it `is_allocating` no more. `parts`: what it uses of its claims.

        Returns the record if the pod is in handover without a ticket, and was not bound by this process.
        """
        facts = self.users.observe(facts, parts)
        had_entry = self.ledger.pod(facts.uid) is not None
        if self.ledger.observe_pod(facts) and had_entry:
            self.unschedulable.on_room()
        if not is_allocating:
            self._settle(facts.uid)
            return None
        cycle = self._get_or_add(facts.uid)
        cycle.is_shown = False
        ticket, placement = cycle.ticket, cycle.placement
        was_bound_here = cycle.state in (BINDING, BOUND) and placement is not None and placement.node == facts.node
        if ticket is not None and ticket.node != facts.node:
            # Another scheduler bound it elsewhere. A bind that runs gives its ticket and locks back itself.
            cycle.ticket = None
            if not cycle.is_checked_out:
                self.queue.leave(ticket)
        elif ticket is not None and ticket.state is TicketState.WAITING:
            # An earlier write took effect while the bind waited: kubelet may call Allocate from now on.
            self.queue.enter_at_once(ticket)
        elif cycle.state is UNCERTAIN and ticket is not None and ticket.state is TicketState.OUT:
            cycle.ticket = None  # The turn was over before the pod could be handed over: it takes another one.
        if cycle.state is not HANDING_OVER:
            self._apply(Transition.OBSERVE_BOUND, cycle)
        return cycle if cycle.ticket is None and not was_bound_here else None

    def resume(self, cycle: PodCycle, facts: PodFacts, *, uses_downward_api: bool) -> None:
        """A pod in handover that this process did not bind takes its turn at once."""
        placement = Placement(facts.node, facts.grants)
        owner = (facts.namespace, facts.name)
        cycle.ticket = self.queue.issue(facts.uid, owner, placement, uses_downward_api=uses_downward_api)
        if cycle.ticket is not None:
            self.queue.enter_at_once(cycle.ticket)

    def observe_gone(self, uid: str, *, why: ReleaseReason = "deleted") -> None:
        """Any state -> SETTLED: the pod was deleted, ended, or is bound without devices."""
        self._settle(uid)
        self.users.drop(uid)
        entry = self.ledger.pod(uid)
        if entry is not None:
            self.ledger.release(uid)
            if entry.facts.grants:  # Otherwise its claims have all of it.
                self._report_release(entry.facts, why)
                self.unschedulable.on_room()
        elif self.ledger.withdraw(uid):
            self.unschedulable.on_room()

    # -- time

    def end_term(self) -> None:
        """Another replica may lead from now on: it may give away what is only reserved here."""
        self.term += 1
        for cycle in self:
            if cycle.state is RESERVED and not cycle.is_checked_out:
                self.give_up(cycle)
            elif cycle.state is NOMINATED:
                self.renounce(cycle)

    def tick(self) -> None:
        """End what only time ends: reservations, turns, refused pods that the API never shows."""
        expired = 0
        for holder in self.ledger.overdue(self.clock.monotonic()):
            cycle = self._cycles.get(holder.uid)
            if self.ledger.holder(holder.uid) is not holder:
                continue  # It has ended with another one.
            if cycle is None or holder.state is GrantState.NOMINATED:
                self.on_overdue[holder.kind](holder)
                continue
            self.ledger.release(holder.uid)
            assert cycle.prepared is not None  # a reservation has both
            assert cycle.placement is not None
            self._report_release(facts_of(cycle.prepared.request, cycle.placement), "expired")
            self._apply(Transition.GIVE_UP, cycle)
            expired += 1
        if expired:
            log.info("reservations expired", pods=expired)
            self.unschedulable.on_room()
        self.queue.end_overdue(binding={cycle.uid for cycle in self._cycles.values() if cycle.state is BINDING})
        # kube-scheduler may ask for a pod whose end was seen here before: no event would ever remove it.
        for cycle in self:
            if cycle.state in UNSCHEDULABLE and not cycle.is_shown:
                cycle.unseen_ticks += 1
                if cycle.unseen_ticks > UNSEEN_TICKS:
                    self.forget(cycle)

    # -- inside

    def _apply(self, transition: Transition, cycle: PodCycle) -> None:
        """The one place where a state changes."""
        if cycle.state not in transition.sources:
            raise IllegalTransition(f"pod {cycle.uid} is {cycle.state.value}: {transition.name} is not possible")
        if cycle.state in UNSCHEDULABLE and transition.target not in UNSCHEDULABLE:
            self.unschedulable.remove(cycle.uid)
        cycle.state = transition.target
        if cycle.state in (PENDING, HANDING_OVER, SETTLED):
            cycle.prepared = cycle.placement = cycle.written_at = None
            cycle.handed = frozenset()
        if cycle.state is PENDING:
            cycle.ticket = None
            self.users.drop(cycle.uid)
            self._drop_if_over(cycle)

    def _settle(self, uid: str) -> None:
        cycle = self._cycles.get(uid)
        if cycle is None:
            return
        self._before_settle()
        cycle.is_shown = False
        self._end_turn(cycle)
        if cycle.state is not SETTLED:
            self._apply(Transition.SETTLE, cycle)
        self._drop_if_over(cycle)

    def _end_turn(self, cycle: PodCycle) -> None:
        ticket, cycle.ticket = cycle.ticket, None
        if ticket is not None:
            self.queue.leave(ticket)

    def _release(self, cycle: PodCycle) -> None:
        entry = self.ledger.pod(cycle.uid)
        self.ledger.give_up(cycle.uid)
        if entry is not None:
            self._report_release(entry.facts, "given up")
            self.unschedulable.on_room()

    def _report_release(self, facts: PodFacts, why: ReleaseReason) -> None:
        self._observer.on_released(ReleasedEvent(facts.namespace, facts.name, facts.uid, facts.node, why))

    def _get_or_add(self, uid: str) -> PodCycle:
        cycle = self._cycles.get(uid)
        if cycle is None:
            entry = self.ledger.pod(uid)
            state = SETTLED if entry is not None and entry.observed else PENDING
            cycle = self._cycles[uid] = PodCycle(uid, state)
        return cycle

    def _drop_if_over(self, cycle: PodCycle) -> None:
        if cycle.is_checked_out:
            return
        if cycle.state is SETTLED or (cycle.state is PENDING and not cycle.is_shown):
            self._cycles.pop(cycle.uid, None)

    def _deadline(self) -> float:
        return self.clock.monotonic() + self._reservation_s
