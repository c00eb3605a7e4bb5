"""Places all members of a gang at once: a placement for each of them, or the whole reason why not.

Members are placed one after the other (`gang_trial`), the largest first. `plan_gang` takes everything back before it
answers, so it changes nothing. `GangPlanning` may pause meanwhile, and leaves the places held. Members of one shape
share what the selector has cached, so a member costs about as much as the next pod of a Deployment.

The search is sufficient, not complete. For members of one shape that ask for whole cards, or for one card each, it
finds a plan wherever there is one. For others a choice that suits one member can spoil it for another, so small gangs
are tried again with other orders and card choices; `tests/property/core/search/test_gangs.py` measures what is left.

What cannot be placed on the `EmptyCluster`, the same nodes, cards and quotas with nothing in use, fits whichever pods
end or are evicted as little; cards that are unhealthy or cordoned now count as such.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Generator, Hashable, Iterator, Sequence
from dataclasses import dataclass

from tessera.core.ledger.ledger import Ledger
from tessera.core.model.requests import WHOLE_CARD_CORES, PodRequest
from tessera.core.search import finish
from tessera.core.search.gang_trial import CARD_CHOICES, Domains, GangMember, GangTrial, Name, Placed, changes_cards
from tessera.core.search.near_misses import near_miss
from tessera.core.search.selection import Candidates, Selector, Unfinished

FEW_MEMBERS = 64
"""members up to which a gang that does not fit is tried in other ways: it costs as many times as long"""


@dataclass(frozen=True, slots=True)
class GangPlan:
    """Places that can all be taken at the same time, in the order in which they were found."""

    places: tuple[Placed, ...]


@dataclass(frozen=True, slots=True)
class GangMisfit:
    """Why a gang does not fit."""

    summary: str
    """how many members fit, and how many cards are short"""
    detail: str
    """what comes nearest; may be empty"""
    places: tuple[Placed, ...]
    """for the members that would fit"""

    @property
    def text(self) -> str:
        return f"{self.summary}; {self.detail}" if self.detail else self.summary


Answer = GangPlan | GangMisfit | Unfinished
Steps = Generator[None, None, Answer]
"""one for each member that is placed, some for one that is refused; the return value is the answer"""


def plan_gang(
    selector: Selector,
    members: Sequence[GangMember],
    *,
    required: int,
    domains: Domains | None = None,
) -> Answer:
    """Places for all members, or for at least `required` of them. Changes nothing but caches."""
    planning = GangPlanning(selector, members, required=required, domains=domains)
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
        """`work` bounds the plain rule for one member, as in `Selector.select_within`. `name` gives the request of a
        member the uid under which its place is held."""
        self._selector = selector
        self._members = members
        self._required = required
        self._domains = domains
        self._work = work
        self._name = name
        self._trial: GangTrial | None = None

    def steps(self) -> Steps:
        first: GangMisfit | None = None
        for ordered, card_choice in _variants(self._members):
            if self._trial is not None:
                self.take_back()
            self._trial = trial = GangTrial(
                self._selector, ordered, work=self._work, card_choice=card_choice, name=self._name
            )
            trial.begin()
            try:
                is_finished = yield from trial.run(self._domains)
            except BaseException:  # It is not continued.
                self.take_back()
                raise
            places = trial.places
            if not is_finished or len(places) >= self._required:
                return GangPlan(places) if is_finished else Unfinished()
            # Why not costs as much as the search.
            first = first or GangMisfit(*_texts(self._selector.ledger, trial, self._required), places)
        assert first is not None  # the members themselves are the first variant
        return first

    def pause(self) -> None:
        """Other decisions follow."""
        if self._trial is not None:
            self._trial.keep()

    def resume(self) -> None:
        if self._trial is not None:
            self._trial.begin()

    def keep(self) -> list[Placed]:
        """The places of the plan, in the same order, with the requests under which they are held."""
        trial, self._trial = self._trial, None
        if trial is None:
            return []
        trial.keep()
        return trial.held

    def take_back(self) -> None:
        trial, self._trial = self._trial, None
        if trial is not None:
            trial.take_back()


def describe_members(requests: Sequence[PodRequest]) -> str:
    """Such as `8 x 4 H100` or `1 x 8 NVIDIA, 7 x 4 NVIDIA`."""
    kinds = Counter(map(_describe, requests))
    return ", ".join(f"{count} x {kind}" for kind, count in sorted(kinds.items(), key=lambda item: (item[1], item[0])))


def _variants(members: Sequence[GangMember]) -> Iterator[tuple[list[GangMember], str]]:
    """Orders of the members, and which cards to prefer; empty: as each member says."""
    ordered = sorted(members, key=largest_first)
    yield ordered, ""
    if len(members) > FEW_MEMBERS:
        return
    orders = [ordered, ordered[::-1]] if len({member.request.shape for member in members}) > 1 else [ordered]
    # What every member says already is no other choice.
    others = [choice for choice in CARD_CHOICES if any(changes_cards(member.request, choice) for member in members)]
    for choice in ("", *others):
        for order in orders:
            if choice or order is not ordered:
                yield order, choice


def largest_first(member: GangMember) -> tuple[int, int, int, str, str]:
    """The order in which members are placed."""
    request, cards, memory, cores = member.request, 0, 0, 0
    for _, asked in request.requests:
        cards += asked.count
        memory += asked.count * (asked.memory or asked.percent)
        cores += asked.count * asked.cores
    return -cards, -memory, -cores, request.name, request.uid


def _texts(ledger: Ledger, trial: GangTrial, required: int) -> tuple[str, str]:
    """While the members that fit are still on the ledger: what comes nearest is what is left beside them."""
    fitting, missing = len(trial.places), [member.request for member in trial.missing]
    short = sum(asked.count for request in missing[: required - fitting] for _, asked in request.requests)
    asked = describe_members([member.request for member in trial.members])
    summary = f"{asked}: {fitting} of {required} members fit; short of {short} card{'s' if short != 1 else ''}"
    if trial.refused is None:
        return summary, ""
    member, refused = trial.refused
    near = near_miss(ledger, member.request, trial.among(member.candidates, None).rows)
    if near is not None:
        return summary, near.text
    return summary, f"most nodes: {refused.reason_counts[0][0]}" if refused.reason_counts else ""


def _describe(request: PodRequest) -> str:
    parts = []
    for _, asked in request.requests:
        models = request.constraint_of(asked).use_models
        amounts = [f"{asked.memory} MiB"] if asked.memory else []
        amounts += [f"{asked.cores} cores"] if 0 < asked.cores < WHOLE_CARD_CORES else []
        kind = "/".join(model.upper() for model in models) or asked.vendor
        parts.append(f"{asked.count} {kind}" + (f" ({', '.join(amounts)})" if amounts else ""))
    return " + ".join(parts)


NODES_AT_ONCE = 16
"""copied between two places to pause: about 2 ms"""


class EmptyCluster:
    """The nodes of a ledger without their pods: a copy, kept between two questions and brought up to date for each."""

    def __init__(self, source: Ledger) -> None:
        self._source = source
        self._ledger = Ledger(source.rules)
        self._selector = Selector(self._ledger)

    def shortage(self, members: Sequence[GangMember], *, required: int, work: float) -> Generator[None, None, str]:
        """Why so many members cannot be placed together; empty if they can, or if `work` is too little to tell."""
        yield from self._catch_up()
        known: dict[Hashable, Candidates | None] = {}
        for member in members:
            if member.kind not in known:
                named = member.candidates
                known[member.kind] = None if named is None else self._selector.candidates(named.names)
                yield
        placed = [GangMember(member.request, known[member.kind]) for member in members]
        planning = GangPlanning(self._selector, placed, required=required, work=work)
        try:
            answer = yield from planning.steps()
        finally:
            planning.take_back()
        return _text(answer, members) if isinstance(answer, GangMisfit) else ""

    def _catch_up(self) -> Generator[None, None, None]:
        source, ledger = self._source, self._ledger
        ledger.quotas = source.quotas.without_use()
        names = source.node_names()
        for name in frozenset(ledger.node_names()).difference(names):
            ledger.forget_node(name)
        for number, name in enumerate(names, 1):
            view = source.node(name)
            if view is not None:
                ledger.observe_node(view.facts)
            else:
                ledger.forget_node(name)
            if number % NODES_AT_ONCE == 0:
                yield


def _text(misfit: GangMisfit, members: Sequence[GangMember]) -> str:
    """What comes nearest is of interest only for a member that fits on no node by itself."""
    placed = {place.request.uid for place in misfit.places}
    fitting = {place.request.shape for place in misfit.places}
    missing = {member.request.shape for member in members if member.request.uid not in placed}
    return misfit.summary if missing <= fitting else misfit.text
