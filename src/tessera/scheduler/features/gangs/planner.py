"""Plans gangs whole: a hold for every member, or the whole reason why not.

One plan is made after the other, so of two gangs that fit alone but not together one gets all it needs, and the other
one waits with nothing. The plan of a large gang pauses for other work; what it has placed by then is held, and released
if the rest does not fit. A gang that does not fit holds nothing, and smaller pods pass it.

Members that do not exist yet are planned with the first one that asks, as copies of it, so that members that are
created one after the other need not be refused and woken. That is tried once (`lifecycle`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from datetime import datetime

from tessera.core.gangs import GangMisfit, GangPlan
from tessera.core.grants import Placement
from tessera.core.misfits import Misfit
from tessera.core.selection import CandidateNames, Unfinished
from tessera.core.steps import finish
from tessera.scheduler.features.gangs.gang import Alone, Gang, GangState, Member, Plan
from tessera.scheduler.features.gangs.holds import MEMBERS_AT_ONCE, PLAN_AGAIN, GangHolds, Planning, Unpaid
from tessera.scheduler.features.gangs.lifecycle import GangLifecycle
from tessera.scheduler.features.gangs.turns import GangOutlook, GangTurns
from tessera.scheduler.pod_cycle import PodCycles
from tessera.scheduler.preemption_loop import finish_in_slices
from tessera.scheduler.unschedulable_pods import MAX_WORK

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


class GangPlanner:
    """Plans gangs, in slices between other requests."""

    def __init__(
        self,
        holds: GangHolds,
        cycles: PodCycles,
        lifecycle: GangLifecycle,
        *,
        turns: GangTurns,
        outlook: GangOutlook,
    ) -> None:
        self._outlook = outlook
        self._holds = holds
        self._cycles = cycles
        self._lifecycle = lifecycle
        self._turns = turns
        self._idle = asyncio.Event()
        """cleared while a plan pauses"""
        self._idle.set()

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
            return self._lifecycle.wait(gang, self._unsized_text(gang))
        if self._lifecycle.is_begun(gang):
            yield from self._lifecycle.complete(gang)
            return None
        shared = gang.members.shared_claim()
        if shared:
            return self._lifecycle.wait(gang, shared_claim_text(shared))
        present, required = gang.present, gang.required
        now, term = self._cycles.clock.monotonic(), self._cycles.term
        missing = max(required - present, 0)
        if gang.wait.must_ask:
            asked = (asking is not None) + len(gang.members.asleep)
            if missing or asked < required:
                not_asked = "" if missing else f"; kube-scheduler asks for {asked} of them"
                return self._lifecycle.wait(gang, f"{present} of {required} members exist{not_asked}")
        if now < gang.wait.not_before:
            return gang.wait.misfit or self._lifecycle.wait(
                gang, "its last plan was given up; the next one follows soon"
            )
        never = self._never_text(gang)
        if never and asking is None and gang.wait.misfit is not None:
            return self._lifecycle.wait(gang, never, gang.wait.places)
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
            return self._lifecycle.wait(gang, "its members have changed; the next plan follows")
        gang.wait.is_unfinished = isinstance(answer, Unfinished)
        if isinstance(answer, GangPlan):
            self._lifecycle.begin_plan(gang)
            return None
        text = "finding room takes longer than one call may; the search goes on"
        if isinstance(answer, GangMisfit):
            text = never or answer.text
            text = f"{present} of {required} members exist; {text}" if missing else text
            if self._turns.has(gang) and not self._holds.has_moves_for(gang):
                self._turns.hold(gang, answer.places)
        else:
            self._cycles.unschedulable.on_room()
        misfit = self._lifecycle.wait(gang, text, answer.places if isinstance(answer, GangMisfit) else None)
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
        return self._lifecycle.wait(gang, f"{why}; the next plan follows at {at:%H:%M %Z}")

    def _pause(self, gang: Gang) -> None:
        """A large gang that does not fit, or whose members change, is planned less often: each time it takes what it
        gets, and gives it back. It is tried again then, because something may have become free where it had looked
        before."""
        gang.wait.tried, gang.wait.plan_at = None, self._cycles.clock.monotonic() + PAUSE_S
        asyncio.get_running_loop().call_later(PAUSE_S, self._cycles.unschedulable.on_room)

    def place(self, gang: Gang, plan: Plan, member: Member, named: CandidateNames) -> Placement | Misfit | Alone:
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
            return self._lifecycle.give_up(gang, why)
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
        return self._lifecycle.give_up(
            gang, f"kube-scheduler does not allow the planned node for pod {request.name}: {why}"
        )

    def _unsized_text(self, gang: Gang) -> str:
        where = gang.group.where
        kind = where.value if where is not None else "any kind"
        return f"its size is not known: no PodGroup of {kind} with minMember was found; write tessera.io/gang-size"
