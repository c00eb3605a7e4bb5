"""The states of gangs from the plan to the last bind, which change only here. `gang` draws them.

    planned      every member has a hold; a plan ends if no member comes for `--gang-timeout`, and after a while anyway
    given up     everything is released, and binds that wait fail; the next plan follows after a pause that grows
    the barrier  binds of members wait until every required member has come, and then until the claims of all are
                 written; then all are bound together
    completing   what is bound is shown by the API, which is the memory: a process that finds a gang bound in part makes
                 holds for the rest before it decides about anything else

If members did not come, the next plan of the gang waits until kube-scheduler has asked for all of them. What all gangs
of a namespace hold without being bound is bounded by its account (`accounts`), whatever becomes of their plans.
`nominations` has the states of gangs that preempt.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator

import structlog

from tessera.core.gang_trial import Placed
from tessera.core.gangs import GangMisfit
from tessera.core.misfits import Misfit, Reason, node_misfit
from tessera.kube.backoff import Backoff
from tessera.scheduler.features.gangs.gang import ClaimBarrier, Gang, GangState, MemberState, Plan
from tessera.scheduler.features.gangs.holds import PLAN_AGAIN, GangHolds
from tessera.scheduler.features.gangs.registry import GangRegistry
from tessera.scheduler.features.gangs.turns import GangTurns
from tessera.scheduler.observer import GangEvent, SchedulerObserver
from tessera.scheduler.pod_cycle import CycleState, PodCycles
from tessera.scheduler.settings import Settings

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


class GangLifecycle:
    """Moves gangs from one state to the next."""

    def __init__(
        self,
        registry: GangRegistry,
        holds: GangHolds,
        cycles: PodCycles,
        turns: GangTurns,
        *,
        settings: Settings,
        observer: SchedulerObserver,
    ) -> None:
        self._registry = registry
        self._holds = holds
        self._cycles = cycles
        self._turns = turns
        self._settings = settings
        self._observer = observer
        self.given_up = 0
        """plans that came to nothing"""
        self.bound = 0
        """gangs that became whole"""

    # -- what is said

    def wait(self, gang: Gang, reason: str, places: tuple[Placed, ...] | None = None) -> Misfit:
        """The answer to the members of a gang that waits for this reason, which is told once.

        `places`: for the members that fit, if it waits for room.
        """
        wait = gang.wait
        wait.places = places
        if wait.misfit is None or wait.reason != reason:
            wait.reason, wait.misfit = reason, gang_misfit(f"gang {gang.name}: {reason}")
            self._tell(gang, reason)
        return wait.misfit

    def _tell(self, gang: Gang, text: str) -> None:
        log.info("gang", gang=gang.name, state=gang.state.value, text=text)
        self._observer.on_gang(GangEvent(gang.namespace, gang.group.name, gang.state.value, text, tuple(gang.members)))

    # -- plans

    def begin_plan(self, gang: Gang) -> None:
        """WAITING, NOMINATED -> PLANNED: every member has its hold."""
        patience = self._settings.gang_s
        gang.begin_plan(self._now(), patience=patience, longest=LONGEST_PLAN * patience)
        self._turns.end(gang)
        self._tell(gang, f"a place for each of {self._holds.count(gang)} members is held")

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

    # -- the barrier

    async def enter_bind(self, uid: str) -> str:
        """Wait until all required members have come to bind; empty, or why they have not.

        Then nothing of the pod is reserved any more, unless the plan goes on and only this bind has waited too long.
        """
        gang = self._registry.of(uid)
        if gang is None or gang.state in (COMPLETING, WHOLE):
            return ""
        plan = gang.plan
        if gang.state is not PLANNED or plan is None:
            self._drop_reservation(uid)
            return f"gang {gang.name} is not planned"
        turn: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        plan.binds[uid] = turn
        self.extend_plan(gang)
        self._open_if_complete(gang, plan)
        ends = self._now() + self._settings.turn_s
        try:
            while not turn.done():
                now = self._now()
                if now >= plan.until:
                    self.end_if_overdue(gang)
                elif now >= ends:
                    self._holds.take_back(gang, uid)
                    return f"gang {gang.name}: {gang.progress}"
                else:
                    await asyncio.wait([turn], timeout=min(plan.until, ends) - now)
            return turn.result()
        finally:
            if plan.binds.get(uid) is turn:
                del plan.binds[uid]

    async def await_claims(self, uid: str) -> str:
        """Wait until the claims of all members that are bound together are written; empty, or why they are not."""
        gang = self._registry.of(uid)
        barrier = gang.plan.writing if gang is not None and gang.plan is not None else None
        if gang is None or barrier is None or uid not in barrier.pending:
            return ""
        barrier.ready += 1
        self._pass(gang, uid)
        if not barrier.opened.done():
            await asyncio.wait([barrier.opened], timeout=self._settings.gang_s)
        is_open = barrier.opened.done() and barrier.opened.result()
        return "" if is_open else f"gang {gang.name}: claims of other members are not theirs"

    def _pass(self, gang: Gang, uid: str) -> None:
        """The claims of a member are written, or never will be."""
        barrier = gang.plan.writing if gang.plan is not None else None
        if gang.plan is None or barrier is None:
            return
        barrier.pending.discard(uid)
        if not barrier.pending and not barrier.opened.done():
            gang.plan.writing = None
            barrier.opened.set_result(barrier.ready + gang.members.count(MemberState.BOUND) >= gang.required)

    def leave_bind(self, uid: str) -> None:
        """The bind has ended."""
        gang = self._registry.of(uid)
        plan = gang.plan if gang is not None else None
        if gang is None or plan is None:
            return
        self._pass(gang, uid)
        if uid in plan.released:
            plan.released.remove(uid)
            if not plan.released:
                self.observe(gang)  # Perhaps no member was bound.

    def _open_if_complete(self, gang: Gang, plan: Plan) -> None:
        """PLANNED -> COMPLETING: every required member has come, and nothing known can make one fail."""
        if _come(gang) < gang.required:
            return
        for uid in list(plan.binds):
            cycle = self._cycles.get(uid)
            can_be_bound = (
                cycle is not None and cycle.state is CycleState.RESERVED and self._cycles.may_be_written(cycle)
            )
            placement = cycle.placement if cycle is not None else None
            if not can_be_bound or placement is None or not self._cycles.has_cards(placement):
                self._drop_reservation(uid)
                plan.end_bind(uid, "its node lost its devices")
        if _come(gang) < gang.required:
            return
        gang.wait.failures, gang.wait.must_ask = 0, False
        plan.released.update(plan.binds)
        came = len(plan.binds)
        cycles = [self._cycles.get(uid) for uid in plan.binds]
        if any(each is not None and each.prepared is not None and each.prepared.claim_uids for each in cycles):
            opened: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
            plan.writing = ClaimBarrier(set(plan.binds), opened)
        self._open(gang, plan)
        self._tell(gang, f"all of {came} members have come: they are bound")

    def _open(self, gang: Gang, plan: Plan) -> None:
        """PLANNED -> COMPLETING: no bind waits any more."""
        gang.open(self._now() + HELD_S)
        self._let_holds_expire(gang)
        self._holds.end_taken(gang, bound=True)
        plan.end_binds("")

    # -- gangs that are bound, in part or as a whole

    def is_begun(self, gang: Gang) -> bool:
        """Whether a member is bound, or may be."""
        if (gang.plan is not None and gang.plan.released) or gang.members.count(MemberState.BOUND):
            return True
        cycles = (self._cycles.get(uid) for uid in gang.members)
        return any(cycle is not None and cycle.state in IN_WRITING for cycle in cycles)

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
        self._let_holds_expire(gang)
        bound = gang.members.count(MemberState.BOUND)
        self._tell(gang, f"{bound} of {gang.required} members are bound; the rest goes first")

    def observe(self, gang: Gang) -> None:
        """Bring the state to what the API shows."""
        bound = gang.members.count(MemberState.BOUND)
        if bound and bound + gang.members.count(MemberState.DONE) >= gang.group.minimum and gang.group.is_sized:
            if gang.state is not WHOLE:
                gang.become_whole()
                self._holds.end_taken(gang, bound=True)
                if gang.plan is not None:
                    gang.plan.end_binds("")
                self.bound += 1
                self._tell(gang, f"{bound} members are bound")
        elif gang.state in (COMPLETING, WHOLE) and not self.is_begun(gang):
            self._holds.give_up(gang)
            gang.begin_again(self._now())
            self._registry.put_last(gang)
        elif gang.state is PLANNED and gang.plan is not None:
            if bound:
                # Another scheduler, or a write of an earlier process: what is left must follow.
                self._open(gang, gang.plan)
            else:
                self._open_if_complete(gang, gang.plan)

    # -- inside

    def _let_holds_expire(self, gang: Gang) -> None:
        for hold in self._holds.of(gang):
            self._cycles.ledger.extend(hold.uid, gang.holds_end)

    def _now(self) -> float:
        return self._cycles.clock.monotonic()

    def _drop_reservation(self, uid: str) -> None:
        cycle = self._cycles.get(uid)
        if cycle is not None and cycle.state is CycleState.RESERVED:
            self._cycles.give_up(cycle)
        self._holds.accounts.close(uid)


def _come(gang: Gang) -> int:
    """Members that have come to bind, or are bound."""
    return gang.come + gang.members.count(MemberState.BOUND)


def gang_misfit(text: str) -> Misfit:
    return node_misfit(Reason.GANG_WAITING, detail=text)
