"""The plans of gangs, and what becomes of them. `gang` draws the states, and `barrier` has the way to the last bind.

    plan         a hold for every member, or the whole reason why not. One plan is made after the other, so of two gangs
                 that fit alone but not together one gets all it needs, and the other one waits with nothing. The plan
                 of a large gang pauses for other work; what it has placed by then is held. A gang that does not fit
                 holds nothing, and smaller pods pass it
    planned      a plan ends if no member comes for `--gang-timeout`, and after a while anyway
    given up     everything is released, and binds that wait fail; the next plan follows after a pause that grows
    completing   what is bound is shown by the API, which is the memory: a process that finds a gang bound in part makes
                 holds for the rest before it decides about anything else

Members that do not exist yet are planned with the first one that asks, as copies of it, so that members that are
created one after the other need not be refused and woken. If members did not come, the next plan of the gang waits
until kube-scheduler has asked for all of them. What all gangs of a namespace hold without being bound is bounded by its
account (`accounts`), whatever becomes of their plans. `preemption` has the states of gangs that preempt.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from datetime import datetime

import structlog

from tessera.core.model.misfits import Misfit, Reason, node_misfit
from tessera.core.search import finish
from tessera.core.search.gang_trial import Placed
from tessera.core.search.gangs import GangMisfit, GangPlan
from tessera.core.search.selection import CandidateNames, Unfinished
from tessera.kube.backoff import Backoff
from tessera.scheduler.eviction.preemption_loop import finish_in_slices
from tessera.scheduler.features.gangs.gang import Alone, Gang, GangState, Member, MemberState, Plan
from tessera.scheduler.features.gangs.holds import MEMBERS_AT_ONCE, PLAN_AGAIN, GangHolds, Planning, Unpaid
from tessera.scheduler.features.gangs.turns import GangOutlook, GangTurns
from tessera.scheduler.observer import GangEvent, SchedulerObserver
from tessera.scheduler.pod_cycle import CycleState, PodCycles
from tessera.scheduler.queue.unschedulable_pods import MAX_WORK
from tessera.scheduler.settings import Settings
from tessera.wire.objects import Workload

log = structlog.get_logger(__name__)

LONGEST_PLAN = 6
"""times `--gang-timeout`: a plan whose members come one by one, each in time, ends nevertheless"""
PAUSES = Backoff(initial=5.0, cap=60.0)
"""seconds between two plans of a gang whose last plan was given up; doubled each time"""
HELD_S = 300.0
"""for which the rest of a gang that is bound in part has its holds, as long as a pod's reservation lasts"""

WAITING, PLANNED = GangState.WAITING, GangState.PLANNED
COMPLETING, WHOLE = GangState.COMPLETING, GangState.WHOLE
IN_WRITING = (CycleState.BINDING, CycleState.UNCERTAIN, CycleState.BOUND, CycleState.HANDING_OVER)


PAUSE_S = 1.0
"""between two plans of a large gang that does not fit, or whose members change meanwhile"""
MAX_REPLANNED = 64
"""members without a place up to which a gang is planned again in one step; a larger plan is given up instead"""
SPARE_REPLANS = 8
"""beside two per member: a plan that kube-scheduler's own reasons refuse more often is given up"""


def shared_claim_text(key: str) -> str:
    """Why members wait for a claim that each of them might allocate: the first would wait in its bind for the others,
    and they for the claim."""
    return f"a gang allocates only claims of templates, and ResourceClaim {key} is not allocated"


