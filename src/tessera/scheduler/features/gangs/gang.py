"""One gang as the scheduler knows it: its members, the holds for them, and its state.

     the API shows a member, or filter meets one
                      |                            the victims have left
                      |                NOMINATED ------------------------------------.
                      |                 ^  |                                         |
                      v  victims for it |  | renounced (`preemption`)                |
                      |<----------------|--'                                         |
                      |-----------------'                                            v
                      |      the whole gang fits: a hold for every member            |
      .----------> WAITING ------------------------------------------------------> PLANNED
      |               |  ^                                                            |
      |               |  '--- no progress in time, a plan that cannot be kept,        |
      |               |       or this replica stops deciding: all is released --------|
      |               |                                                               |
      | no member is  | the API shows some members bound:                             | every required member
      | bound, or     | an earlier process ended while it wrote                       | has come to bind
      | being bound   v                                                               v
      '---------- COMPLETING <--------------------------------------------------------'
      |               |
      |               | the required members are bound
      |               v
      '------------ WHOLE

A *hold* is a place in the ledger for one member (`core.ledger.holders`), which has the gang as its owner. A member
takes its hold at its filter call (`holds`). There are holds for members that do not exist yet: the next one of that
shape takes one.

    WAITING       nothing is held (except for the gang whose turn it is, see `turns`); members are refused
    NOMINATED     every member is nominated for what victims still hold; members are refused
    PLANNED       members get their holds, and their binds wait; nothing is written
    COMPLETING    Bindings are, or may be, written: no bind waits, and what is missing has its holds
    WHOLE         members come and go like single pods: a replacement waits for no other member

What is held is memory of this process alone. What is bound is shown by the API, and a new process continues from that.
The state changes by the methods of `Gang` only, and `GangTransition` says what is legal. Each part of the record has
one writer: `members` the registry, `wait` and `plan` the life cycle, `preemption` the preemptor with the nominations.
This module has no clock and writes nothing.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from tessera.core.model.misfits import Misfit
from tessera.core.model.requests import PodRequest
from tessera.core.search.gang_trial import Placed
from tessera.core.search.selection import Candidates
from tessera.wire.pod_groups import PodGroup


class GangState(Enum):
    """See the drawing."""

    WAITING = "waiting"
    NOMINATED = "nominated"
    PLANNED = "planned"
    COMPLETING = "completing"
    WHOLE = "whole"


WAITING, NOMINATED, PLANNED = GangState.WAITING, GangState.NOMINATED, GangState.PLANNED
COMPLETING, WHOLE = GangState.COMPLETING, GangState.WHOLE


class GangTransition(Enum):
    """Everything that can happen to a gang: the states in which it is legal, and the state it leads to."""

    NOMINATE = ({WAITING}, NOMINATED)
    RENOUNCE = ({NOMINATED}, WAITING)
    PLAN = ({WAITING, NOMINATED}, PLANNED)
    GIVE_UP = ({PLANNED}, WAITING)
    OPEN = ({PLANNED}, COMPLETING)
    COMPLETE = ({WAITING, COMPLETING}, COMPLETING)
    """some members are bound, and the others have their holds"""
    BECOME_WHOLE = ({WAITING, PLANNED, COMPLETING}, WHOLE)
    BEGIN_AGAIN = ({COMPLETING, WHOLE}, WAITING)

    def __init__(self, sources: set[GangState], target: GangState) -> None:
        self.sources = frozenset(sources)
        self.target = target


class IllegalGangTransition(Exception):
    """A fault of this program: a gang was about to skip a part of its life."""


class MemberState(Enum):
    """What the API shows of a member. A member that failed or is gone is none."""

    GATED = "gated"
    """by a schedulingGate: not counted and not planned"""
    PENDING = "pending"
    BOUND = "bound"
    DONE = "done"
    """succeeded, or asks for no cards: counted, but not waited for"""


@dataclass(slots=True, eq=False)
class Member:
    """A pod of the gang."""

    request: PodRequest
    state: MemberState
    is_refused: bool = False
    """filter refused it, and it sleeps until it is woken"""
    text: str = ""
    """of its last refusal"""
    shared_claim: str = ""
    """key of a ResourceClaim that is not allocated, and that other pods may use too"""
    refusals: int = 0
    candidates: Candidates | None = None
    """of its last filter call while the gang had no plan"""
    narrowed: Candidates | None = None
    """of a filter call that did not allow its hold. Other members may have taken the cpu of its other nodes by then, so
    this says where it can go beside them: the next plan respects it, if it can"""
    refused_within: frozenset[str] = frozenset()
    """names of the nodes that the last plan failed with which did not suit it"""
    is_tried: bool = False
    """its last filter call was for its nominated node alone"""
    unseen_ticks: int = 0
    """while only filter knows it"""
    is_shown: bool = False
    """by the API"""

    @property
    def known_candidates(self) -> Candidates | None:
        """None: it was not asked for yet."""
        return self.candidates if self.narrowed is None else self.narrowed


class Alone(Enum):
    """Why a pod is decided like one that belongs to no gang."""

    SPARE = "the members that must be placed together have their places"
    BOUND = "the gang is bound, and no place is held for this member"


class Members(dict[str, Member]):
    """By uid, in the order in which they were met."""

    def __init__(self) -> None:
        super().__init__()
        self._counts: Counter[MemberState] = Counter()

    def add(self, member: Member) -> None:
        self[member.request.uid] = member
        self._counts[member.state] += 1

    def remove(self, uid: str) -> None:
        self._counts[self.pop(uid).state] -= 1

    def set_state(self, member: Member, state: MemberState) -> None:
        self._counts[member.state] -= 1
        member.state = state
        self._counts[state] += 1

    def count(self, *states: MemberState) -> int:
        return sum(map(self._counts.__getitem__, states))

    def pending(self) -> list[Member]:
        return [member for member in self.values() if member.state is MemberState.PENDING]

    @property
    def asleep(self) -> list[Member]:
        """Those that filter refused, and that are to be woken."""
        return [member for member in self.values() if member.is_refused]

    def shared_claim(self) -> str:
        """A ResourceClaim that is not allocated, and not made for the member that names it; empty if there is none."""
        for member in self.pending():
            if member.shared_claim:
                return member.shared_claim
        return ""

    def forget_narrowed(self) -> bool:
        """Whether a plan depended on what filter calls of an earlier plan allowed; the next one does not."""
        narrowed = [member for member in self.values() if member.narrowed is not None]
        for member in narrowed:
            member.narrowed = None
        return bool(narrowed)


class Outlook(NamedTuple):
    """Whether a gang would fit if all other pods were gone."""

    shortage: str
    """why it can never fit; empty if it can"""
    state: Hashable
    """of the cluster and the gang"""
    until: float
    """on the monotonic clock"""


@dataclass(slots=True, eq=False)
class Wait:
    """Why a gang has no plan, and when the next one is made. Times are on the monotonic clock."""

    since: float
    """when it began to wait"""
    turned: float = -math.inf
    """when its last turn ended"""
    reason: str = ""
    misfit: Misfit | None = None
    """the reason as the answer to its members' filter calls"""
    places: tuple[Placed, ...] | None = None
    """for the members that fit when the last plan failed; None if it waits for something else"""
    tried: Hashable = None
    """what the last plan that failed depended on"""
    is_unfinished: bool = False
    """planning took more work than one call may do"""
    plan_at: float = 0.0
    """the next plan, after one in vain that took long"""
    not_before: float = 0.0
    """the next plan, after one that was given up"""
    failures: int = 0
    """plans given up since the last one that was bound"""
    must_ask: bool = False
    """members of the last plan did not come in time: next time kube-scheduler must have asked for all of them before"""


