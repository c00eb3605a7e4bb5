"""The barrier of binds: members of a planned gang wait here until every required one has come.

Where members have claims, their binds wait a second time, until the claims of all are written. Then all are bound
together. What is bound is shown by the API, which brings the gang to its state (`observe`).
"""

from __future__ import annotations

import asyncio

from tessera.scheduler.features.gangs.gang import ClaimBarrier, Gang, GangState, MemberState, Plan
from tessera.scheduler.features.gangs.holds import GangHolds
from tessera.scheduler.features.gangs.lifecycle import HELD_S, GangLifecycle
from tessera.scheduler.features.gangs.registry import GangRegistry
from tessera.scheduler.pod_cycle import CycleState, PodCycles
from tessera.scheduler.settings import Settings

PLANNED, COMPLETING, WHOLE = GangState.PLANNED, GangState.COMPLETING, GangState.WHOLE


class GangBarrier:
    """Lets binds of members go on."""

    def __init__(
        self, lifecycle: GangLifecycle, registry: GangRegistry, holds: GangHolds, cycles: PodCycles, settings: Settings
    ) -> None:
        self._lifecycle = lifecycle
        self._registry = registry
        self._holds = holds
        self._cycles = cycles
        self._settings = settings
        self.bound = 0
        """gangs that became whole"""

    async def enter_bind(self, uid: str, group: str) -> str:
        """Wait until all required members have come to bind; empty, or why they have not. `group`: that the pod names.

        Then nothing of the pod is reserved any more, unless the plan goes on and only this bind has waited too long.
        """
        gang = self._registry.of(uid)
        if gang is None and group:
            # What it asked for could not be read for a while. The next filter call makes it a member again.
            self._drop_reservation(uid)
            return f"gang {group} does not count this pod yet"
        if gang is None or gang.state in (COMPLETING, WHOLE):
            return ""
        plan = gang.plan
        if gang.state is not PLANNED or plan is None:
            self._drop_reservation(uid)
            return f"gang {gang.name} is not planned"
        turn: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        plan.binds[uid] = turn
        self._lifecycle.extend_plan(gang)
        self._open_if_complete(gang, plan)
        ends = self._now() + self._settings.turn_s
        try:
            while not turn.done():
                now = self._now()
                if now >= plan.until:
                    self._lifecycle.end_if_overdue(gang)
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
        self._lifecycle.tell(gang, f"all of {came} members have come: they are bound")

    def _open(self, gang: Gang, plan: Plan) -> None:
        """PLANNED -> COMPLETING: no bind waits any more."""
        gang.open(self._now() + HELD_S)
        self._lifecycle.let_holds_expire(gang)
        self._holds.end_taken(gang, bound=True)
        plan.end_binds("")

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
                self._lifecycle.tell(gang, f"{bound} members are bound")
        elif gang.state in (COMPLETING, WHOLE) and not self._lifecycle.is_begun(gang):
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
