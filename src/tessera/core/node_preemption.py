"""The best victims on one node: exact, by the plain rule of `fit`.

A pod may leave if it has a lower priority, is not protected, its disruption budget allows it, and its whole group may
leave. Pods that leave already cost nothing. Where one request of a vendor with the shared rules decides, each card is
looked at alone (`_by_card`). Everywhere else (MIG, several requests, quotas, vendors with rules of their own) sets are
tried from the best on (`_by_trial`). Both are exact until a node would take more than `MOST_SETS` trials; then the set
is at least minimal: no pod of it could stay.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from math import comb

from tessera.core import quota
from tessera.core.card_checks import refuse
from tessera.core.card_victims import (
    MOST_SETS_OF_A_CARD,
    CardTenants,
    are_independent,
    best_union,
    cost_of,
    sets_for,
)
from tessera.core.devices import MIG
from tessera.core.fit import fit_pod, make_ask
from tessera.core.grants import Placement
from tessera.core.ledger import GrantState, Ledger, PodEntry
from tessera.core.misfits import Misfit
from tessera.core.node_info import Card
from tessera.core.nominations import Share, shares_of
from tessera.core.requests import PodRequest
from tessera.core.victims import NO_PRIORITY, Budgets, PodBook, PodTraits, Unit, VictimSet, add_up, make_unit

MOST_SETS = 512
"""tried on one node by the plain rule; each takes a tenth of a millisecond"""
EXHAUSTIVE = 9
"""units up to which all sets are tried: 2 to the power of this is `MOST_SETS`"""


def best_victims(ledger: Ledger, book: PodBook, pod: PodRequest, *, priority: int, node: str) -> VictimSet | None:
    """The best set of victims on this node for a pod of this priority; None if no set helps."""
    return NodeSearch(ledger, book, pod, priority=priority, node=node).run()


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
        self.trials = 0
        """by the plain rule, so far"""

    def run(self) -> VictimSet | None:
        if self._ledger.node(self._node) is None or any(v not in self._ledger.rules for v in self._pod.vendors):
            return None
        placement = self._place(())
        if placement is not None:
            return self._found((), placement)
        units = self.units()
        if not units:
            return None
        limits = self._ledger.rooms_after(self._pod.namespace, self._pod.vendors, (), claimant=self._pod.uid)
        search = self._by_card if self._cards_decide() and not limits else self._by_trial
        for highest in sorted({unit.cost.highest for unit in units}):
            allowed = [unit for unit in units if unit.cost.highest <= highest]
            if not self._may_fit(allowed):
                continue
            found = search(allowed, highest)
            if found is not None:
                return found
        return None

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

    def obstacle(self, entry: PodEntry) -> str:
        """Why a pod may not leave; empty if it may."""
        traits = self._book.traits(entry.facts.uid)
        if traits is None or entry.state is not GrantState.BOUND or not entry.observed or entry.facts.problem:
            return "what it holds is not settled"
        if traits.priority >= self._priority:
            return f"priority {traits.priority} is not below {self._priority}"
        if traits.protection:
            return traits.protection
        budgets = self._book.budgets(entry.facts.uid)
        if len(budgets) > 1:
            return f"more than one PodDisruptionBudget: {', '.join(budgets)}"
        spent = [budget for budget in budgets if self._budgets.left(budget) < 1]
        return f"PodDisruptionBudget {spent[0]} allows no eviction" if spent else ""

    def _unit(self, entry: PodEntry) -> Unit | None:
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
        self.trials += 1
        gone = self._gone.union(*(unit.uids for unit in units))
        return self._fit(self._pod, gone)

    def _fit(self, pod: PodRequest, gone: frozenset[str]) -> Placement | None:
        ledger = self._ledger
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

    # -- sets, from the best on

    def _by_trial(self, units: Sequence[Unit], highest: int) -> VictimSet | None:
        """Only sets that reach the `highest` priority: the others were tried before."""
        for chosen in self._sets(units):
            if max(unit.cost.highest for unit in chosen) < highest or not self._budgets.allow(chosen):
                continue
            if self.trials > MOST_SETS:
                return self._reprieve(units)
            placement = self._place(chosen)
            if placement is not None:
                return self._found(chosen, placement)
        return None

    def _sets(self, units: Sequence[Unit]) -> Iterator[tuple[Unit, ...]]:
        if len(units) <= EXHAUSTIVE:
            sizes = range(1, len(units) + 1)
            yield from _sorted(chosen for size in sizes for chosen in combinations(units, size))
            return
        most = sum(request.count for _, request in self._pod.requests)
        cards = {unit.uids: self._cards_of(unit) for unit in units}
        for size in range(1, len(units) + 1):
            if comb(len(units), size) > 16 * MOST_SETS:
                # Enough of them to use up the trials, whichever they are.
                yield from combinations(units, size)
                continue
            yield from _sorted(each for each in combinations(units, size) if _share_cards(each, cards, most))

    def _cards_of(self, unit: Unit) -> frozenset[str]:
        held = [entry.holdings for uid in unit.uids if (entry := self._ledger.pod(uid)) is not None]
        return frozenset(uuid for holdings in held for uuid in holdings)

    def _reprieve(self, units: Sequence[Unit]) -> VictimSet | None:
        """All of them, less those that can stay, the dearest first. As kube-scheduler does it."""
        chosen = list(units)
        for unit in sorted(units, key=lambda unit: (unit.cost, unit.uids), reverse=True):
            rest = [each for each in chosen if each is not unit]
            if self._place(rest) is not None:
                chosen = rest
        placement = self._place(chosen)
        if placement is None or not self._budgets.allow(chosen):
            return None
        return self._found(chosen, placement)

    # -- card by card

    def _cards_decide(self) -> bool:
        """Whether the pod fits if and only if enough cards take its one request, each by itself."""
        pod = self._pod
        view = self._ledger.node(self._node)
        if len(pod.requests) != 1 or view is None or view.facts.problem:
            return False
        vendor = pod.vendors[0]
        modes = {card.device.mode for card in view.of_vendor(vendor)}
        return self._ledger.rules[vendor].arrays_exact and len(modes) == 1 and MIG not in modes

    def _by_card(self, units: Sequence[Unit], highest: int) -> VictimSet | None:
        [(position, request)] = self._pod.requests
        view = self._ledger.node_after(self._node, self._gone, claimant=self._pod.uid)
        assert view is not None  # looked at before
        ask = make_ask(view, self._pod, request, view.cards, container=position)
        rules = self._ledger.rules[request.vendor]
        tenants = [self._tenants(card, units) for card in ask.cards]
        independent = are_independent(tenants) and self._budgets.allow(units)
        most = 1 if independent else MOST_SETS_OF_A_CARD
        groups: dict[int, list[list[tuple[Unit, ...]]]] = {}
        for each in tenants:
            sets = sets_for(each, lambda card: refuse(rules, ask, card) is None, most=most)
            if sets:
                groups.setdefault(each.card.device.numa if self._pod.numa_bind else 0, []).append(sets)
        unions = (
            best_union(cards, request.count, allow=self._budgets.allow, independent=independent)
            for cards in groups.values()
        )
        best = min((union for union in unions if union is not None), key=cost_of, default=None)
        placement = None if best is None else self._place(best)
        return None if best is None or placement is None else self._found(best, placement)

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


def _sorted(sets: Iterable[tuple[Unit, ...]]) -> list[tuple[Unit, ...]]:
    return sorted(sets, key=add_up)


def _share_cards(units: Sequence[Unit], cards: Mapping[tuple[str, ...], frozenset[str]], most: int) -> bool:
    """Whether some `most` cards are held by all of these units: further units free nothing that the pod could use."""
    union = frozenset[str]().union(*(cards[unit.uids] for unit in units))
    if len(union) <= most:
        return True
    chosen = (frozenset(each) for each in combinations(sorted(union), most))
    return any(all(cards[unit.uids] & each for unit in units) for each in chosen)
