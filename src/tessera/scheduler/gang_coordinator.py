"""Schedules gangs all or nothing: what filter answers to a member, and when its bind may go on.

    filter of a member   the gang is planned whole, once; each member gets a hold of the plan, or one common reason
    bind of a member     waits until every required member has come, then all are written together
    over time            a plan without progress is given up, and tried again after a pause that grows to a minute

A plan is made in one step of the event loop, so of two gangs that fit alone but not together one gets all it needs, and
the other one waits with nothing. A gang that does not fit holds nothing, and smaller pods pass it.

Members that do not exist yet are planned with the first one that asks, as copies of it, so that members that are
created one after the other need not be refused and woken. That is tried once; if a member does not come in time, the
next plan waits until kube-scheduler has asked for all of them, and so do the plans of all gangs of the namespace for a
while: otherwise one pod, created again and again, could hold the whole cluster. So a member that kube-scheduler
itself places nowhere makes a gang wait, but hold nothing.

So that small pods cannot starve a gang for ever, the complete gang that has waited longest for more than `starving`
seconds gets its turn: what becomes free is held for it, for at most `turn` seconds; then it is the next one's turn.

The API is the memory: a process that finds a gang bound in part makes holds for the rest before it decides about
anything else. `gang` draws the states.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from itertools import chain

import structlog

from tessera.core.gangs import GangMisfit, GangPlan
from tessera.core.grants import Placement
from tessera.core.misfits import Misfit, Reason, node_misfit
from tessera.core.requests import PodRequest
from tessera.core.selection import CandidateNames, Unfinished
from tessera.scheduler.gang import Gang, GangState, Member, MemberState
from tessera.scheduler.gang_holds import GangHolds
from tessera.scheduler.gang_registry import GangRegistry
from tessera.scheduler.observer import GangEvent, SchedulerObserver
from tessera.scheduler.pod_cycle import CycleState, PodCycles
from tessera.scheduler.pod_requests import RequestReader
from tessera.scheduler.unschedulable_pods import MOST_WORK
from tessera.vendors.drafts import BadPod
from tessera.vendors.pod_reader import ENDED
from tessera.wire.objects import Pod
from tessera.wire.pod_groups import BadPodGroup, PodGroup, read_pod_group

log = structlog.get_logger(__name__)

WAITING, PLANNED = GangState.WAITING, GangState.PLANNED
COMPLETING, WHOLE = GangState.COMPLETING, GangState.WHOLE
SUCCEEDED = "Succeeded"
UNSEEN_TICKS = 2
"""ticks, 15 s apart, that a member may be known from filter alone"""
LONGEST_PLAN = 6
"""times the patience: a plan whose members come one by one, each in time, ends nevertheless"""
FIRST_PAUSE, LONGEST_PAUSE = 5.0, 60.0
"""seconds between two plans of a gang whose last plan was given up; doubled each time"""
SPARE_REPLANS = 8
"""beside two per member: a plan that kube-scheduler's own reasons refuse more often is given up"""
DISTRUST_SECONDS = 600.0
"""for which nothing is held for members of a namespace that do not exist, after some of them did not come"""
HELD_SECONDS = 300.0
"""for which the rest of a gang that is bound in part has its holds, as long as a pod's reservation lasts"""
IN_WRITING = (CycleState.BINDING, CycleState.UNCERTAIN, CycleState.BOUND, CycleState.HANDING_OVER)


@dataclass(frozen=True, slots=True)
class GangTimes:
    """In seconds."""

    patience: float = 20.0
    """a plan waits for its next member"""
    bind: float = 20.0
    """a bind waits for the other members; below the extender's httpTimeout"""
    starving: float = 300.0
    """a complete gang waits before what becomes free is held for it; 0: never"""
    turn: float = 600.0
    """that lasts"""


