"""The best victims on one node: exact, by the plain rule of `fit`.

A pod may leave if it has a lower priority, is not protected, its disruption budget allows it, and its whole group may
leave. Pods that leave already cost nothing. Where one request of a vendor with the shared rules decides, each card is
looked at alone (`card_victims`), in MIG mode too. Everywhere else (several requests, quotas, vendors with rules of
their own) sets are tried from the best on (`trial_victims`). Both are exact up to some size; then the set is at least
minimal: no pod of it could stay. A search pauses after some milliseconds, and the ledger may change meanwhile:
`confirm` comes before its result is used.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice

from tessera.core import quota
from tessera.core.card_checks import instance_profiles, offers, refuse
from tessera.core.card_rules.amounts import memory_wanted
from tessera.core.card_victims import (
    MAX_SETS_OF_A_CARD,
    CardSet,
    CardTenants,
    are_independent,
    best_union,
    cost_of,
    instance_sets_for,
    sets_for,
)
from tessera.core.device_rules import Ask
from tessera.core.devices import MIG
from tessera.core.fit import fit_pod, make_ask
from tessera.core.grants import Grant, Placement
from tessera.core.holders import GrantState, Holder
from tessera.core.ledger import Ledger
from tessera.core.mig import smallest_places
from tessera.core.misfits import Misfit
from tessera.core.node_info import Card
from tessera.core.nominations import Share, shares_of
from tessera.core.requests import PodRequest
from tessera.core.steps import finish
from tessera.core.trial_victims import MAX_TRIALS, TRIAL_WORK, Group, Pace, TrialSearch, group_by_cards
from tessera.core.victims import NO_PRIORITY, Budgets, PodBook, PodTraits, Unit, VictimSet, add_up, make_unit

WORK_OF_A_POD = 2
"""to see whether it may leave"""
PODS_OF_A_UNIT = 12
"""that are counted on their cards, at each step that `Pace` counts"""
MAX_MATCHING = 16
"""pauses in which the budgets of a node's pods are matched: pods that are left then are spared for now"""

Search = Generator[None, None, VictimSet | None]
"""pauses at each yield; its return value is the result"""


def leaving_pods(ledger: Ledger, book: PodBook, node: str, *, claimant: str = "") -> frozenset[str]:
    """The pods on a node that leave already: they are being deleted, or are victims of other nominations."""
    found = set(ledger.nominations.victims_on(node, without=claimant))
    for entry in ledger.pods_on(node):
        traits = book.traits(entry.facts.uid)
        if traits is not None and traits.is_leaving:
            found.add(entry.facts.uid)
    return frozenset(uid for uid in found if ledger.pod(uid) is not None)


