"""Gangs: the members of a group of pods are placed and bound together, or none is.

    filter of a member   the gang is planned whole, once (`lifecycle`); each member gets a hold of the plan, or one
                         common reason
    bind of a member     waits until every required member has come, then all are written together (`barrier`)
    over time            a plan without progress is given up, and tried again (`rounds`); a starving gang gets its turn
                         (`turns`); one that may preempt is nominated for places of victims (`preemption`)

`gang` draws the states.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Generator, Iterator, Sequence
from functools import lru_cache, partial

import structlog

from tessera.core.ledger.holders import Holder, HolderKind, owner_of
from tessera.core.model.grants import Placement
from tessera.core.model.misfits import Misfit
from tessera.core.model.requests import PodRequest
from tessera.core.search.gang_trial import Placed
from tessera.core.search.selection import CandidateNames, Refused
from tessera.scheduler.eviction.preemption_loop import finish_in_slices
from tessera.scheduler.features.gangs.accounts import HoldAccounts
from tessera.scheduler.features.gangs.barrier import GangBarrier
from tessera.scheduler.features.gangs.gang import Alone, Gang, GangState, Member, MemberState
from tessera.scheduler.features.gangs.holds import MEMBERS_AT_ONCE, GangHolds, NodeLabels
from tessera.scheduler.features.gangs.lifecycle import GangLifecycle, gang_misfit, shared_claim_text
from tessera.scheduler.features.gangs.preemption import GangNominations, GangPreemptor, gang_priority
from tessera.scheduler.features.gangs.registry import GangRegistry
from tessera.scheduler.features.gangs.rounds import GangRounds
from tessera.scheduler.features.gangs.turns import GangOutlook, GangTurns
from tessera.scheduler.framework import Attempt, Feature, Named, Pipeline, Place, Refusal, WaitingGroup, Work
from tessera.scheduler.pod_cycle import PodCycle
from tessera.scheduler.requests.reader import PreparedRequest
from tessera.vendors.drafts import BadPod
from tessera.vendors.pod_reader import ENDED
from tessera.wire.objects import Node, Pod
from tessera.wire.pod_groups import BadPodGroup, PodGroup, read_pod_group

log = structlog.get_logger(__name__)

KEPT_REFUSALS = 32
"""a backlog is refused with the same few again and again"""
WAITING, NOMINATED, PLANNED = GangState.WAITING, GangState.NOMINATED, GangState.PLANNED
SUCCEEDED = "Succeeded"
FEW_SHAPES = 2
"""of members, up to which a small gang is planned at once: such as a leader and its workers"""
SLICE_S = 0.005
UNSEEN_TICKS = 2
"""ticks, 15 s apart, that a member may be known from filter alone"""


class Gangs(Feature):
    """All gangs of the cluster."""

    def __init__(self, pipeline: Pipeline) -> None:
        super().__init__(pipeline)
        settings, cycles, observer = pipeline.settings, pipeline.cycles, pipeline.observer
        self._cycles = cycles
        self.labels = NodeLabels()
        accounts = HoldAccounts(pipeline.clock.monotonic, cycles.ledger, share=settings.gang_hold_percent / 100)
        self.registry = registry = GangRegistry(cycles.unschedulable.refused)
        self.holds = holds = GangHolds(pipeline.selector, cycles, self.labels, accounts)
        outlook = GangOutlook(cycles)
        self.turns = turns = GangTurns(holds, cycles, outlook, settings)
        self.lifecycle = lifecycle = GangLifecycle(holds, cycles, turns, outlook, settings=settings, observer=observer)
        self.barrier = GangBarrier(lifecycle, registry, holds, cycles, settings)
        self.nominations = GangNominations(
            holds,
            cycles,
            pipeline.evictor.book,
            nominated_nodes=pipeline.nominated_nodes,
            lifecycle=lifecycle,
            observer=observer,
        )
        self.recovering = ""
        """why nothing is decided; empty if it is"""
        self._rounds = GangRounds(registry, holds, lifecycle, self.nominations, turns, cycles)
        self._is_ticking = False
        self._refuse_for_turn = lru_cache(KEPT_REFUSALS)(_refuse_for_turn)
        cycles.on_overdue[HolderKind.GANG] = self._end_overdue

    def count(self, *states: GangState) -> int:
        return sum(1 for gang in self.registry if gang.state in states)

    # -- what the API shows

    def on_pod(self, pod: Pod) -> None:
        uid, phase = pod.metadata.uid, pod.status.phase
        group = read_pod_group(pod)
        has_failed = phase in ENDED and phase != SUCCEEDED
        # A member that is leaving does not count, or the pod that replaces it would be bound beside it, alone.
        is_over = has_failed or bool(pod.metadata.deletion_timestamp)
        is_bound = bool(pod.spec.node_name)
        prepared = None
        if isinstance(group, PodGroup) and not is_over:
            # Of a pod that is bound, claims say nothing any more: they may be gone.
            prepared = self._pipeline.request_reader.read(pod, with_claims=not is_bound)
        if prepared is None or isinstance(prepared, BadPod) or not isinstance(group, PodGroup):
            self.on_pod_gone(uid)
            return
        gang, member = self._join(group, prepared)
        is_new = self.registry.note_shown(uid, member)
        has_devices = prepared.needs_placement or (is_bound and bool(pod.spec.resource_claims))
        if phase == SUCCEEDED or not has_devices:
            state = MemberState.DONE
        elif is_bound:
            state = MemberState.BOUND
        else:
            state = MemberState.GATED if pod.spec.scheduling_gates else MemberState.PENDING
        gang.members.set_state(member, state)
        if gang.state is PLANNED and is_new:
            self.lifecycle.extend_plan(gang)
        self._look_again(gang)

    def on_pod_gone(self, uid: str) -> None:
        """The pod is gone, has failed, or belongs to no gang any more."""
        self.barrier.leave_bind(uid)
        gang = self.registry.leave(uid)
        if gang is None:
            return
        if gang.plan is not None:
            gang.plan.end_bind(uid, "the pod is gone")
        self.holds.accounts.close(uid)
        self._look_again(gang)
        if not gang.members:
            self.holds.release(gang)
            self.turns.end(gang)

    def on_node(self, node: Node) -> None:
        self.labels.put(node)

    def on_node_gone(self, name: str) -> None:
        self.labels.drop(name)

    def forget_vendors(self) -> None:
        self.turns.outlook.forget()

    # -- filter

    def concerns(self, attempt: Attempt) -> bool:
        """A member, one that was, or a pod that may come in the way of the gang whose turn it is."""
        if attempt.prepared.group is not None or self.turns.favoured is not None:
            return True
        return attempt.request.uid in self.registry.gang_of

    def takes_time(self, attempt: Attempt) -> bool:
        """Whether a gang is to be planned in slices."""
        pod = attempt.pod
        overtaken = self._overtaken(pod.metadata.uid)
        if overtaken is not None and self._is_sliced(overtaken.group, overtaken):
            return True
        group = attempt.prepared.group
        if not isinstance(group, PodGroup):
            return False
        gang = self.registry.get(pod.metadata.namespace, group.name)
        if gang is not None:
            self.lifecycle.end_if_overdue(gang)
        if gang is not None and gang.state is not WAITING:
            return False
        return self._is_sliced(group if gang is None else gang.group, gang)

    async def prepare(self, attempt: Attempt) -> bool:
        """Plan the gang whose turn it is, and that of the pod which kube-scheduler asks for, between other work."""
        pod, request = attempt.pod, attempt.request
        was_shown, overtaken = self._is_shown(request.uid), self._overtaken(request.uid)
        if overtaken is not None:
            await self.lifecycle.plan_in_slices(overtaken, None)
        group = attempt.prepared.group
        if isinstance(group, PodGroup) and (self._is_shown(request.uid) or not was_shown):
            gang, member = self._meet(group, attempt.prepared)
            if gang.state is WAITING and not self.registry.difference(gang, group):
                member.candidates = attempt.candidates.resolve()
                if not self.lifecycle.follow_moves(gang, pod.workload):
                    await self.lifecycle.plan_in_slices(gang, member)
        return self._is_shown(request.uid) or not was_shown

    def place(self, attempt: Attempt) -> Place | Refusal | None:
        """A member's place, or why it has none. `holds.settle` follows once the member has the place."""
        pod, request = attempt.pod, attempt.request
        overtaken = self._overtaken(request.uid)
        if overtaken is not None and not self._is_sliced(overtaken.group, overtaken):
            self.lifecycle.plan(overtaken, None)
        group = attempt.prepared.group
        if group is None:
            self.on_pod_gone(request.uid)
            return None
        if isinstance(group, BadPodGroup):
            return self._refuse(request.uid, gang_misfit(group.text))
        gang, member = self._meet(group, attempt.prepared)
        answer = self._decide(gang, group, member, pod, attempt.candidates)
        if isinstance(answer, Misfit):
            member.is_refused = True
            if gang.is_short:
                self.registry.note_short(gang)
            return self._refuse(request.uid, answer)
        return None if isinstance(answer, Alone) else Place(*answer)

    def _decide(
        self, gang: Gang, group: PodGroup, member: Member, pod: Pod, named: CandidateNames
    ) -> Placed | Misfit | Alone:
        if gang.state is PLANNED and member.shared_claim:
            self.lifecycle.give_up(gang, shared_claim_text(member.shared_claim))
        if gang.state in (WAITING, NOMINATED):
            member.candidates = named.resolve()
        difference = self.registry.difference(gang, group)
        if difference:
            return gang_misfit(f"gang {gang.name}: {difference}")
        if gang.state is NOMINATED and gang.wait.misfit is not None:
            return gang.wait.misfit
        if gang.state is WAITING and not self.lifecycle.follow_moves(gang, pod.workload):
            problem = self.lifecycle.plan(gang, member)
            if problem is not None:
                return problem
        if gang.state is PLANNED and gang.plan is not None:
            if not self._is_first_try(pod, member, named):
                return self.lifecycle.place(gang, gang.plan, member, named)
            placement = self.holds.take(gang, member.request, named)
            return placement or gang_misfit(f"gang {gang.name}: another node is planned for this pod")
        if not self.holds.count(gang):
            return Alone.BOUND
        placement = self.holds.take(gang, member.request, named)
        return placement or self.holds.exchange(gang, member.request, named, at_any_cost=True) or Alone.BOUND

    def _refuse(self, uid: str, misfit: Misfit) -> Refusal:
        gang, text = self.registry.of(uid), misfit.text
        if gang is None:
            return Refusal(misfit, is_first=True, refusals=1)
        member = gang.members[uid]
        is_first, member.text = member.text != text, text
        member.refusals += 1
        return Refusal(misfit, is_first, member.refusals)

    def post_filter(self, request: PodRequest, candidates: Named) -> bool:
        return self.turns.favoured is not None and self.turns.makes_way_for(request, candidates)

    def on_refused(self, attempt: Attempt, refused: Refused, *, by_feature: bool) -> Refused:
        """Says where the pod would fit without what is held for a gang."""
        nodes = () if by_feature else self.turns.held_nodes(attempt.request, attempt.candidates)
        return self._refuse_for_turn(refused, self.turns.misfit, nodes) if nodes else refused

    def reserve(self, prepared: PreparedRequest) -> None:
        self.holds.settle()

    def unreserve(self, request: PodRequest, placement: Placement | None) -> None:
        self.holds.put_back(request, placement, self.registry.of(request.uid))

    # -- bind

    async def permit(self, cycle: PodCycle) -> str:
        return await self.barrier.enter_bind(cycle.uid, "" if cycle.prepared is None else cycle.prepared.request.group)

    async def before_binding(self, cycle: PodCycle) -> str:
        return await self.barrier.await_claims(cycle.uid)

    def post_bind(self, cycle: PodCycle, error: str) -> None:
        self.barrier.leave_bind(cycle.uid)

    # -- preemption

    def preemption_nodes(self, request: PodRequest) -> frozenset[str] | None:
        """Where places are held for the gang, so that it stays whole: none if it has no plan, since room for one member
        alone is of no use to it."""
        gang = self.registry.of(request.uid)
        if gang is None or gang.state is GangState.WHOLE:
            return None
        return frozenset(hold.node for hold in self.holds.alike(gang, request))

    def waiting_groups(self) -> Iterator[WaitingGroup]:
        """Gangs that are complete and were refused."""
        for gang in self.registry:
            members = gang.members.pending()
            others = gang.members.count(MemberState.BOUND, MemberState.GATED)
            is_complete = gang.group.is_sized and not others and len(members) >= gang.required > 0
            if gang.state is GangState.WAITING and is_complete and all(each.is_refused for each in members):
                candidates = members[0].known_candidates
                if candidates is not None:
                    requests = tuple(each.request for each in members[: gang.required])
                    yield WaitingGroup(f"gang {gang.name}", requests, candidates)

    def preemptors(self) -> Iterator[GangPreemptor]:
        return (
            self.preemptor(gang, priority)
            for gang in self.registry
            if gang.preemption.is_due and (priority := gang_priority(gang)) is not None
        )

    def preemptor(self, gang: Gang, priority: int) -> GangPreemptor:
        return GangPreemptor(gang, priority, self.holds, self.nominations, self._pipeline)

    def make_way(self, uid: str) -> None:
        """What the gang of the pod holds in its turn must not be in the way of what is held for the pod itself."""
        gang = self.registry.of(uid)
        if gang is not None and gang.state is WAITING:
            self.holds.release(gang)

    def is_binding(self, group: str) -> bool:
        """A member whose Binding is on its way has devices, and the API does not show its node yet."""
        namespace, _, name = group.partition("/")
        gang = self.registry.get(namespace, name)
        if gang is None or not gang.members.count(MemberState.PENDING):
            return False
        return any(self._cycles.ledger.pod(member.request.uid) is not None for member in gang.members.pending())

    def is_nominated(self, uid: str) -> bool:
        gang = self.registry.of(uid)
        return gang is not None and gang.state is NOMINATED

    # -- over time

    def missing(self) -> str:
        return self.recovering

    def recover(self) -> None:
        """Make holds for the rest of the gangs that are bound in part. Comes before any other decision, so `recovering`
        says why none is made where that takes several slices."""
        if self.recovering:
            return
        steps = self._recover()
        for _ in steps:
            self.recovering = "places are being held for gangs that are bound in part"
            self._pipeline.spawn(self._finish_recovery(steps))
            return

    def _recover(self) -> Iterator[None]:
        for gang in sorted(self.registry, key=lambda gang: gang.name):
            if self.lifecycle.needs_holds(gang):
                yield from self.lifecycle.complete(gang)

    async def _finish_recovery(self, steps: Iterator[None]) -> None:
        try:
            await asyncio.sleep(0)
            for _ in steps:
                await asyncio.sleep(0)
        finally:
            self.recovering = ""
            self._cycles.unschedulable.on_room()

    def end_term(self) -> None:
        """This replica stops deciding: nothing is held any more."""
        self.turns.end()
        for gang in self.registry:
            if gang.state is PLANNED:
                self.lifecycle.give_up(gang, "this replica stopped deciding", pause=False)
            self.nominations.renounce(gang, "this replica stopped deciding")
            self.holds.give_up(gang)

    def tick(self) -> None:
        self._pipeline.spawn(self.tick_in_slices())

    async def tick_in_slices(self) -> None:
        """Between other work: there may be any number of gangs."""
        if not self._is_ticking:
            self._is_ticking = True
            try:
                await finish_in_slices(self._tick(), seconds=SLICE_S)
            finally:
                self._is_ticking = False

    def _tick(self) -> Generator[None, None, None]:
        for uid, member in self.registry.unshown():
            member.unseen_ticks += 1
            if member.unseen_ticks > UNSEEN_TICKS:
                self.on_pod_gone(uid)
            yield
        self.turns.end_overdue()
        overdrawn, holding, is_waiting = self.holds.accounts.overdrawn(), list[Gang](), False
        for gang in self.registry:
            self._look_again(gang)
            self.lifecycle.end_if_overdue(gang)
            if gang.preemption.nomination is not None:
                self.nominations.pay(gang)
            if gang.is_short:
                # Other pods may have become victims since.
                self.registry.note_short(gang)
            is_waiting = is_waiting or gang.state is WAITING
            if overdrawn and gang.namespace in overdrawn and self.holds.is_holding(gang):
                holding.append(gang)
            yield
        for gang in sorted(holding, key=lambda gang: gang.wait.since):
            if not self.holds.accounts.pays_for(gang.namespace):
                self.lifecycle.end_unpaid(gang)
                self.nominations.renounce(gang, "its namespace has held too much for too long without being bound")
        self.turns.outlook.end_if_idle()
        if is_waiting:
            # A pause may be over, a gang may be starving by now.
            self._cycles.unschedulable.on_room()

    def wake(self) -> AsyncIterator[Sequence[PodRequest]]:
        return self._rounds.wake()

    def on_wake_failed(self, uid: str) -> None:
        """The patch failed: the next change tries again."""
        gang = self.registry.of(uid)
        if gang is not None:
            gang.members[uid].is_refused = True
        else:
            self._cycles.unschedulable.on_wake_failed(uid)

    def work(self) -> Sequence[Work]:
        return (partial(self.registry.look_up_sizes, self._pipeline),)

    # -- inside

    def _is_sliced(self, group: PodGroup, gang: Gang | None) -> bool:
        """Whether a gang is planned between other work: it is large, or each member may take as long as a pod."""
        if group.size > MEMBERS_AT_ONCE or group.topology or self.lifecycle.is_busy:
            return True
        return gang is not None and len({member.request.shape for member in gang.members.values()}) > FEW_SHAPES

    def _is_first_try(self, pod: Pod, member: Member, named: CandidateNames) -> bool:
        """Whether kube-scheduler asks for the nominated node alone. If that is refused, it asks for all nodes at once,
        so no plan is changed for it."""
        node, was_tried = pod.status.nominated_node_name, member.is_tried
        member.is_tried = not was_tried and bool(node) and named.resolve().names == (node,)
        return member.is_tried

    def _is_shown(self, uid: str) -> bool:
        """Whether the API shows the pod, not bound."""
        cycle = self._cycles.get(uid)
        return cycle is not None and cycle.is_shown

    def _look_again(self, gang: Gang) -> None:
        """Bring the state to what the API shows."""
        if gang.state is NOMINATED and (gang.members.count(MemberState.BOUND) or gang.present < gang.required):
            self.nominations.renounce(gang, "its members are others now")
        self.barrier.observe(gang)

    def _end_overdue(self, holder: Holder) -> None:
        """A nomination, or what is held for the rest of a gang that is bound in part."""
        namespace, _, name = owner_of(holder.uid).partition("/")
        gang = self.registry.get(namespace, name)
        if gang is not None and gang.state is NOMINATED:
            self.nominations.end_overdue(gang)
        elif gang is not None:
            self.holds.release(gang)

    def _meet(self, group: PodGroup, prepared: PreparedRequest) -> tuple[Gang, Member]:
        """kube-scheduler asks for a member."""
        request = prepared.request
        gang, member = self._join(group, prepared)
        member.request, member.is_refused = request, False
        self._look_again(gang)
        self.lifecycle.end_if_overdue(gang)
        return gang, member

    def _join(self, group: PodGroup, prepared: PreparedRequest) -> tuple[Gang, Member]:
        request = prepared.request
        known = self.registry.gang_of.get(request.uid)
        if known is not None and (known.namespace, known.group.name) != (request.namespace, group.name):
            self.on_pod_gone(request.uid)
        return self.registry.join(group, prepared, now=self._cycles.clock.monotonic())

    def _overtaken(self, uid: str) -> Gang | None:
        """The gang whose turn it is, if kube-scheduler asks for another pod before it got what has become free."""
        gang = self.turns.favoured
        if gang is None or gang.state is not WAITING or uid in gang.members:
            return None
        return gang if self._cycles.unschedulable.room.is_set() else None


def _refuse_for_turn(refused: Refused, misfit: Misfit, nodes: tuple[str, ...]) -> Refused:
    """The same, with the reason of the nodes where the pod would fit without what is held."""
    return Refused(dict(refused.misfits) | dict.fromkeys(nodes, misfit))