@dataclass(slots=True, eq=False)
class ClaimBarrier:
    """Members whose claims are written before any of them is bound: a claim may turn out to be another pod's."""

    pending: set[str]
    """uids of those whose claims are not written yet"""
    opened: asyncio.Future[bool]
    """whether enough members go on"""
    ready: int = 0


@dataclass(slots=True, eq=False)
class Plan:
    """Places for all members, from the plan until none of them is bound. Another object each time."""

    deadline: float
    """for the next progress; once members are bound, of what is held for the others"""
    ends: float
    """whatever the progress"""
    replans: int = 0
    binds: dict[str, asyncio.Future[str]] = field(default_factory=dict)
    """those that wait, by uid; the result is empty, or why the gang was given up"""
    released: set[str] = field(default_factory=set)
    """uids of members whose bind goes on since the gang was complete"""
    writing: ClaimBarrier | None = None
    """while claims of those members are written"""

    @property
    def until(self) -> float:
        return min(self.deadline, self.ends)

    def end_bind(self, uid: str, result: str) -> None:
        """Let a bind that waits go on, with an empty result, or fail."""
        turn = self.binds.pop(uid, None)
        if turn is not None and not turn.done():
            turn.set_result(result)

    def end_binds(self, result: str) -> None:
        for uid in list(self.binds):
            self.end_bind(uid, result)


@dataclass(slots=True, eq=False)
class GangNomination:
    """All members are nominated for what victims still hold; the places are in the ledger. Another object each time."""

    victims: frozenset[str]
    """uids of pods that are waited for"""
    deadline: float
    is_complete: bool = False
    """all members have their nominations"""
    shown: dict[str, PodRequest] = field(default_factory=dict)
    """members whose nominated node the API shows, by uid"""


