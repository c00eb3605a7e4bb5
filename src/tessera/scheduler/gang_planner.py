"""Plans gangs whole: a hold for every member, or the whole reason why not.

A plan is made in one step of the event loop, so of two gangs that fit alone but not together one gets all it needs, and
the other one waits with nothing. A gang that does not fit holds nothing, and smaller pods pass it.

Members that do not exist yet are planned with the first one that asks, as copies of it, so that members that are
created one after the other need not be refused and woken. That is tried once (`gang_plans`).
"""

from __future__ import annotations

from tessera.core.gangs import GangMisfit, GangPlan
from tessera.core.grants import Placement
from tessera.core.misfits import Misfit
from tessera.core.selection import CandidateNames, Unfinished
from tessera.scheduler.gang import Gang, Member
from tessera.scheduler.gang_completion import GangCompletion
from tessera.scheduler.gang_holds import GangHolds
from tessera.scheduler.gang_plans import GangPlans
from tessera.scheduler.gang_reports import GangReports
from tessera.scheduler.gang_turns import GangTurns
from tessera.scheduler.pod_cycle import PodCycles
from tessera.scheduler.unschedulable_pods import MOST_WORK

SPARE_REPLANS = 8
"""beside two per member: a plan that kube-scheduler's own reasons refuse more often is given up"""


class GangPlanner:
    """For all gangs."""

    def __init__(
        self,
        holds: GangHolds,
        cycles: PodCycles,
        plans: GangPlans,
        *,
        turns: GangTurns,
        completion: GangCompletion,
        reports: GangReports,
    ) -> None:
        self._holds = holds
        self._cycles = cycles
        self._plans = plans
        self._turns = turns
        self._completion = completion
        self._reports = reports

    def plan(self, gang: Gang, asking: Member | None) -> Misfit | None:
        """WAITING -> PLANNED, or COMPLETING where some members are bound; otherwise why not."""
        if not gang.group.is_sized:
            return self._reports.wait(gang, self._unsized_text(gang))
        if self._completion.is_begun(gang):
            self._completion.begin(gang)
            return None
        present, required = gang.present(), gang.required
        missing = max(required - present, 0)
        if self._plans.must_ask(gang):
            asked = (asking is not None) + sum(member.is_refused for member in gang.members.values())
            if missing or asked < required:
                not_asked = "" if missing else f"; kube-scheduler asks for {asked} of them"
                return self._reports.wait(gang, f"{present} of {required} members exist{not_asked}")
        if self._cycles.clock.monotonic() < gang.not_before:
            return gang.misfit or self._reports.wait(gang, "its last plan was given up; the next one follows soon")
        arrays = self._cycles.ledger.arrays
        # What a plan depends on beside the ledger; the candidates of a member are in it, since it has asked with them.
        state = (arrays.epoch, arrays.now, present, asking.candidates if asking is not None else None)
        if gang.tried == state and gang.misfit is not None:
            return gang.misfit
        self._holds.release(gang)
        answer = self._holds.plan(gang, asking, missing=missing, work=MOST_WORK)
        gang.is_unfinished = isinstance(answer, Unfinished)
        gang.fitting = answer.places if isinstance(answer, GangMisfit) and not missing else None
        if isinstance(answer, GangPlan):
            self._plans.begin(gang, answer.places)
            return None
        text = "finding room takes longer than one call may; the search goes on"
        if isinstance(answer, GangMisfit):
            text = f"{present} of {required} members exist; {answer.text}" if missing else answer.text
            if self._turns.has(gang):
                self._holds.hold(gang, answer.places)
        else:
            self._cycles.unschedulable.on_room()
        misfit = self._reports.wait(gang, text)
        gang.tried = (arrays.epoch, arrays.now, *state[2:])
        return misfit

    def place(self, gang: Gang, member: Member, named: CandidateNames) -> Placement | Misfit | None:
        """The member's hold of the plan, on a node that kube-scheduler allows for it. None: it is more than must be
        placed together."""
        request = member.request
        placement = self._holds.take(gang, request, named) or self._holds.move(gang, request, named)
        if placement is not None:
            return placement
        if not gang.free_holds and len(self._holds.unplaced(gang)) <= gang.present() - gang.required:
            return None
        member.candidates = named.resolve()
        gang.replans += 1
        self._holds.release(gang)
        if gang.replans > 2 * gang.group.size + SPARE_REPLANS:
            why = "kube-scheduler refused too many of the planned nodes for reasons of its own"
            return self._plans.give_up(gang, why)
        answer = self._holds.plan(gang, member, missing=max(gang.required - gang.present(), 0), work=MOST_WORK)
        if isinstance(answer, GangPlan):
            self._holds.hold(gang, answer.places)
            placement = self._holds.take(gang, request, named)
            if placement is not None:
                return placement
        why = answer.text if isinstance(answer, GangMisfit) else "no other node was found for it"
        return self._plans.give_up(
            gang, f"kube-scheduler does not allow the planned node for pod {request.name}: {why}"
        )

    def _unsized_text(self, gang: Gang) -> str:
        self._cycles.unschedulable.on_room()
        where = gang.group.where
        kind = where.value if where is not None else "any kind"
        return f"its size is not known: no PodGroup of {kind} with minMember was found; write tessera.io/gang-size"