class NodeSearch:
    """One question about one node."""

    def __init__(
        self,
        ledger: Ledger,
        book: PodBook,
        pod: PodRequest,
        *,
        priority: int,
        node: str,
        given: Iterable[str] = (),
        max_trials: int = MAX_TRIALS,
        fewest_first: bool = False,
    ) -> None:
        """`given` are pods that leave anyway, because kube-scheduler has chosen them. `fewest_first`: the number of
        pods comes before their highest priority, because they only move."""
        self._ledger = ledger
        self._book = book
        self._pod = pod
        self._priority = priority
        self._node = node
        self._fewest_first = fewest_first
        self._entries = ledger.pods_on(node)
        self._gone = leaving_pods(ledger, book, node, claimant=pod.uid).union(given)
        self._budgets = Budgets(book, promised=self._promised)
        self._pace = Pace()
        self._trials = TrialSearch(self._pace, place=self._place, allow=self._budgets.allow, most=max_trials)

    @property
    def trials(self) -> int:
        """Sets that were tried by the plain rule, so far."""
        return self._trials.trials

    @property
    def work(self) -> int:
        """So far, in units of about 10 microseconds."""
        pods = len(self._entries)
        return WORK_OF_A_POD * pods + self._pace.total * max(1, pods // PODS_OF_A_UNIT)

    def run(self) -> VictimSet | None:
        """The best set at once; None if no set helps."""
        return finish(self.steps())

    def confirm(self, found: VictimSet) -> VictimSet | None:
        """What a search has found, as it is now; None if it is not the best set any more, or, where sets are tried,
        if it is not enough or a pod of it could stay."""
        if self._cards_decide() and not self._limits():
            again = finish(self._steps())
            return again if again == found else None
        units = [unit for unit in self.units() if not frozenset(found.victims).isdisjoint(unit.uids)]
        placement = self._place(units)
        if placement is None or add_up(units)[1] != found.victims or not self._budgets.allow(units):
            return None
        if any(self._place(each for each in units if each is not unit) is not None for unit in units):
            return None
        return self._found(units, placement)

    def steps(self) -> Search:
        placement = self._place(())
        if placement is not None:
            return self._found((), placement)
        yield from self.match_budgets()
        found = yield from self._steps()
        return found

    def match_budgets(self) -> Generator[None, None, None]:
        """Comes before `units`."""
        yield from islice(self._book.match_budgets(self._guarded()), MAX_MATCHING)

    def _guarded(self) -> Iterator[str]:
        """The pods whose budgets are asked for."""
        yield from self._promised()
        for entry in self._entries:
            traits = self._book.traits(entry.facts.uid)
            if traits is not None and traits.priority < self._priority:
                yield from self._book.members(traits.group) if traits.group else (entry.facts.uid,)

    def _steps(self) -> Search:
        """As `steps`, with the budgets as far as they are matched."""
        placement = self._place(())
        if placement is not None:
            return self._found((), placement)
        units = self.units()
        if not units:
            return None
        limits = self._limits()
        for highest in sorted({unit.cost.highest for unit in units}):
            yield from self._pace.pauses()
            allowed = [unit for unit in units if unit.cost.highest <= highest]
            if not self._may_fit(allowed):
                continue
            if self._cards_decide() and not limits:
                found = yield from self._by_card(allowed)
            else:
                groups = self._groups(allowed, limits=limits)
                chosen = yield from self._trials.best(allowed, groups, highest=highest)
                found = None if chosen is None else self._found(*chosen)
            if found is not None:
                return found
        return None

    def _limits(self) -> bool:
        """Whether a quota may be in the way."""
        return bool(self._ledger.rooms_after(self._pod.namespace, self._pod.vendors, (), claimant=self._pod.uid))

    def _groups(self, units: Sequence[Unit], *, limits: bool) -> list[Group]:
        """Units that hold parts of as many cards as the pod may use, for each choice of cards; all of them where a
        quota may be in the way."""
        here = {entry.facts.uid: frozenset(entry.holdings) for entry in self._entries}
        cards = [frozenset[str]().union(*(here.get(uid, ()) for uid in unit.uids)) for unit in units]
        everything = sum(map(len, cards))
        return group_by_cards(cards, everything if limits else sum(request.count for _, request in self._pod.requests))

    # -- who may leave

    def _promised(self) -> list[str]:
        """The victims of other nominations, on all nodes."""
        return [uid for nomination in self._ledger.nominations.others(self._pod.uid) for uid in nomination.victims]

    def units(self) -> list[Unit]:
        """What may be evicted here, the cheapest first."""
        found: dict[tuple[str, ...], Unit] = {}
        vendors = frozenset(self._pod.vendors)
        for entry in self._entries:
            if entry.facts.uid in self._gone or vendors.isdisjoint(entry.facts.grants):
                continue
            unit = self._unit(entry)
            if unit is not None and self._budgets.allow([unit]):
                found[unit.uids] = unit
        return sorted(found.values(), key=lambda unit: (unit.cost, unit.uids))

    def obstacle(self, entry: Holder) -> str:
        """Why a pod may not leave; empty if it may."""
        traits = self._book.traits(entry.facts.uid)
        if traits is None or entry.state is not GrantState.BOUND or not entry.observed or entry.facts.problem:
            return "what it holds is not settled"
        if traits.priority >= self._priority:
            return f"priority {traits.priority} is not below {self._priority}"
        if traits.protection:
            return traits.protection
        if traits.group and traits.group == self._pod.group:
            return "it belongs to the same gang"
        budgets = self._book.budgets(entry.facts.uid)
        if len(budgets) > 1:
            return f"more than one PodDisruptionBudget: {', '.join(budgets)}"
        spent = [budget for budget in budgets if self._budgets.left(budget) < 1]
        return f"PodDisruptionBudget {spent[0]} allows no eviction" if spent else ""

    def _unit(self, entry: Holder) -> Unit | None:
        """The pod with its group; None if one of them may not leave."""
        traits = self._book.traits(entry.facts.uid)
        uids = self._book.members(traits.group) if traits is not None and traits.group else (entry.facts.uid,)
        members: list[tuple[PodTraits, int]] = []
        budgets: list[str] = []
        for uid in uids:
            member, one = self._ledger.pod(uid), self._book.traits(uid)
            if one is None or one.is_leaving or uid in self._gone:
                continue
            if member is None or self.obstacle(member):
                return None
            members.append((one, sum(holding.use.memory for holding in member.holdings.values())))
            budgets += self._book.budgets(uid)
        if not members:
            return None
        unit = make_unit(members, budgets)
        return unit._replace(cost=unit.cost._replace(highest=NO_PRIORITY)) if self._fewest_first else unit

    # -- whether the pod fits

    def _place(self, units: Iterable[Unit]) -> Placement | None:
        """Where the pod goes once these units have left."""
        gone = self._gone.union(*(unit.uids for unit in units))
        return self._fit(self._pod, gone)

    def _fit(self, pod: PodRequest, gone: frozenset[str]) -> Placement | None:
        ledger = self._ledger
        if any(vendor not in ledger.rules for vendor in pod.vendors):
            return None
        self._pace.spend(TRIAL_WORK)
        view = ledger.node_after(self._node, gone, claimant=pod.uid)
        rooms = ledger.rooms_after(pod.namespace, pod.vendors, gone, claimant=pod.uid)
        if rooms:
            rooms = quota.rooms_that_may_refuse(pod, rooms, ledger.arrays, ledger.rules)
        answer = None if view is None else fit_pod(view, pod, ledger.rules, rooms)
        return None if isinstance(answer, Misfit) else answer

    def _may_fit(self, units: Iterable[Unit]) -> bool:
        """Whether each request alone fits once all these have left: otherwise no part of them is enough."""
        gone = self._gone.union(*(unit.uids for unit in units))
        for request, position in {asked: place for place, asked in self._pod.requests}.items():
            containers = [replace(one, requests=()) for one in self._pod.containers]
            containers[position] = replace(containers[position], requests=(request,))
            if self._fit(replace(self._pod, containers=tuple(containers)), gone) is None:
                return False
        return True

    def _found(self, units: Iterable[Unit], placement: Placement) -> VictimSet:
        cost, uids = add_up(units)
        here = {entry.facts.uid for entry in self._entries}
        return VictimSet(cost, self._node, uids, tuple(sorted(self._gone & here)), placement)

    # -- card by card

    def _cards_decide(self) -> bool:
        """Whether the pod fits if and only if enough cards take its one request, each by itself."""
        pod = self._pod
        view = self._ledger.node(self._node)
        if len(pod.requests) != 1 or pod.matches or view is None or view.facts.problem:
            return False
        return self._ledger.rules[pod.vendors[0]].arrays_exact

    def _by_card(self, units: Sequence[Unit]) -> Search:
        [(position, request)] = self._pod.requests
        view = self._ledger.node_after(self._node, self._gone, claimant=self._pod.uid)
        assert view is not None  # looked at before
        ask = make_ask(view, self._pod, request, view.cards, container=position)
        tenants = [self._tenants(card, units) for card in ask.cards]
        independent = are_independent(tenants) and self._budgets.allow(units)
        # The cards of one pod are in one mode.
        groups: dict[tuple[str, int], list[list[CardSet]]] = {}
        for each in tenants:
            sets = self._card_sets(ask, each, most=1 if independent else MAX_SETS_OF_A_CARD)
            if sets:
                numa = each.card.device.numa if self._pod.numa_bind else 0
                groups.setdefault((each.card.device.mode, numa), []).append(sets)
            yield from self._pace.pauses()
        unions = (
            best_union(cards, request.count, allow=self._budgets.allow, independent=independent)
            for cards in groups.values()
        )
        best = min((union for union in unions if union is not None), key=cost_of, default=None)
        placement = None if best is None else self._place(best)
        return None if best is None or placement is None else self._found(best, placement)

    def _card_sets(self, ask: Ask, tenants: CardTenants, *, most: int) -> list[CardSet]:
        rules = self._ledger.rules[ask.request.vendor]
        if tenants.card.device.mode != MIG:
            return sets_for(tenants, lambda card: refuse(rules, ask, card) is None, most=most)

        def offered(card: Card) -> int:
            """Instances that the card gives."""
            self._pace.spend(1)
            return sum(isinstance(each, Grant) for each in offers(rules, ask, card))

        memory = memory_wanted(ask.request, tenants.card.device)
        places = smallest_places(each for each in instance_profiles(ask, tenants.card.device) if each.memory >= memory)
        return instance_sets_for(tenants, offered, places, count=ask.request.count, most=most)

    def _tenants(self, card: Card, units: Sequence[Unit]) -> CardTenants:
        """`card` is as it is without those that leave already."""
        uuid = card.device.uuid
        shares = {share.tenant.uid: share for share in self._shares(uuid)}
        here = [unit for unit in units if any(uid in shares for uid in unit.uids)]
        leaving = {uid for unit in here for uid in unit.uids}
        claims = self._ledger.nominations.on_node(self._node, without=self._pod.uid)
        claimed = shares_of(uuid, ((each.facts, each.holdings) for each in claims))
        return CardTenants(
            card,
            tuple(here),
            tuple(tuple(shares[uid] for uid in unit.uids if uid in shares) for unit in here),
            (*(share for uid, share in shares.items() if uid not in leaving), *claimed),
            self._ledger.rules[card.device.vendor].core_masks,
        )

    def _shares(self, uuid: str) -> list[Share]:
        return shares_of(uuid, ((entry.facts, entry.holdings) for entry in self._entries), gone=self._gone)
