"""Places all members of a gang at once: a placement for each of them, or the whole reason why not.

Members are placed one after the other on the ledger by the rule that places single pods, the largest first.
`plan_gang` takes everything back before it answers, so it changes nothing. `GangPlanning` may pause meanwhile, and
leaves the places held. Members of one shape share what the selector has cached, so a member costs about as much as the
next pod of a Deployment.

The search is sufficient, not complete. For members of one shape that ask for whole cards, or for one card each, it
finds a plan wherever there is one. For others a choice that suits one member can spoil it for another, so small gangs
are tried again with other orders and card choices; `tests/property/core/test_gangs.py` measures what is left.

With domains (the values of one node label), the gang goes to as few of them as possible: the smallest domain that
seems to hold all; else the largest one first. What a domain holds is estimated from the arrays, and only the order of
the domains depends on that.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Generator, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import NamedTuple

import numpy as np

from tessera.core import screen
from tessera.core.arrays import Ints
from tessera.core.grants import Placement
from tessera.core.ledger import LedgerListener
from tessera.core.near_misses import near_miss
from tessera.core.requests import WHOLE_CARD_CORES, PodRequest
from tessera.core.selection import Candidates, Refused, Selected, Selector, Unfinished
from tessera.core.steps import finish

MOST_REFUSED = 16
"""kinds of members that may be refused before no other kind is tried: each costs as much as the refusal of a pod"""
MOST_VAIN_DOMAINS = 8
"""that take no member, the most promising ones, before the rest of the gang goes anywhere"""
REFUSAL_STEPS = 8
"""that one refusal counts for: on many nodes it takes far longer than a place"""
FEW_MEMBERS = 64
"""members up to which a gang that does not fit is tried in other ways: it costs as many times as long"""
CARD_CHOICES = ("binpack", "spread")
"""device policies that only say which cards are preferred: one is tried for the other"""


class GangMember(NamedTuple):
    """One pod to be placed."""

    request: PodRequest
    candidates: Candidates | None = None
    """None: all nodes"""


class Placed(NamedTuple):
    """A member and its place."""

    request: PodRequest
    placement: Placement


@dataclass(frozen=True, slots=True)
class GangPlan:
    """Places that can all be taken at the same time, in the order in which they were found."""

    places: tuple[Placed, ...]


@dataclass(frozen=True, slots=True)
class GangMisfit:
    """Why a gang does not fit."""

    text: str
    places: tuple[Placed, ...]
    """for the members that would fit"""


class Domains(NamedTuple):
    """Nodes by the value of one label."""

    label: str
    by_node: Mapping[str, str]
    """nodes without the label are left out"""


Answer = GangPlan | GangMisfit | Unfinished
Name = Callable[[PodRequest], PodRequest]
Steps = Generator[None, None, Answer]
"""one for each member that is placed, some for one that is refused; the return value is the answer"""


def plan_gang(
    selector: Selector,
    members: Sequence[GangMember],
    *,
    required: int,
    domains: Domains | None = None,
    work: float = math.inf,
) -> Answer:
    """Places for all members, or for at least `required` of them. Changes nothing but caches.

    `work` bounds the plain rule for one member, as in `Selector.select_within`.
    """
    planning = GangPlanning(selector, members, required=required, domains=domains, work=work)
    answer = finish(planning.steps())
    planning.take_back()
    return answer


class GangPlanning:
    """A plan in the making, which may pause after each step.

    What was placed before a pause is held in the ledger from then on, and its listener is told: other decisions depend
    on it. In the end the caller keeps all places, or takes them back.
    """

    def __init__(
        self,
        selector: Selector,
        members: Sequence[GangMember],
        *,
        required: int,
        domains: Domains | None = None,
        work: float = math.inf,
        name: Name | None = None,
    ) -> None:
        """`name` gives the request of a member the uid under which its place is held."""
        self._selector = selector
        self._members = members
        self._required = required
        self._domains = domains
        self._work = work
        self._name = name
        self._trial: _Trial | None = None

    def steps(self) -> Steps:
        first: GangMisfit | None = None
        for ordered, card_choice in _variants(self._members):
            self.take_back()
            self._trial = trial = _Trial(
                self._selector,
                ordered,
                required=self._required,
                work=self._work,
                card_choice=card_choice,
                name=self._name,
            )
            trial.mute()
            try:
                answer = yield from trial.run(self._domains, explains=first is None)
            except BaseException:  # It is not continued.
                self.take_back()
                raise
            if not isinstance(answer, GangMisfit):
                return answer
            first = first or answer
        assert first is not None  # the members themselves are the first variant
        return first

    def pause(self) -> None:
        """Other decisions follow."""
        if self._trial is not None:
            self._trial.publish()

    def resume(self) -> None:
        if self._trial is not None:
            self._trial.mute()

    def keep(self) -> list[Placed]:
        """The places with the requests under which they are held."""
        trial, self._trial = self._trial, None
        if trial is None:
            return []
        trial.publish()
        return trial.held

    def take_back(self) -> None:
        trial, self._trial = self._trial, None
        if trial is not None:
            trial.take_back()


def describe_members(requests: Sequence[PodRequest]) -> str:
    """Such as `8 x 4 H100` or `1 x 8 NVIDIA, 7 x 4 NVIDIA`."""
    kinds = Counter(map(_describe, requests))
    return ", ".join(f"{count} x {kind}" for kind, count in sorted(kinds.items(), key=lambda item: (item[1], item[0])))


class _Trial:
    """One try on the ledger."""

    def __init__(
        self,
        selector: Selector,
        members: Sequence[GangMember],
        *,
        required: int,
        work: float,
        card_choice: str,
        name: Name | None,
    ) -> None:
        self._selector = selector
        self._ledger = selector.ledger
        self._members = members
        self._required = required
        self._work = work
        self._card_choice = card_choice
        self._name = name or self._trial_name
        self._placed: dict[int, Placed] = {}
        """by position in `members`"""
        self.held: list[Placed] = []
        """the same with the requests under which they are held, in the order in which they were found"""
        self._refused: tuple[GangMember, Refused] | None = None
        """the first member that did not fit"""
        self._listener: LedgerListener | None = None
        self._published = 0
        """of `held`, those that the listener knows"""

    def run(self, domains: Domains | None, *, explains: bool) -> Steps:
        """`explains`: whether a misfit says why, which costs as much as the search."""
        if not (yield from self._place(domains)):
            return Unfinished()
        places = tuple(self._placed.values())
        if len(places) >= self._required:
            return GangPlan(places)
        return GangMisfit(self._text() if explains else "", places)

    # -- what the ledger's listener knows

    def mute(self) -> None:
        """Nothing is told until `publish`: most trials come to nothing within one step."""
        self._listener, self._ledger.listener = self._ledger.listener, None

    def publish(self) -> None:
        """What was placed so far is held from now on."""
        self._ledger.listener = self._listener
        for request, _ in self.held[self._published :]:
            entry = self._ledger.pod(request.uid)
            if entry is not None and self._listener is not None:
                self._listener.on_pod(entry.facts, entry.state, observed=entry.observed)
        self._published = len(self.held)

    def take_back(self) -> None:
        for request, _ in self.held[self._published :]:
            self._ledger.release(request.uid)
        if self._ledger.listener is None:
            self._ledger.listener = self._listener
        for request, _ in self.held[: self._published]:
            self._ledger.release(request.uid)

    # -- placing

    def _trial_name(self, request: PodRequest) -> PodRequest:
        """A uid that no pod has."""
        return request.called(uid=f"gang-trial/{len(self.held)}", namespace=request.namespace, name=request.name)

    def _place(self, domains: Domains | None) -> Generator[None, None, bool]:
        """Whether the search is finished."""
        if domains is not None:
            vain = 0
            for within in self._by_domain(domains):
                before = len(self._placed)
                if not (yield from self._fill(within)):
                    return False
                if len(self._placed) == len(self._members):
                    return True
                vain += len(self._placed) == before
                if vain == MOST_VAIN_DOMAINS:
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
            missing = [member for i, member in enumerate(self._members) if i not in self._placed]
            if estimated != missing[0].request.shape:
                estimated = missing[0].request.shape
                holds = self._estimate(domains, missing[0].request)
            enough = [domain for domain in names if holds.get(domain, 0) >= len(missing)]
            choose = min if enough else max
            best = choose(enough or names, key=lambda domain: (holds.get(domain, 0), domain))
            yield self._selector.candidates(names.pop(best))

    def _fill(self, within: Candidates | None) -> Generator[None, None, bool]:
        """Place what fits; whether that is finished."""
        hopeless: set[Hashable] = set()
        fitting: set[Hashable] = set()
        for position, member in enumerate(self._members):
            request, candidates = member.request, member.candidates
            kind = (request.shape, request.namespace, id(candidates))
            if position in self._placed or kind in hopeless:
                continue
            if len(hopeless) >= MOST_REFUSED and kind not in fitting:
                continue
            tried = _with_card_choice(request, self._card_choice)
            answer = self._selector.select_within(tried, self._among(candidates, within), self._work)
            if isinstance(answer, Unfinished):
                return False
            if isinstance(answer, Selected):
                named = self._name(request)
                self._ledger.reserve(named, answer.placement, deadline=math.inf)
                self.held.append(Placed(named, answer.placement))
                self._placed[position] = Placed(request, answer.placement)
                fitting.add(kind)
                yield
            else:
                hopeless.add(kind)
                if within is None and self._refused is None:
                    self._refused = member, answer
                yield from repeat(None, REFUSAL_STEPS)
        return True

    def _among(self, own: Candidates | None, within: Candidates | None) -> Candidates:
        order = self._ledger.arrays.order
        if own is None and within is None:
            return Candidates(order, np.ones(len(order.names), dtype=np.bool_), ())
        current = [
            each if each.order is order else self._selector.candidates(each.names)
            for each in (own, within)
            if each is not None
        ]
        if len(current) == 1:
            return current[0]
        return Candidates(order, current[0].named & current[1].named, ())

    def _estimate(self, domains: Domains, request: PodRequest) -> dict[str, int]:
        """About how many members like this one each domain holds; those that hold none may be left out."""
        asked = next((each for _, each in request.requests), None)
        rules = self._ledger.rules.get(asked.vendor) if asked is not None else None
        if asked is None or rules is None:
            return {}
        everywhere = self._among(None, None)
        arrays, rows = self._ledger.arrays, everywhere.rows
        takes = screen.judge(arrays, screen.question(request, asked, rules), rows) == screen.TAKES
        memory = screen.memory_asked(asked, arrays.memory[:, rows])
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

    def _text(self) -> str:
        """While the members that fit are still on the ledger: what comes nearest is what is left beside them."""
        fitting, required = len(self._placed), self._required
        missing = [member.request for i, member in enumerate(self._members) if i not in self._placed]
        short = sum(asked.count for request in missing[: required - fitting] for _, asked in request.requests)
        parts = [
            f"{describe_members([member.request for member in self._members])}: {fitting} of {required} members fit",
            f"short of {short} card{'s' if short != 1 else ''}",
        ]
        if self._refused is not None:
            member, refused = self._refused
            candidates = self._among(member.candidates, None)
            near = near_miss(self._ledger, member.request, candidates.rows)
            if near is not None:
                parts.append(near.text)
            elif refused.reason_counts:
                parts.append(f"most nodes: {refused.reason_counts[0][0]}")
        return "; ".join(parts)


def _variants(members: Sequence[GangMember]) -> Iterator[tuple[list[GangMember], str]]:
    """Orders of the members, and which cards to prefer; empty: as each member says."""
    ordered = sorted(members, key=largest_first)
    yield ordered, ""
    if len(members) > FEW_MEMBERS:
        return
    orders = [ordered, ordered[::-1]] if len({member.request.shape for member in members}) > 1 else [ordered]
    # What every member says already is no other choice.
    others = [choice for choice in CARD_CHOICES if any(_changes_cards(member.request, choice) for member in members)]
    for choice in ("", *others):
        for order in orders:
            if choice or order is not ordered:
                yield order, choice


def _changes_cards(request: PodRequest, policy: str) -> bool:
    return bool(policy) and request.device_policy in CARD_CHOICES and request.device_policy != policy


def _with_card_choice(request: PodRequest, policy: str) -> PodRequest:
    return replace(request, device_policy=policy) if _changes_cards(request, policy) else request


def largest_first(member: GangMember) -> tuple[int, int, int, str, str]:
    """The order in which members are placed."""
    request = member.request
    asked = [each for _, each in request.requests]
    memory = sum(each.count * (each.memory or each.percent) for each in asked)
    cores = sum(each.count * each.cores for each in asked)
    return -sum(each.count for each in asked), -memory, -cores, request.name, request.uid


def _describe(request: PodRequest) -> str:
    parts = []
    for _, asked in request.requests:
        models = request.constraint_of(asked).use_models
        amounts = [f"{asked.memory} MiB"] if asked.memory else []
        amounts += [f"{asked.cores} cores"] if 0 < asked.cores < WHOLE_CARD_CORES else []
        kind = "/".join(model.upper() for model in models) or asked.vendor
        parts.append(f"{asked.count} {kind}" + (f" ({', '.join(amounts)})" if amounts else ""))
    return " + ".join(parts)
