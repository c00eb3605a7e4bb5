"""What a reader may ask of an engine: the one interface of commands, the page, metrics and the lab to the pipeline.

Answers are values of this module, or of `core`, `vendors` and `wire`. No record that the pipeline changes leaves it, so
the pipeline can be arranged in another way without its readers. Nothing here changes an engine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tessera.core.ledger.holders import GrantState, HolderKind, held_gang
from tessera.core.ledger.holdings import PodFacts
from tessera.core.ledger.ledger import Ledger
from tessera.core.model.requests import PodRequest
from tessera.core.search.gang_trial import Domains
from tessera.core.search.selection import Candidates, Selector
from tessera.core.search.victims import PodBook
from tessera.scheduler.engine import Engine
from tessera.scheduler.features.claims.book import ClaimRecord, WriteState
from tessera.scheduler.features.claims.feature import Claims
from tessera.scheduler.features.gangs.feature import Gangs
from tessera.scheduler.features.gangs.gang import Gang, GangState, MemberState
from tessera.scheduler.features.moves.feature import Moves
from tessera.scheduler.features.moves.rounds import RoundFigures
from tessera.scheduler.pod_cycle import HOLDS_RESERVATION, CycleState
from tessera.scheduler.requests.pod_claims import ClaimNotReady
from tessera.scheduler.requests.reader import PreparedRequest
from tessera.vendors.base import Vendor
from tessera.vendors.claims.asks import BadClaim, ClaimAsk
from tessera.vendors.claims.pools import PoolDevices
from tessera.vendors.drafts import BadPod
from tessera.wire.objects import Pod
from tessera.wire.pod_groups import PodGroup
from tessera.wire.resource_api import Consumer, DeviceClass, ResourceClaim

NOT_JUDGED = "not judged yet"
"""why a gang waits that was not planned yet"""
MOVING = frozenset({
    CycleState.RESERVED, CycleState.BINDING, CycleState.UNCERTAIN, CycleState.BOUND, CycleState.HANDING_OVER
})  # fmt: skip
"""states between a decision and the end of the handover"""

ClaimUsers = Callable[[PodFacts], Sequence[Consumer] | None]
"""the pods that use what a holder of the ledger has; None if it is no ResourceClaim"""


class GangMember(NamedTuple):
    """A pod of a gang."""

    request: PodRequest
    state: str
    """gated, pending, bound or done"""


@dataclass(frozen=True, slots=True)
class GangView:
    """A gang at one moment."""

    namespace: str
    group: PodGroup
    state: str
    members: tuple[GangMember, ...]
    """in the order in which they were met"""
    required: int
    """members that must be placed and bound together"""
    why: str
    """it waits, as the scheduler says that plans it"""
    fitting: int | None
    """members that would fit now; None if that is not known"""
    since: int | None = field(compare=False)
    """unix seconds since which it waits"""
    until: int | None = field(compare=False)
    """unix seconds when what is held for it is released; None if nothing is, or that is not known"""

    @property
    def is_placed(self) -> bool:
        """Whether every required member has a place."""
        return self.state in (GangState.PLANNED.value, GangState.COMPLETING.value, GangState.WHOLE.value)

    @property
    def pending(self) -> list[PodRequest]:
        return [member.request for member in self.members if member.state == MemberState.PENDING.value]

    @property
    def bound(self) -> int:
        return self._count(MemberState.BOUND)

    @property
    def gated(self) -> int:
        """Members that a schedulingGate holds back: they are not counted before it is gone."""
        return self._count(MemberState.GATED)

    @property
    def present(self) -> int:
        """Members that exist and are not gated."""
        return self.bound + self._count(MemberState.PENDING)

    def _count(self, state: MemberState) -> int:
        return sum(member.state == state.value for member in self.members)


class ClaimView(NamedTuple):
    """A ResourceClaim."""

    key: str
    claim: ResourceClaim
    ask: ClaimAsk | BadClaim
    facts: PodFacts | None
    """what it holds; None if it has no devices of ours"""

    @property
    def is_allocated(self) -> bool:
        return self.claim.status.allocation is not None


class EngineCounts(NamedTuple):
    """What there is now, and totals since the start."""

    handovers: int
    awaiting_turn: int
    """binds"""
    reservations: int
    refused: int
    uncertain: int
    """Bindings"""
    nominations: int
    unfenced: int
    """pods to be touched before this replica decides"""
    gangs_waiting: int
    gangs_planned: int
    gangs_bound: int
    """since the start"""
    gangs_given_up: int
    """plans since the start"""
    claims_allocated: int
    claims_uncertain: int
    awaiting_claims: int
    """pods"""
    claim_writes: Mapping[str, int]
    """by result, since the start"""


class DefragCounts(NamedTuple):
    """Of moves on a schedule."""

    figures: RoundFigures
    evictions_left: int
    evictions_per_hour: int
    is_leader: bool


class EngineView:
    """Reads one engine. Used from its event loop."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._gangs = engine.feature(Gangs)
        self._claims = engine.feature(Claims)
        self._moves = engine.feature(Moves)

    @property
    def ledger(self) -> Ledger:
        """The cards with what is held of them, nominations and quotas."""
        return self._engine.ledger

    @property
    def selector(self) -> Selector:
        return self._engine.selector

    @property
    def vendors(self) -> Mapping[str, Vendor]:
        return self._engine.vendors

    @property
    def victims(self) -> PodBook:
        """What preemption knows of bound pods."""
        return self._engine.victims

    def counts(self) -> EngineCounts:
        engine = self._engine
        cycles, gangs, claims = engine.cycles, self._gangs, self._claims
        return EngineCounts(
            handovers=engine.queue.active,
            awaiting_turn=engine.queue.waiting,
            reservations=cycles.count(*HOLDS_RESERVATION),
            refused=len(engine.unschedulable),
            uncertain=cycles.count(CycleState.UNCERTAIN),
            nominations=len(engine.ledger.nominations),
            unfenced=engine.takeover.left,
            gangs_waiting=gangs.count(GangState.WAITING, GangState.NOMINATED),
            gangs_planned=gangs.count(GangState.PLANNED, GangState.COMPLETING),
            gangs_bound=gangs.barrier.bound,
            gangs_given_up=gangs.lifecycle.given_up,
            claims_allocated=claims.book.holding,
            claims_uncertain=claims.book.count(WriteState.UNCERTAIN),
            awaiting_claims=len(claims.reader.waiting()),
            claim_writes={"allocated": claims.writer.allocated, "released": claims.writer.released},
        )

    def defrag(self) -> DefragCounts | None:
        """None if no moves are made on a schedule."""
        settings, rounds = self._engine.settings.defrag, self._moves.rounds
        if not settings.enabled:
            return None
        return DefragCounts(rounds.figures, rounds.budget.left(), settings.evictions_per_hour, self._engine.is_leader)

    # -- pods

    def read(self, pod: Pod) -> PreparedRequest | BadPod:
        """The pod's request, with its claims, as filter reads it."""
        return self._engine.request_reader.read(pod)

    def state_of(self, uid: str) -> CycleState | None:
        """How far a pod is; None if it is over, or no pod."""
        cycle = self._engine.cycles.get(uid)
        return None if cycle is None else cycle.state

    def moving(self) -> dict[str, CycleState]:
        """By uid, the pods between a decision and the end of their handover: a change of state changes no amount."""
        return {cycle.uid: cycle.state for cycle in self._engine.cycles if cycle.state in MOVING}

    def refused(self) -> Iterator[tuple[PodRequest, Candidates]]:
        """The pods that wait for room."""
        for pod in self._engine.unschedulable:
            if self.state_of(pod.request.uid) in (None, CycleState.REFUSED, CycleState.NOMINATED):
                yield pod.request, pod.candidates

    def candidates_of(self, uid: str) -> Candidates | None:
        """The nodes that kube-scheduler named last for a pod that waits; None if it has not asked yet."""
        pod, gang = self._engine.unschedulable.get(uid), self._gangs.registry.of(uid)
        if pod is not None:
            return pod.candidates
        return gang.members[uid].known_candidates if gang is not None else None

    def awaiting_claims(self) -> Iterator[tuple[Pod, BadPod]]:
        """The pods that wait for their claims, and why."""
        for pod in self._claims.reader.waiting():
            problem = self.read(pod)
            if isinstance(problem, BadPod):
                yield pod, problem

    def held_until(self, uid: str) -> int | None:
        """Unix seconds when a nomination, or a place that is held for a gang, ends by itself."""
        holder = self.ledger.holder(uid)
        if holder is not None and holder.kind is HolderKind.GANG:
            gang = self._gangs.registry.get(holder.facts.namespace, held_gang(holder.facts))
            return self._plan_ends(gang) if gang is not None else None
        is_nominated = holder is not None and holder.state is GrantState.NOMINATED
        return self._wall_time(holder.deadline) if holder is not None and is_nominated else None

    # -- gangs

    def gangs(self) -> Iterator[GangView]:
        return map(self._gang, self._gangs.registry)

    def waiting_gangs(self) -> Iterator[GangView]:
        """Those that are not whole, and have a member that waits."""
        for gang in self._gangs.registry:
            if gang.state is not GangState.WHOLE and gang.members.count(MemberState.PENDING):
                yield self._gang(gang)

    def gang(self, namespace: str, name: str) -> GangView | None:
        found = self._gangs.registry.get(namespace, name)
        return None if found is None else self._gang(found)

    def gang_of(self, uid: str) -> GangView | None:
        """The gang of a pod; None if it belongs to none."""
        found = self._gangs.registry.of(uid)
        return None if found is None else self._gang(found)

    def gang_name(self, namespace: str, pod: str) -> str:
        """The gang that has a member of this name; empty if none has."""
        for gang in self._gangs.registry:
            if gang.namespace == namespace and any(one.request.name == pod for one in gang.members.values()):
                return gang.group.name
        return ""

    def domains(self, topology: str) -> Domains | None:
        """The nodes by the value of a label; None if none is asked for."""
        return self._gangs.labels.domains(topology)

    def held_for_gang(self, request: PodRequest, candidates: Candidates) -> str:
        """For which gang room is held that a refused pod would fit in, in words; empty if for none."""
        turns = self._gangs.turns
        return turns.misfit.text if turns.held_nodes(request, candidates) else ""

    def _gang(self, gang: Gang) -> GangView:
        fitting, why = gang.fitting, gang.wait.reason or NOT_JUDGED
        if gang.state is GangState.PLANNED:
            fitting, come = gang.required, f"{gang.come} of {gang.required} members have come to be bound"
            why = f"a place is held for every member; {come}"
        elif gang.state is GangState.COMPLETING:
            bound = gang.members.count(MemberState.BOUND)
            fitting, why = None, f"{bound} of {gang.required} members are bound; the others follow as they come"
        return GangView(
            gang.namespace,
            gang.group,
            gang.state.value,
            tuple(GangMember(member.request, member.state.value) for member in gang.members.values()),
            gang.required,
            why,
            fitting,
            self._wall_time(gang.wait.since),
            self._plan_ends(gang),
        )

    def _plan_ends(self, gang: Gang) -> int | None:
        """When what is held for a gang is released."""
        moment = math.inf
        match gang.state:
            case GangState.PLANNED if gang.plan is not None:
                moment = gang.plan.until
            case GangState.NOMINATED if gang.preemption.nomination is not None:
                moment = gang.preemption.nomination.deadline
            case GangState.COMPLETING if self._gangs.holds.count(gang):
                moment = gang.holds_end
            case GangState.WAITING if self._gangs.holds.count(gang):
                moment = self._gangs.turns.ends_of(gang)
        return self._wall_time(moment)

    def _wall_time(self, moment: float) -> int | None:
        """Unix seconds of a moment on the monotonic clock; None if it never comes."""
        clock = self._engine.cycles.clock
        return None if math.isinf(moment) else round(clock.now() + moment - clock.monotonic())

    # -- ResourceClaims

    def claims(self) -> list[ClaimView]:
        """Sorted by key."""
        return [self._claim(record) for record in sorted(self._claims.book, key=lambda each: each.key)]

    def claim(self, key: str, uid: str = "") -> ClaimView | None:
        """The claim of this name; with `uid`, only if it is still that one."""
        record = self._claims.book.get(key, uid)
        return None if record is None else self._claim(record)

    def claims_of(self, pod: Pod) -> list[ClaimView]:
        """The pod's claims that exist."""
        return [found for key in self._claims.reader.keys(pod) if (found := self.claim(key)) is not None]

    def users_of(self, facts: PodFacts) -> Sequence[Consumer] | None:
        """The pods that a claim is reserved for, by what it holds; None if that is no claim, or it is gone."""
        record = self._claims.book.get(f"{facts.namespace}/{facts.name}", facts.uid)
        return None if record is None else record.claim.status.reserved_for or ()

    @property
    def device_classes(self) -> Mapping[str, DeviceClass]:
        return self._claims.book.classes

    @property
    def pools(self) -> Mapping[str, PoolDevices]:
        """What nodes offer to claims, by node."""
        return self._claims.pools.by_name

    def _claim(self, record: ClaimRecord) -> ClaimView:
        return ClaimView(record.key, record.claim, self._claims.book.ask(record), record.facts)


def awaits_claim(found: PreparedRequest | BadPod) -> bool:
    """Whether a pod cannot be placed until one of its claims is made, changed or released."""
    return isinstance(found, ClaimNotReady)
