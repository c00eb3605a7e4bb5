"""One gang as the scheduler knows it: its members, the holds for them, and its state.

     the API shows a member, or filter meets one
                      |                            the victims have left
                      |                NOMINATED ------------------------------------.
                      |                 ^  |                                         |
                      v  victims for it |  | renounced (`nominations`)               |
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

A *hold* is a place in the ledger for one member (`core.holders`), which has the gang as its owner. A member takes its
hold at its filter call (`holds`). There are holds for members that do not exist yet: the next one of that shape takes
one.

    WAITING       nothing is held (except for the gang whose turn it is, see `turns`); members are refused
    NOMINATED     every member is nominated for what victims still hold; members are refused
    PLANNED       members get their holds, and their binds wait; nothing is written
    COMPLETING    Bindings are, or may be, written: no bind waits, and what is missing has its holds
    WHOLE         members come and go like single pods: a replacement waits for no other member

What is held is memory of this process alone. What is bound is shown by the API, and a new process continues from that.
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

from tessera.core.gang_trial import Placed
from tessera.core.misfits import Misfit
from tessera.core.requests import PodRequest
from tessera.core.selection import Candidates
from tessera.wire.pod_groups import PodGroup


class GangState(Enum):
    """See the drawing."""

    WAITING = "waiting"
    NOMINATED = "nominated"
    PLANNED = "planned"
    COMPLETING = "completing"
    WHOLE = "whole"


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


class Outlook(NamedTuple):
    """Whether a gang would fit if all other pods were gone."""

    shortage: str
    """why it can never fit; empty if it can"""
    state: Hashable
    """of the cluster and the gang"""
    until: float
    """on the monotonic clock"""


@dataclass(slots=True, eq=False)
class ClaimBarrier:
    """Members whose claims are written before any of them is bound: a claim may turn out to be another pod's."""

    pending: set[str]
    """uids of those whose claims are not written yet"""
    opened: asyncio.Future[bool]
    """whether enough members go on"""
    ready: int = 0


@dataclass(slots=True, eq=False)
class Gang:
    """Changed by `coordinator` and its parts only."""

    namespace: str
    group: PodGroup
    since: float
    """when it began to wait, on the monotonic clock"""
    turned: float = -math.inf
    """when its last turn ended"""
    outlook: Outlook | None = None
    state: GangState = GangState.WAITING
    members: dict[str, Member] = field(default_factory=dict)
    """by uid, in the order in which they were met"""
    counts: Counter[MemberState] = field(default_factory=Counter)
    """of the members, by state"""
    nomination: GangNomination | None = None
    """while it is NOMINATED"""
    waiting_binds: dict[str, asyncio.Future[str]] = field(default_factory=dict)
    """by uid; the result is empty, or why the gang was given up"""
    released: set[str] = field(default_factory=set)
    """uids of members whose bind goes on since the gang was complete"""
    writing: ClaimBarrier | None = None
    """while claims of those members are written"""
    reason: str = ""
    """why it waits"""
    misfit: Misfit | None = None
    """the same, as the answer to its members' filter calls"""
    tried: Hashable = None
    """what the last plan that failed depended on"""
    places: tuple[Placed, ...] | None = None
    """for the members that fit when the last plan failed; None if it waits for something else"""
    may_preempt: bool = False
    """it was refused since the preemptor looked at it last"""
    plan_at: float = 0.0
    """the next plan, after one in vain that took long"""
    searched: object = None
    """what the last search in vain for victims depended on"""
    search_at: float = 0.0
    """the next search for victims, after one in vain"""
    refused_at: float | None = None
    """when all members had been asked for and did not fit, for the first time"""
    is_unfinished: bool = False
    """planning took more work than one call may do"""
    must_ask: bool = False
    """members of the last plan did not come in time: next time kube-scheduler must have asked for all of them before"""
    failures: int = 0
    """plans given up since the last one that was bound"""
    not_before: float = 0.0
    """the next plan, after one that was given up"""
    deadline: float = 0.0
    """of the plan, or of what is held"""
    ends: float = 0.0
    """of the plan, whatever the progress"""
    replans: int = 0

    @property
    def name(self) -> str:
        return f"{self.namespace}/{self.group.name}"

    @property
    def fitting(self) -> int | None:
        """Members that fit when the last plan failed; None if it waits for something else."""
        return None if self.places is None else len(self.places)

    @property
    def priority(self) -> int:
        """The lowest of its members that wait."""
        return min((member.request.priority for member in self.pending()), default=0)

    @property
    def progress(self) -> str:
        """How many members have come."""
        come = len(self.waiting_binds)
        return f"{self.present()} of {self.required} members exist, {come} of them came to be bound"

    def count(self, *states: MemberState) -> int:
        return sum(self.counts[state] for state in states)

    def add(self, uid: str, member: Member) -> None:
        self.members[uid] = member
        self.counts[member.state] += 1
        if self.present() == self.required:
            self.plan_at = 0.0  # What is said of a gang that is not complete is not true any more.

    def remove(self, uid: str) -> None:
        self.counts[self.members.pop(uid).state] -= 1

    def set_state(self, member: Member, state: MemberState) -> None:
        self.counts[member.state] -= 1
        member.state = state
        self.counts[state] += 1

    def pending(self) -> list[Member]:
        return [member for member in self.members.values() if member.state is MemberState.PENDING]

    @property
    def required(self) -> int:
        """Members that must be placed and bound together: without those that are done, unless all have come again."""
        minimum, pending = self.group.minimum, self.count(MemberState.PENDING, MemberState.BOUND)
        return minimum if pending >= minimum else max(1, minimum - self.count(MemberState.DONE))

    def present(self) -> int:
        """Members that exist and are not gated."""
        return self.count(MemberState.PENDING, MemberState.BOUND)

    def shared_claim(self) -> str:
        """A ResourceClaim that is not allocated, and not made for the member that names it; empty if there is none."""
        return next((member.shared_claim for member in self.pending() if member.shared_claim), "")

    def forget_narrowed(self) -> bool:
        """Whether a plan depended on what filter calls of an earlier plan allowed; the next one does not."""
        narrowed = [member for member in self.members.values() if member.narrowed is not None]
        for member in narrowed:
            member.narrowed = None
        return bool(narrowed)

    def end_wait(self, uid: str, result: str) -> None:
        """Let a bind that waits go on, with an empty result, or fail."""
        turn = self.waiting_binds.pop(uid, None)
        if turn is not None and not turn.done():
            turn.set_result(result)

    def end_waits(self, result: str) -> None:
        for uid in list(self.waiting_binds):
            self.end_wait(uid, result)