class GangCoordinator:
    """All gangs. Used from the event loop only."""

    def __init__(
        self,
        holds: GangHolds,
        cycles: PodCycles,
        requests: RequestReader,
        *,
        times: GangTimes,
        observer: SchedulerObserver,
    ) -> None:
        self._holds = holds
        self._cycles = cycles
        self._requests = requests
        self._times = times
        self._observer = observer
        self.registry = GangRegistry()
        self._favoured: Gang | None = None
        """the starving gang whose turn it is"""
        self._turn_ends = 0.0
        self._distrusted: dict[str, float] = {}
        """namespace -> until when nothing is held for members that do not exist"""
        self._given_up = 0
        """plans that came to nothing since they were last counted"""
        self._bound = 0
        """gangs that became whole since then"""

    def count(self, state: GangState) -> int:
        return sum(1 for gang in self.registry if gang.state is state)

    def take_totals(self) -> dict[str, int]:
        """Gangs that became whole, and plans that were given up, since the last call."""
        totals = {"bound": self._bound, "given_up": self._given_up}
        self._bound = self._given_up = 0
        return totals

    # -- informer

    def observe(self, pod: Pod) -> None:
        """The API shows a pod. Comes after its cycle has seen it."""
        uid, phase = pod.metadata.uid, pod.status.phase
        group = read_pod_group(pod)
        has_failed = phase in ENDED and phase != SUCCEEDED
        is_over = has_failed or (pod.metadata.deletion_timestamp and not pod.spec.node_name)
        prepared = None if group is None or isinstance(group, BadPodGroup) or is_over else self._requests.read(pod)
        if prepared is None or isinstance(prepared, BadPod) or not isinstance(group, PodGroup):
            self.forget(uid)
            return
        gang, member = self._join(group, prepared.request)
        is_new = not member.is_shown
        member.is_shown = True
        if phase == SUCCEEDED or not prepared.request.asks_for_devices:
            state = MemberState.DONE
        elif pod.spec.node_name:
            state = MemberState.BOUND
        else:
            state = MemberState.GATED if pod.spec.scheduling_gates else MemberState.PENDING
        gang.set_state(member, state)
        if gang.state is PLANNED and is_new:
            self._extend(gang)
        self._look_again(gang)

    def forget(self, uid: str) -> None:
        """The pod is gone, has failed, or belongs to no gang any more."""
        gang = self.registry.leave(uid)
        if gang is None:
            return
        self._end_wait(gang, uid, "the pod is gone")
        if gang.members:
            self._look_again(gang)
        else:
            if gang.state is PLANNED:
                self._distrust(gang)
            self._holds.release(gang)
            if self._favoured is gang:
                self._favoured = None

    # -- filter

    def decide(self, pod: Pod, request: PodRequest, named: CandidateNames) -> Placement | Misfit | None:
        """A member's place, or why it has none; None if it is decided like a single pod."""
        group = read_pod_group(pod)
        if group is None:
            self.forget(request.uid)
            return None
        if isinstance(group, BadPodGroup):
            return _misfit(group.text)
        gang, member = self._join(group, request)
        member.request, member.is_refused = request, False
        self._return_hold(gang, request.uid)
        self._look_again(gang)
        self._end_if_overdue(gang)
        difference = self.registry.difference(gang, group)
        problem = _misfit(f"gang {gang.name}: {difference}") if difference else None
        if problem is None and gang.state is WAITING:
            member.candidates = named.resolve()
            problem = self._plan(gang, member)
        if problem is None and gang.state is PLANNED:
            placement = self._place(gang, member, named)
            if isinstance(placement, Placement) or placement is None:
                return placement
            problem = placement
        elif problem is None:
            if not gang.free_holds:
                return None
            return self._holds.take(gang, request, named) or self._holds.exchange(gang, request, named)
        member.is_refused = True
        return problem

    def note_refusal(self, uid: str, text: str) -> tuple[bool, int]:
        """Whether the member is refused with this text for the first time, and how often it was refused in all."""
        gang = self.registry.of(uid)
        if gang is None:
            return True, 1
        member = gang.members[uid]
        is_first, member.text = member.text != text, text
        member.refusals += 1
        return is_first, member.refusals

    def _plan(self, gang: Gang, asking: Member | None, *, work: float = MOST_WORK) -> Misfit | None:
        """WAITING -> PLANNED, or COMPLETING where some members are bound; otherwise why not."""
        if not gang.group.is_sized:
            return self._wait(gang, self._unsized_text(gang))
        if self._is_begun(gang):
            self._complete(gang)
            return None
        now, present, required = self._now(), gang.present(), gang.required
        missing = max(required - present, 0)
        if gang.must_ask or now < self._distrusted.get(gang.namespace, 0.0):
            asked = (asking is not None) + sum(member.is_refused for member in gang.members.values())
            if missing or asked < required:
                not_asked = "" if missing else f"; kube-scheduler asks for {asked} of them"
                return self._wait(gang, f"{present} of {required} members exist{not_asked}")
        if now < gang.not_before:
            return gang.misfit or self._wait(gang, "its last plan was given up; the next one follows soon")
        arrays = self._cycles.ledger.arrays
        # What a plan depends on beside the ledger; the candidates of a member are in it, since it has asked with them.
        state = (arrays.epoch, arrays.now, present, asking.candidates if asking is not None else None)
        if gang.tried == state and gang.misfit is not None:
            return gang.misfit
        self._holds.release(gang)
        answer = self._holds.plan(gang, asking, missing=missing, work=work)
        gang.is_unfinished = isinstance(answer, Unfinished)
        if isinstance(answer, GangPlan):
            self._begin_plan(gang, answer)
            return None
        text = "finding room takes longer than one call may; the search goes on"
        if isinstance(answer, GangMisfit):
            text = f"{present} of {required} members exist; {answer.text}" if missing else answer.text
            if self._favoured is gang:
                self._holds.hold(gang, answer.places)
        else:
            self._cycles.unschedulable.on_room()
        misfit = self._wait(gang, text)
        gang.tried = (arrays.epoch, arrays.now, *state[2:])
        return misfit

    def _begin_plan(self, gang: Gang, plan: GangPlan) -> None:
        self._holds.hold(gang, plan.places)
        now = self._now()
        gang.state, gang.tried, gang.misfit, gang.replans = PLANNED, None, None, 0
        gang.deadline, gang.ends = now + self._times.patience, now + LONGEST_PLAN * self._times.patience
        if self._favoured is gang:
            self._favoured = None
        self._tell(gang, f"a place for each of {len(plan.places)} members is held")

    def _place(self, gang: Gang, member: Member, named: CandidateNames) -> Placement | Misfit | None:
        """The member's hold of the plan, on a node that kube-scheduler allows for it."""
        request = member.request
        placement = self._holds.take(gang, request, named) or self._holds.move(gang, request, named)
        if placement is not None:
            return placement
        if not gang.free_holds and len(self._holds.unplaced(gang)) <= gang.present() - gang.required:
            return None  # More members than must be placed together.
        member.candidates = named.resolve()
        gang.replans += 1
        self._holds.release(gang)
        if gang.replans > 2 * gang.group.size + SPARE_REPLANS:
            return self._give_up(gang, "kube-scheduler refused too many of the planned nodes for reasons of its own")
        answer = self._holds.plan(gang, member, missing=max(gang.required - gang.present(), 0), work=MOST_WORK)
        if isinstance(answer, GangPlan):
            self._holds.hold(gang, answer.places)
            placement = self._holds.take(gang, request, named)
            if placement is not None:
                return placement
        why = answer.text if isinstance(answer, GangMisfit) else "no other node was found for it"
        return self._give_up(gang, f"kube-scheduler does not allow the planned node for pod {request.name}: {why}")

    def _complete(self, gang: Gang) -> None:
        """WAITING -> COMPLETING: hold what is missing, as much of it as there is room for."""
        gang.state, gang.deadline = COMPLETING, self._now() + HELD_SECONDS
        self._holds.release(gang)
        if self._holds.unplaced(gang):
            answer = self._holds.plan(gang, None, missing=0)
            if not isinstance(answer, Unfinished):
                self._holds.hold(gang, answer.places)
        self._tell(gang, f"{gang.count(MemberState.BOUND)} of {gang.required} members are bound; the rest goes first")

    # -- bind

    async def enter(self, uid: str) -> str:
        """Wait until all required members have come to bind; empty, or why they have not.

        Then nothing of the pod is reserved any more, unless the plan goes on and only this bind has waited too long.
        """
        gang = self.registry.of(uid)
        if gang is None or gang.state in (COMPLETING, WHOLE):
            return ""
        if gang.state is WAITING:
            self._drop_reservation(uid)
            return f"gang {gang.name} is not planned"
        turn: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        gang.waiting_binds[uid] = turn
        self._extend(gang)
        self._open_if_complete(gang)
        ends = self._now() + self._times.bind
        try:
            while not turn.done():
                now = self._now()
                if now >= min(gang.deadline, gang.ends):
                    self._end_if_overdue(gang)
                elif now >= ends:
                    self._return_hold(gang, uid)
                    return f"gang {gang.name}: {self._come(gang)}"
                else:
                    await asyncio.wait([turn], timeout=min(gang.deadline, gang.ends, ends) - now)
            return turn.result()
        finally:
            if gang.waiting_binds.get(uid) is turn:
                del gang.waiting_binds[uid]

    def leave(self, uid: str) -> None:
        """The bind has ended."""
        gang = self.registry.of(uid)
        if gang is not None:
            gang.released.discard(uid)

    def _open_if_complete(self, gang: Gang) -> None:
        """PLANNED -> COMPLETING: every required member has come, and nothing known can make one fail."""
        if gang.state is not PLANNED or len(gang.waiting_binds) + gang.count(MemberState.BOUND) < gang.required:
            return
        for uid in list(gang.waiting_binds):
            cycle = self._cycles.get(uid)
            can_be_bound = (
                cycle is not None and cycle.state is CycleState.RESERVED and self._cycles.may_be_written(cycle)
            )
            placement = cycle.placement if cycle is not None else None
            if not can_be_bound or placement is None or not self._cycles.has_cards(placement):
                self._drop_reservation(uid)
                self._end_wait(gang, uid, "its node lost its devices")
        if len(gang.waiting_binds) + gang.count(MemberState.BOUND) < gang.required:
            return
        gang.state, gang.failures, gang.deadline = COMPLETING, 0, self._now() + HELD_SECONDS
        gang.must_ask = False
        gang.released.update(gang.waiting_binds)
        self._tell(gang, f"all of {len(gang.waiting_binds)} members have come: they are bound")
        for uid in list(gang.waiting_binds):
            self._end_wait(gang, uid, "")

    # -- over time

    def recover(self) -> None:
        """Make holds for the rest of the gangs that are bound in part. Comes before any other decision."""
        for gang in sorted(self.registry, key=lambda gang: gang.name):
            if gang.state in (WAITING, COMPLETING) and self._is_begun(gang) and self._holds.unplaced(gang):
                self._complete(gang)

    def end_term(self) -> None:
        """This replica stops deciding: nothing is held any more."""
        self._favoured = None
        for gang in self.registry:
            if gang.state is PLANNED:
                self._give_up(gang, "this replica stopped deciding", pause=False)
            self._holds.give_up(gang)

    def tick(self) -> None:
        """End what only time ends. Called every 15 s."""
        now = self._now()
        unseen = []
        for uid, member in self.registry.members():
            member.unseen_ticks = 0 if member.is_shown else member.unseen_ticks + 1
            if member.unseen_ticks > UNSEEN_TICKS:
                unseen.append(uid)
        for uid in unseen:
            self.forget(uid)
        self._distrusted = {name: until for name, until in self._distrusted.items() if until > now}
        for gang in self.registry:
            self._look_again(gang)
            self._end_if_overdue(gang)
        if self._favoured is not None and now >= self._turn_ends:
            log.info("turn of a starving gang ends", gang=self._favoured.name)
            self._holds.release(self._favoured)
            self._favoured.since, self._favoured = now, None
        if any(gang.state is WAITING for gang in self.registry):
            # A pause may be over, a gang may be starving by now.
            self._cycles.unschedulable.on_room()

    async def retry(self) -> AsyncIterator[Sequence[PodRequest]]:
        """Plan the gangs that wait, the longest first; the members to be woken, gang by gang."""
        self._favour()
        for gang in sorted(self.registry, key=lambda gang: (gang.since, gang.name)):
            asleep = [member for member in gang.members.values() if member.is_refused]
            if not asleep or self.registry.get(gang.namespace, gang.group.name) is not gang:
                continue
            if gang.state is WAITING:
                if gang.is_unfinished:
                    await self._holds.prepare(gang)
                self._end_if_overdue(gang)
                problem = self._plan(gang, None) if gang.state is WAITING else None
                await asyncio.sleep(0)
                if problem is not None:
                    continue
            for member in asleep:
                member.is_refused = False
            yield [member.request for member in asleep]

    def on_wake_failed(self, uid: str) -> None:
        """The patch failed: the next change tries again."""
        gang = self.registry.of(uid)
        if gang is not None:
            gang.members[uid].is_refused = True

    # -- inside

    def _now(self) -> float:
        return self._cycles.clock.monotonic()

    def _join(self, group: PodGroup, request: PodRequest) -> tuple[Gang, Member]:
        known = self.registry.of(request.uid)
        if known is not None and (known.namespace, known.group.name) != (request.namespace, group.name):
            self.forget(request.uid)
        return self.registry.join(group, request, now=self._now())

    def _unsized_text(self, gang: Gang) -> str:
        self._cycles.unschedulable.on_room()
        where = gang.group.where
        kind = where.value if where is not None else "any kind"
        return f"its size is not known: no PodGroup of {kind} with minMember was found; write tessera.io/gang-size"

    def _is_begun(self, gang: Gang) -> bool:
        """Whether a member is bound, or may be."""
        if gang.released or gang.count(MemberState.BOUND):
            return True
        cycles = (self._cycles.get(uid) for uid in gang.members)
        return any(cycle is not None and cycle.state in IN_WRITING for cycle in cycles)

    def _look_again(self, gang: Gang) -> None:
        """Bring the state to what the API shows."""
        bound = gang.count(MemberState.BOUND)
        if bound and bound + gang.count(MemberState.DONE) >= gang.group.minimum and gang.group.is_sized:
            if gang.state is not WHOLE:
                gang.state = WHOLE
                self._bound += 1
                for uid in list(gang.waiting_binds):
                    self._end_wait(gang, uid, "")
                self._tell(gang, f"{bound} members are bound")
        elif gang.state in (COMPLETING, WHOLE) and not self._is_begun(gang):
            self._holds.give_up(gang)
            gang.state, gang.since, gang.tried = WAITING, self._now(), None
        elif gang.state is PLANNED:
            if bound:
                # Another scheduler, or a write of an earlier process: what is left must follow.
                gang.state, gang.deadline = COMPLETING, self._now() + HELD_SECONDS
                for uid in list(gang.waiting_binds):
                    self._end_wait(gang, uid, "")
            else:
                self._open_if_complete(gang)

    def _extend(self, gang: Gang) -> None:
        """The plan has made progress."""
        gang.deadline = self._now() + self._times.patience

    def _end_if_overdue(self, gang: Gang) -> None:
        now = self._now()
        if gang.state is PLANNED and now >= min(gang.deadline, gang.ends):
            gang.must_ask = True
            if gang.present() < gang.required:
                self._distrust(gang)
            self._give_up(gang, f"{self._come(gang)} in time")
        elif gang.state in (COMPLETING, WHOLE) and gang.holds and now >= gang.deadline:
            self._holds.release(gang)

    def _distrust(self, gang: Gang) -> None:
        """Places were held for members that did not come."""
        self._distrusted[gang.namespace] = self._now() + DISTRUST_SECONDS

    def _come(self, gang: Gang) -> str:
        return f"{gang.present()} of {gang.required} members exist, {len(gang.waiting_binds)} of them came to be bound"

    def _give_up(self, gang: Gang, why: str, *, pause: bool = True) -> Misfit:
        """PLANNED -> WAITING: release everything; no bind that waits is written."""
        self._holds.give_up(gang)
        gang.state, gang.tried = WAITING, None
        if pause:
            gang.not_before = self._now() + min(FIRST_PAUSE * 2**gang.failures, LONGEST_PAUSE)
            gang.failures += 1
        self._given_up += 1
        misfit = self._wait(gang, f"the plan was given up: {why}")
        for uid in list(gang.waiting_binds):
            self._end_wait(gang, uid, misfit.text)
        return misfit

    def _wait(self, gang: Gang, reason: str) -> Misfit:
        if gang.misfit is None or gang.reason != reason:
            gang.reason = reason
            gang.misfit = _misfit(f"gang {gang.name}: {reason}")
            self._tell(gang, reason)
        return gang.misfit

    def _end_wait(self, gang: Gang, uid: str, result: str) -> None:
        turn = gang.waiting_binds.pop(uid, None)
        if turn is not None and not turn.done():
            turn.set_result(result)

    def _return_hold(self, gang: Gang, uid: str) -> None:
        """A member that had its hold asks again, or its bind has waited too long: it is a hold of the gang again."""
        cycle = self._cycles.get(uid)
        if cycle is None or cycle.state is not CycleState.RESERVED or cycle.placement is None:
            return
        placement = cycle.placement
        self._cycles.give_up(cycle)
        if gang.state is not WAITING:
            self._holds.hold_one(gang, gang.members[uid].request, placement)

    def _drop_reservation(self, uid: str) -> None:
        cycle = self._cycles.get(uid)
        if cycle is not None and cycle.state is CycleState.RESERVED:
            self._cycles.give_up(cycle)

    def _favour(self) -> None:
        """Give the turn to the complete gang that has starved longest, if no other has it."""
        starving, now = self._times.starving, self._now()
        if self._favoured is not None or not starving:
            return
        waiting = [
            gang
            for gang in self.registry
            if gang.state is WAITING
            and gang.group.is_sized
            and gang.present() >= gang.required
            and now >= max(gang.since + starving, gang.not_before)
        ]
        if waiting:
            self._favoured = min(waiting, key=lambda gang: (gang.since, gang.name))
            self._favoured.tried = None
            self._turn_ends = now + self._times.turn
            log.info("what becomes free is held for a starving gang", gang=self._favoured.name)

    def _tell(self, gang: Gang, text: str) -> None:
        log.info("gang", gang=gang.name, state=gang.state.value, text=text)
        self._observer.on_gang(
            GangEvent(gang.namespace, gang.group.name, gang.state.value, text, tuple(chain(gang.members)))
        )


def _misfit(text: str) -> Misfit:
    return node_misfit(Reason.GANG_WAITING, detail=text)