class GangLifecycle:
    """Moves gangs from one state to the next."""

    def __init__(
        self,
        holds: GangHolds,
        cycles: PodCycles,
        turns: GangTurns,
        outlook: GangOutlook,
        *,
        settings: Settings,
        observer: SchedulerObserver,
    ) -> None:
        self._holds = holds
        self._cycles = cycles
        self._turns = turns
        self._outlook = outlook
        self._settings = settings
        self._observer = observer
        self.given_up = 0
        """plans that came to nothing"""
        self._idle = asyncio.Event()
        """cleared while a plan pauses"""
        self._idle.set()

    # -- what is said

    def wait(self, gang: Gang, reason: str, places: tuple[Placed, ...] | None = None) -> Misfit:
        """The answer to the members of a gang that waits for this reason, which is told once.

        `places`: for the members that fit, if it waits for room.
        """
        wait = gang.wait
        wait.places = places
        if wait.misfit is None or wait.reason != reason:
            wait.reason, wait.misfit = reason, gang_misfit(f"gang {gang.name}: {reason}")
            self.tell(gang, reason)
        return wait.misfit

    def tell(self, gang: Gang, text: str) -> None:
        log.info("gang", gang=gang.name, state=gang.state.value, text=text)
        self._observer.on_gang(GangEvent(gang.namespace, gang.group.name, gang.state.value, text, tuple(gang.members)))

    # -- plans

    @property
    def is_busy(self) -> bool:
        """Whether a plan pauses."""
        return not self._idle.is_set()

    def plan(self, gang: Gang, asking: Member | None) -> Misfit | None:
        """WAITING -> PLANNED, or COMPLETING where some members are bound; otherwise why not."""
        return finish(self._plan(gang, asking))

    async def plan_in_slices(self, gang: Gang, asking: Member | None) -> Misfit | None:
        """The same between other work, and after the plan that pauses now, if there is one: two large gangs never have
        parts of what each other needs."""
        while self.is_busy:
            await self._idle.wait()
        if gang.state is not GangState.WAITING or not gang.members:
            return gang.wait.misfit  # Something else has happened to it meanwhile.
        self._idle.clear()
        try:
            return await finish_in_slices(self._plan(gang, asking))
        finally:
            self._idle.set()

    def _plan(
        self, gang: Gang, asking: Member | None, *, again: int = PLAN_AGAIN
    ) -> Generator[None, None, Misfit | None]:
        if not gang.group.is_sized:
            return self.wait(gang, self._unsized_text(gang))
        if self.is_begun(gang):
            yield from self.complete(gang)
            return None
        shared = gang.members.shared_claim()
        if shared:
            return self.wait(gang, shared_claim_text(shared))
        present, required = gang.present, gang.required
        now, term = self._cycles.clock.monotonic(), self._cycles.term
        missing = max(required - present, 0)
        if gang.wait.must_ask:
            asked = (asking is not None) + len(gang.members.asleep)
            if missing or asked < required:
                not_asked = "" if missing else f"; kube-scheduler asks for {asked} of them"
                return self.wait(gang, f"{present} of {required} members exist{not_asked}")
        if now < gang.wait.not_before:
            return gang.wait.misfit or self.wait(gang, "its last plan was given up; the next one follows soon")
        never = self._never_text(gang)
        if never and asking is None and gang.wait.misfit is not None:
            return self.wait(gang, never, gang.wait.places)
        if not self._holds.accounts.pays_for(gang.namespace):
            return self._wait_for_account(gang, 0.0)
        ledger = self._cycles.ledger
        # What a plan depends on beside the ledger; the candidates of a member are in it, since it has asked with them.
        state = (ledger.version, present, asking.candidates if asking is not None else None)
        if gang.wait.misfit is not None and (gang.wait.tried == state or now < gang.wait.plan_at):
            return gang.wait.misfit
        gang.wait.places = None
        self._holds.release(gang)
        answer = yield from self._try(gang, asking, missing)
        if isinstance(answer, GangMisfit):
            with self._turns.stepping_aside(gang) as is_more_free:
                if is_more_free:
                    answer = yield from self._try(gang, asking, missing)
        if gang.state is not GangState.WAITING:
            return None  # Something else has happened to it in a pause.
        if isinstance(answer, Unpaid):
            return self._wait_for_account(gang, answer.cards)
        if answer is None:
            gang.note_change()
            if again and gang.members and self._cycles.term == term:
                return (yield from self._plan(gang, asking, again=again - 1))
            self._pause(gang)
            return self.wait(gang, "its members have changed; the next plan follows")
        gang.wait.is_unfinished = isinstance(answer, Unfinished)
        if isinstance(answer, GangPlan):
            self.begin_plan(gang)
            return None
        text = "finding room takes longer than one call may; the search goes on"
        if isinstance(answer, GangMisfit):
            text = never or answer.text
            text = f"{present} of {required} members exist; {text}" if missing else text
            if self._turns.has(gang) and not self._holds.has_moves_for(gang):
                self._turns.hold(gang, answer.places)
        else:
            self._cycles.unschedulable.on_room()
        misfit = self.wait(gang, text, answer.places if isinstance(answer, GangMisfit) else None)
        gang.wait.tried = (ledger.version, *state[1:])
        if isinstance(answer, GangMisfit) and len(answer.places) >= MEMBERS_AT_ONCE:
            self._pause(gang)
        return misfit

    def _try(self, gang: Gang, asking: Member | None, missing: int) -> Planning:
        answer = yield from self._holds.plan(gang, asking, missing=missing, work=MAX_WORK)
        if isinstance(answer, GangMisfit) and gang.members.forget_narrowed():
            answer = yield from self._holds.plan(gang, asking, missing=missing, work=MAX_WORK)
        return answer

    def _never_text(self, gang: Gang) -> str:
        shortage = self._outlook.shortage(gang)
        return f"never fits, even with all other pods gone: {shortage}" if shortage else ""

    def _wait_for_account(self, gang: Gang, cards: float) -> Misfit:
        """Its namespace has held too much without being bound: the next plan follows once the account pays for it."""
        clock = self._cycles.clock
        at_least = clock.monotonic() + PAUSE_S
        gang.wait.not_before = max(at_least, self._holds.accounts.pays_again_at(gang.namespace, cards))
        at = datetime.fromtimestamp(clock.now() + gang.wait.not_before - clock.monotonic(), clock.zone)
        why = f"gangs of namespace {gang.namespace} have held too much for too long without being bound"
        return self.wait(gang, f"{why}; the next plan follows at {at:%H:%M %Z}")

    def _pause(self, gang: Gang) -> None:
        """A large gang that does not fit, or whose members change, is planned less often: each time it takes what it
        gets, and gives it back. It is tried again then, because something may have become free where it had looked
        before."""
        gang.wait.tried, gang.wait.plan_at = None, self._cycles.clock.monotonic() + PAUSE_S
        asyncio.get_running_loop().call_later(PAUSE_S, self._cycles.unschedulable.on_room)

    def place(self, gang: Gang, plan: Plan, member: Member, named: CandidateNames) -> Placed | Misfit | Alone:
        """The member's hold of the plan, on a node that kube-scheduler allows for it."""
        request = member.request
        placement = self._holds.take(gang, request, named)
        if placement is not None:
            return placement
        member.narrowed = named.resolve()
        placement = self._holds.exchange(gang, request, named)
        if placement is not None:
            return placement
        if not self._holds.count(gang) and len(self._holds.unplaced(gang)) <= gang.present - gang.required:
            return Alone.SPARE
        plan.replans += 1
        self._holds.release(gang)
        if plan.replans > 2 * gang.group.size + SPARE_REPLANS:
            why = "kube-scheduler refused too many of the planned nodes for reasons of its own"
            return self.give_up(gang, why)
        why = "no other node was found for it"
        if len(self._holds.unplaced(gang)) <= MAX_REPLANNED:
            missing = max(gang.required - gang.present, 0)
            answer = finish(self._holds.plan(gang, member, missing=missing, work=MAX_WORK))
            placement = self._holds.take(gang, request, named) if isinstance(answer, GangPlan) else None
            if placement is not None:
                return placement
            why = answer.text if isinstance(answer, GangMisfit) else why
        allowed = frozenset(member.narrowed.names)
        if member.refused_within == allowed:
            # It is only asked for after others have their places: the next plan would be the same again.
            member.candidates = member.narrowed
        member.refused_within = allowed
        return self.give_up(gang, f"kube-scheduler does not allow the planned node for pod {request.name}: {why}")

    def _unsized_text(self, gang: Gang) -> str:
        where = gang.group.where
        kind = where.value if where is not None else "any kind"
        return f"its size is not known: no PodGroup of {kind} with minMember was found; write tessera.io/gang-size"

    def follow_moves(self, gang: Gang, workload: Workload) -> bool:
        """WAITING -> PLANNED: members of this workload were moved, or others for them, and go where places are held."""
        if not self._cycles.ledger.holds.has_moves or self.is_begun(gang):
            return False
        is_held = self._holds.hold_moved(gang, workload)
        if is_held:
            self.begin_plan(gang)
        return is_held

    def begin_plan(self, gang: Gang) -> None:
        """WAITING, NOMINATED -> PLANNED: every member has its hold."""
        patience = self._settings.gang_s
        gang.begin_plan(self._now(), patience=patience, longest=LONGEST_PLAN * patience)
        self._turns.end(gang)
        self.tell(gang, f"a place for each of {self._holds.count(gang)} members is held")

    def extend_plan(self, gang: Gang) -> None:
        """The plan has made progress."""
        if gang.plan is not None:
            gang.plan.deadline = self._now() + self._settings.gang_s

    def give_up(self, gang: Gang, why: str, *, pause: bool = True, must_ask: bool = False) -> Misfit:
        """PLANNED -> WAITING: release everything; no bind that waits is written. `must_ask`: members did not come."""
        self._holds.give_up(gang)
        plan, wait = gang.give_up(), gang.wait
        wait.must_ask = wait.must_ask or must_ask
        if pause:
            wait.failures += 1
            wait.not_before = self._now() + PAUSES.ceiling(wait.failures)
        self.given_up += 1
        misfit = self.wait(gang, f"the plan was given up: {why}")
        plan.end_binds(misfit.text)
        return misfit

    def end_if_overdue(self, gang: Gang) -> None:
        if gang.state is PLANNED and gang.plan is not None and self._now() >= gang.plan.until:
            self.give_up(gang, f"{gang.progress} in time", must_ask=True)

    def end_unpaid(self, gang: Gang) -> None:
        """The account of the namespace does not pay for what is held any longer."""
        why = f"gangs of namespace {gang.namespace} have held too much for too long without being bound"
        self._turns.stop(gang, why)
        if gang.state is PLANNED:
            self.give_up(gang, why, must_ask=True)
        elif gang.state in (COMPLETING, WHOLE):
            self._holds.release(gang)

    # -- gangs that are bound, in part or as a whole

    def is_begun(self, gang: Gang) -> bool:
        """Whether a member is bound, or may be."""
        if (gang.plan is not None and gang.plan.released) or gang.members.count(MemberState.BOUND):
            return True
        for uid in gang.members:
            cycle = self._cycles.get(uid)
            if cycle is not None and cycle.state in IN_WRITING:
                return True
        return False

    def needs_holds(self, gang: Gang) -> bool:
        """Whether a gang that is bound in part has members without a place."""
        return gang.state in (WAITING, COMPLETING) and self.is_begun(gang) and bool(self._holds.unplaced(gang))

    def complete(self, gang: Gang) -> Generator[None, None, None]:
        """WAITING -> COMPLETING: hold what is missing, as much of it as there is room for, in slices.

        The state changes last: a member that is asked for in a pause waits for its hold.
        """
        before = gang.state, self._cycles.term
        self._turns.end(gang)
        self._holds.release(gang)
        answer = None
        for _ in range(PLAN_AGAIN):
            if answer is None and self._holds.unplaced(gang):
                answer = yield from self._holds.plan(gang, None, missing=0)
            if (gang.state, self._cycles.term) != before:
                return  # Something else has happened to it in a pause.
        if isinstance(answer, GangMisfit):
            self._holds.hold(gang, answer.places)
        gang.complete(self._now() + HELD_S)
        self.let_holds_expire(gang)
        bound = gang.members.count(MemberState.BOUND)
        self.tell(gang, f"{bound} of {gang.required} members are bound; the rest goes first")

    # -- inside

    def let_holds_expire(self, gang: Gang) -> None:
        """It is bound in part: what the others have is free again after a while."""
        for hold in self._holds.of(gang):
            self._cycles.ledger.extend(hold.uid, gang.holds_end)

    def _now(self) -> float:
        return self._cycles.clock.monotonic()


def gang_misfit(text: str) -> Misfit:
    return node_misfit(Reason.GANG_WAITING, detail=text)
