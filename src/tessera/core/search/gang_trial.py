"""One try to place all members of a gang on the ledger, one after the other, by the rule that places single pods.

A member for which no place is free gets that of another one, if this can move: an augmenting path of a bipartite
matching (`find_path`). If there is none, no other choice of places leaves one for this member, and none will while
others only take more. So members that ask for the same are placed wherever that is possible, whatever nodes each of
them may use; up to `MAX_KINDS` of members with different places the search is complete.

With domains (the values of one node label), the gang goes to as few of them as possible: the smallest domain that
seems to hold all; else the largest one first. What a domain holds is estimated from the arrays, and only the order of
the domains depends on that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import repeat
from operator import itemgetter
from typing import NamedTuple, TypeVar

import numpy as np

from tessera.core.fit import screen
from tessera.core.fit.card_rules.amounts import memory_asked
from tessera.core.ledger.holders import GrantState, trial_hold_uid
from tessera.core.ledger.ledger import facts_of
from tessera.core.ledger.transaction import Transaction
from tessera.core.model.arrays import Ints
from tessera.core.model.grants import Placement
from tessera.core.model.requests import PodRequest
from tessera.core.search.selection import Candidates, Refused, Selected, Selector, Unfinished

MAX_REFUSED = 16
"""kinds of members that may be refused before no other kind is tried: each costs as much as the refusal of a pod"""
MAX_VAIN_DOMAINS = 8
"""that take no member, the most promising ones, before the rest of the gang goes anywhere"""
REFUSAL_STEPS = 8
"""that one refusal counts for: on many nodes it takes far longer than a place"""
CARD_CHOICES = ("binpack", "spread")
"""device policies that only say which cards are preferred: one is tried for the other"""

Name = Callable[[PodRequest], PodRequest]


class GangMember(NamedTuple):
    """One pod to be placed."""

    request: PodRequest
    candidates: Candidates | None = None
    """None: all nodes"""

    @property
    def kind(self) -> Hashable:
        """Members of one kind fit in the same places."""
        return self.request.shape, self.request.namespace, id(self.candidates)


class Placed(NamedTuple):
    """A member and its place."""

    request: PodRequest
    placement: Placement


class Domains(NamedTuple):
    """Nodes by the value of one label."""

    label: str
    by_node: Mapping[str, str]
    """nodes without the label are left out"""


class GangTrial:
    """What was placed before a pause is held in the ledger from then on (`keep`), until it is taken back."""

    def __init__(
        self,
        selector: Selector,
        members: Sequence[GangMember],
        *,
        work: float,
        card_choice: str,
        name: Name | None,
    ) -> None:
        """`work` bounds the plain rule for one member; `card_choice`: instead of what members say, if not empty."""
        self._selector = selector
        self._ledger = selector.ledger
        self.members = members
        self.kinds: list[int] = []
        """of the members, numbered: those of one kind fit in the same places"""
        numbers: dict[Hashable, int] = {}
        for member in members:
            self.kinds.append(numbers.setdefault(member.kind, len(numbers)))
        self._work = work
        self._asked = 0.0
        """of the members' filters"""
        self._card_choice = card_choice
        self._name = name or self._trial_name
        self.held: list[Placed] = []
        """places in the order in which they were found, with the requests under which they are held"""
        self._hold_of: dict[int, int] = {}
        """position in `members` -> position in `held`"""
        self.refused: tuple[GangMember, Refused] | None = None
        """the first member that did not fit"""
        self._transaction: Transaction | None = None
        self._kept = 0
        """of `held`, those from before the last pause"""

    @property
    def places(self) -> tuple[Placed, ...]:
        """Of the members, in the order of `held`."""
        by_hold = sorted(self._hold_of.items(), key=itemgetter(1))
        return tuple([Placed(self.members[i].request, self.held[hold].placement) for i, hold in by_hold])

    @property
    def missing(self) -> list[GangMember]:
        """Members that have no place."""
        return [member for i, member in enumerate(self.members) if i not in self._hold_of]

    # -- on the ledger

    def begin(self) -> None:
        """Most trials come to nothing within one step, so what follows is one transaction."""
        self._transaction = self._ledger.begin()

    def keep(self) -> None:
        """What was placed so far is held from now on."""
        if self._transaction is not None:
            self._transaction.keep()
        self._transaction, self._kept = None, len(self.held)

    def take_back(self) -> None:
        if self._transaction is not None:
            self._transaction.discard()
            self._transaction = None
        for request, _ in self.held[: self._kept]:
            self._ledger.release(request.uid)

    # -- placing

    def _trial_name(self, request: PodRequest) -> PodRequest:
        return request.called(uid=trial_hold_uid(len(self.held)), namespace=request.namespace, name=request.name)

    def run(self, domains: Domains | None) -> Generator[None, None, bool]:
        """Place what fits; whether that is finished. A step for each member that is placed, some for a refusal."""
        if domains is not None:
            vain = 0
            for within in self._by_domain(domains):
                before = len(self._hold_of)
                if not (yield from self._fill(within)):
                    return False
                if len(self._hold_of) == len(self.members):
                    return True
                vain += len(self._hold_of) == before
                if vain == MAX_VAIN_DOMAINS:
                    break
        return (yield from self._fill(None))

    def _by_domain(self, domains: Domains) -> Iterator[Candidates]:
        """The domains in the order in which they are filled. What is placed in one does not change the others."""
        names: dict[str, list[str]] = {}
        for name in self._ledger.node_names():
            if name in domains.by_node:
                names.setdefault(domains.by_node[name], []).append(name)
        holds: dict[str, int] = {}
        estimated: Hashable = None
        while names:
            missing = self.missing
            if estimated != missing[0].request.shape:
                estimated = missing[0].request.shape
                holds = self._estimate(domains, missing[0].request)
            enough = [domain for domain in names if holds.get(domain, 0) >= len(missing)]
            choose = min if enough else max
            best = choose(enough or names, key=lambda domain: (holds.get(domain, 0), domain))
            yield self._selector.candidates(names.pop(best))

    def _fill(self, within: Candidates | None) -> Generator[None, None, bool]:
        filling = _Filling(self, within)
        for position, kind in enumerate(self.kinds):
            if position in self._hold_of or not filling.may_try(kind):
                continue
            moves = yield from find_path(
                position, kind=self.kinds.__getitem__, free=filling.take_free, taken=filling.taken
            )
            if filling.is_unfinished:
                return False
            if moves is not None:
                self._hold_of.update(moves)
                yield
                continue
            filling.hopeless.add(kind)
            if within is None and self.refused is None:
                self.refused = self.members[position], filling.full[kind]
        return True

    def take(self, position: int, within: Candidates | None) -> int | Refused | Unfinished:
        """A free place for a member, as a position in `held`."""
        request, candidates = self.members[position]
        tried = _with_card_choice(request, self._card_choice) if self._card_choice else request
        answer = self._selector.select_within(tried, self.among(candidates, within), self._work)
        self._asked += self._selector.asked
        if self._asked > self._work:
            return Unfinished()  # Answers are kept: the next plan goes on from there.
        if isinstance(answer, Selected):
            named = self._name(request)
            assert self._transaction is not None  # it is not paused
            self._transaction.put(facts_of(named, answer.placement), GrantState.RESERVED)
            self.held.append(Placed(named, answer.placement))
            return len(self.held) - 1
        return answer

    def taken(self) -> Iterator[tuple[int, int]]:
        """Positions in `held` and in `members`."""
        for position, hold in self._hold_of.items():
            yield hold, position

    def among(self, own: Candidates | None, within: Candidates | None) -> Candidates:
        order = self._ledger.arrays.order
        found: Candidates | None = None
        for each in (own, within):
            if each is not None:
                current = each if each.order is order else self._selector.candidates(each.names)
                found = current if found is None else Candidates(order, found.named & current.named, ())
        return Candidates(order, np.ones(len(order.names), dtype=np.bool_), ()) if found is None else found

    def _estimate(self, domains: Domains, request: PodRequest) -> dict[str, int]:
        """About how many members like this one each domain holds; those that hold none may be left out."""
        asked = next((each for _, each in request.requests), None)
        rules = self._ledger.rules.get(asked.vendor) if asked is not None else None
        if asked is None or rules is None:
            return {}
        everywhere = self.among(None, None)
        arrays, rows = self._ledger.arrays, everywhere.rows
        takes = screen.judge(arrays, screen.question(request, asked, rules), rows) == screen.TAKES
        memory = memory_asked(asked, arrays.memory[:, rows])
        room = np.minimum(
            arrays.slots[:, rows] - arrays.used[:, rows],
            (arrays.memory[:, rows] - arrays.used_memory[:, rows]) // np.maximum(memory, 1),
        )
        if asked.cores:
            room = np.minimum(room, (arrays.cores[:, rows] - arrays.used_cores[:, rows]) // asked.cores)
        by_node: Ints = np.where(takes, np.maximum(room, 1), 0).sum(axis=0) // max(asked.count, 1)
        holds: Counter[str] = Counter()
        for name, count in zip(everywhere.registered, by_node.tolist(), strict=True):
            if name in domains.by_node:
                holds[domains.by_node[name]] += count
        return holds


class _Filling:
    """Members are placed in a domain, or anywhere. What is free there only becomes less meanwhile."""

    def __init__(self, trial: GangTrial, within: Candidates | None) -> None:
        self._trial = trial
        self._within = within
        self.full: dict[int, Refused] = {}
        """kinds of members for which no place is free"""
        self.hopeless: set[int] = set()
        """kinds for which no member can make way either"""
        self.is_unfinished = False
        self._fitting: set[int] = set()
        self._nodes: dict[int, frozenset[str]] = {}
        """by kind"""

    def may_try(self, kind: int) -> bool:
        is_bounded = len(self.full) < MAX_REFUSED or kind in self._fitting
        return is_bounded and kind not in self.hopeless

    def take_free(self, position: int) -> Generator[None, None, int | None]:
        kind = self._trial.kinds[position]
        if self.is_unfinished or kind in self.full or not self.may_try(kind):
            return None
        answer = self._trial.take(position, self._within)
        if isinstance(answer, int):
            self._fitting.add(kind)
            return answer
        if isinstance(answer, Unfinished):
            self.is_unfinished = True
            return None
        self.full[kind] = answer
        yield from repeat(None, REFUSAL_STEPS - 1)
        return None

    def taken(self, position: int) -> Iterator[tuple[int, int]]:
        """Places of members that ask for the same, on nodes that this one may use."""
        trial, (request, candidates) = self._trial, self._trial.members[position]
        if candidates is None and self._within is None:
            return  # Whatever is free for another member would be free for this one.
        kind = trial.kinds[position]
        if kind not in self._nodes:
            self._nodes[kind] = frozenset(trial.among(candidates, self._within).registered)
        nodes = self._nodes[kind]
        for hold, other in trial.taken():
            asked = trial.members[other].request
            is_equal = asked.shape == request.shape and asked.namespace == request.namespace
            if is_equal and trial.held[hold].placement.node in nodes:
                yield hold, other


def changes_cards(request: PodRequest, policy: str) -> bool:
    return bool(policy) and request.device_policy in CARD_CHOICES and request.device_policy != policy


def card_choices(request: PodRequest) -> Iterator[PodRequest]:
    """The request, and the same with other cards preferred: a plan may have found its place with one of these."""
    yield request
    for policy in CARD_CHOICES:
        if changes_cards(request, policy):
            yield replace(request, device_policy=policy)


def _with_card_choice(request: PodRequest, policy: str) -> PodRequest:
    return replace(request, device_policy=policy) if changes_cards(request, policy) else request


MAX_KINDS = 64
"""of members that may be moved for one: each costs a look at all places"""

Member = TypeVar("Member", bound=Hashable)
Place = TypeVar("Place")


def find_path(
    member: Member,
    *,
    kind: Callable[[Member], Hashable],
    free: Callable[[Member], Generator[None, None, Place | None]],
    taken: Callable[[Member], Iterable[tuple[Place, Member]]],
) -> Generator[None, None, list[tuple[Member, Place]] | None]:
    """Who goes where, so that the member has a place and no other loses its own; None if there is no such path.

    `free`: a free place that a member may use, which it takes; `taken`: those that it may use and others have, with
    these. Members of one `kind` may use the same places. Pauses after each member for which no place is free.
    """
    reached = {kind(member)}
    movers: list[tuple[Member, list[tuple[Member, Place]]]] = [(member, [])]
    for mover, before in movers:
        place = yield from free(mover)
        if place is not None:
            return [*before, (mover, place)]
        yield
        for others_place, other in taken(mover):
            if len(reached) < MAX_KINDS and kind(other) not in reached:
                reached.add(kind(other))
                movers.append((other, [*before, (mover, others_place)]))
    return None