@dataclass(slots=True, eq=False)
class GangPreemption:
    """When victims are looked for, and what the gang is nominated for."""

    is_due: bool = False
    """it was refused since the preemptor looked at it last"""
    refused_at: float | None = None
    """when all members had been asked for and did not fit, for the first time"""
    searched: object = None
    """what the last search in vain depended on"""
    search_at: float = 0.0
    """the next search, after one in vain"""
    nomination: GangNomination | None = None
    """while it is NOMINATED"""


class Gang:
    """The record of one gang."""

    def __init__(self, namespace: str, group: PodGroup, since: float) -> None:
        self.namespace = namespace
        self.group = group
        self.name = f"{namespace}/{group.name}"
        self.members = Members()
        self.wait = Wait(since)
        self.plan: Plan | None = None
        self.preemption = GangPreemption()
        self.outlook: Outlook | None = None
        self.state = WAITING
        """changed by `_apply` only"""

    @property
    def fitting(self) -> int | None:
        """Members that fit when the last plan failed; None if it waits for something else."""
        return None if self.wait.places is None else len(self.wait.places)

    @property
    def is_short(self) -> bool:
        """Whether it waits for room, so that victims may help."""
        return self.state is WAITING and self.wait.places is not None

    @property
    def priority(self) -> int:
        """The lowest of its members that wait."""
        return min((member.request.priority for member in self.members.pending()), default=0)

    @property
    def come(self) -> int:
        """Members whose binds wait for the others."""
        return 0 if self.plan is None else len(self.plan.binds)

    @property
    def progress(self) -> str:
        """How many members have come."""
        return f"{self.present} of {self.required} members exist, {self.come} of them came to be bound"

    @property
    def required(self) -> int:
        """Members that must be placed and bound together: without those that are done, unless all have come again."""
        minimum = self.group.minimum
        return minimum if self.present >= minimum else max(1, minimum - self.members.count(MemberState.DONE))

    @property
    def present(self) -> int:
        """Members that exist and are not gated."""
        return self.members.count(MemberState.PENDING, MemberState.BOUND)

    @property
    def holds_end(self) -> float:
        """When what is held for a member is free again: a plan ends its holds itself."""
        if self.state not in (COMPLETING, WHOLE):
            return math.inf
        return 0.0 if self.plan is None else self.plan.deadline

    def note_change(self) -> None:
        """What the last plan in vain depended on is another now."""
        self.wait.tried = None

    def note_complete(self) -> None:
        """The last required member is there: what is said of a gang that is not complete is not true any more."""
        self.wait.plan_at = 0.0

    def note_turn(self, now: float) -> None:
        """Its turn has ended."""
        self.wait.turned = now

    # -- transitions

    def begin_plan(self, now: float, *, patience: float, longest: float) -> None:
        """WAITING, NOMINATED -> PLANNED: every member has its hold."""
        self._apply(GangTransition.PLAN)
        self.plan = Plan(now + patience, now + longest)
        self.wait.misfit = self.preemption.refused_at = self.preemption.nomination = None

    def give_up(self) -> Plan:
        """PLANNED -> WAITING: the plan that has ended."""
        plan = self.plan
        assert plan is not None  # the state has one
        self._apply(GangTransition.GIVE_UP)
        self.plan = None
        return plan

    def open(self, until: float) -> None:
        """PLANNED -> COMPLETING: no bind waits any more; what is left is held until then."""
        self._apply(GangTransition.OPEN)
        self._hold_until(until)

    def complete(self, until: float) -> None:
        """WAITING, COMPLETING -> COMPLETING: what is missing has its holds until then."""
        self._apply(GangTransition.COMPLETE)
        self._hold_until(until)

    def become_whole(self) -> None:
        """The required members are bound."""
        self._apply(GangTransition.BECOME_WHOLE)

    def begin_again(self, now: float) -> None:
        """COMPLETING, WHOLE -> WAITING: no member is bound any more."""
        self._apply(GangTransition.BEGIN_AGAIN)
        self.plan, self.wait.since = None, now

    def nominate(self, victims: frozenset[str], deadline: float) -> GangNomination:
        """WAITING -> NOMINATED."""
        self._apply(GangTransition.NOMINATE)
        self.preemption.nomination = nomination = GangNomination(victims, deadline)
        return nomination

    def renounce(self) -> GangNomination:
        """NOMINATED -> WAITING: what it was nominated for."""
        nomination = self.preemption.nomination
        assert nomination is not None  # the state has one
        self._apply(GangTransition.RENOUNCE)
        self.preemption.nomination = None
        return nomination

    def _hold_until(self, moment: float) -> None:
        if self.plan is None:
            self.plan = Plan(moment, moment)
        self.plan.deadline = moment

    def _apply(self, transition: GangTransition) -> None:
        """The one place where the state changes."""
        if self.state not in transition.sources:
            raise IllegalGangTransition(f"gang {self.name} is {self.state.value}: {transition.name} is not possible")
        self.state = transition.target
        self.note_change()
