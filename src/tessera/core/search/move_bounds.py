"""What making room on a node costs at least, by moving some of its pods: nodes are searched in this order.

No set that `node_victims` finds on the node costs less. Each card is looked at alone: how many of its pods have to
leave until it takes the request once, or, in MIG mode, so many times. On most nodes that is the true number of pods, so
few nodes are searched in vain, and those that cannot help are not searched at all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from tessera.core.fit import screen
from tessera.core.fit.card_rules import AMOUNT_RULES, checks_for
from tessera.core.fit.card_rules.amounts import memory_wanted
from tessera.core.fit.card_rules.base import Question
from tessera.core.ledger.holdings import Holding
from tessera.core.ledger.ledger import Ledger
from tessera.core.model.devices import MIG
from tessera.core.model.grants import Use
from tessera.core.model.mig import bits, place_choices, smallest_places
from tessera.core.model.node_info import Card
from tessera.core.model.requests import WHOLE_CARD_CORES, PodRequest, Request
from tessera.core.search.victims import NO_PRIORITY, Cost, PodTraits

Masks = tuple[int, ...]
"""memory slices, one bit each"""
Fewest = Sequence[float]
"""pods that have to leave until a card takes the request once, twice and so on; `inf`: it cannot"""
Mover = tuple[Cost, Holding]
"""what moving a pod costs, and what it has of a card"""
MoverOf = Callable[[str], PodTraits | None]
"""the traits of a pod that may move, or leaves already; None if it stays"""


class MoveBounds:
    """Bounds on one ledger."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._instances: dict[tuple[Masks, int, Masks, int], Fewest] = {}
        """cards in MIG mode are often in a state in which another one was before"""

    def bound(self, request: PodRequest, node: str, mover_of: MoverOf) -> Cost | None:
        """None if no moves of its pods help."""
        asked = request.requests[0][1]
        by_card: dict[str, list[Mover]] = {}
        stays: set[str] = set()
        cheapest: Cost | None = None
        spans_cards = has_leaving = False
        for entry in self._ledger.pods_on(node):
            traits = mover_of(entry.facts.uid)
            if traits is None:
                stays.update(entry.holdings)
                continue
            if traits.is_leaving:
                has_leaving = True
                continue
            work = sum(holding.use.memory for holding in entry.holdings.values())
            cost = Cost(NO_PRIORITY, 1, (traits.priority,), (-traits.started,), work)
            cheapest = cost if cheapest is None or cost < cheapest else cheapest
            spans_cards = spans_cards or len(entry.holdings) > 1
            for uuid, holding in entry.holdings.items():
                by_card.setdefault(uuid, []).append((cost, holding))
        if cheapest is None or has_leaving or len(request.requests) > 1 or not self._is_exact(asked, node):
            return cheapest
        if asked.cores >= WHOLE_CARD_CORES:
            costs = sorted(_card_cost(movers) for uuid, movers in by_card.items() if uuid not in stays)
            idle = len(self._ledger.devices(node)) - len(by_card.keys() | stays)
            missing = max(asked.count - idle, 1)
            if missing > len(costs):
                return None
            if missing == 1 or spans_cards:
                return costs[0]
            return Cost(NO_PRIORITY, sum(cost.pods for cost in costs[:missing]))
        pods = self._fewest_pods(request, asked, node, by_card)
        if pods == math.inf:
            return None
        return cheapest if pods <= 1 or spans_cards else Cost(NO_PRIORITY, int(pods))

    def _is_exact(self, asked: Request, node: str) -> bool:
        """Whether amounts, and places of instances, decide, and all of its pods count."""
        rules = self._ledger.rules.get(asked.vendor)
        return rules is not None and rules.arrays_exact and not self._ledger.nominations.on_node(node)

    def _fewest_pods(self, request: PodRequest, asked: Request, node: str, by_card: dict[str, list[Mover]]) -> float:
        """At least so many pods of this node have to move, on all its cards together."""
        view, rules = self._ledger.node(node), self._ledger.rules[asked.vendor]
        best = [0.0, *[math.inf] * asked.count]
        question = screen.question(request, asked, rules)
        identity = checks_for(question).identity
        for card in view.of_vendor(asked.vendor) if view is not None else ():
            device = card.device
            if any(rule.refuse(rules, question, card) is not None for rule in identity):
                continue
            holdings = [holding for _, holding in by_card.get(device.uuid, ())]
            if device.mode == MIG:
                fewest = self._fewest_for_instances(asked, card, holdings)
            else:
                fewest = [_fewest_for_amounts(question, card, [holding.use for holding in holdings])]
            best = _add_card(best, fewest)
        return best[-1]

    def _fewest_for_instances(self, asked: Request, card: Card, movers: Iterable[Holding]) -> Fewest:
        memory = memory_wanted(asked, card.device)
        places = smallest_places(each for each in card.device.mig_profiles if each.memory >= memory)
        leaving = tuple(sorted(bits(slot.placement for slot in holding.mig) for holding in movers))
        fixed = bits(slot.placement for slot in card.mig)
        for mask in leaving:
            fixed &= ~mask
        known = places, fixed, leaving, asked.count
        found = self._instances.get(known)
        if found is None:
            found = self._instances[known] = _fewest_overlapped(places, fixed, leaving, most=asked.count)
        return found


def _fewest_overlapped(places: Masks, fixed: int, leaving: Masks, *, most: int) -> Fewest:
    """How many of the `leaving` instances have to go until one, two and so on of these places are free."""
    found: list[float] = []
    for number, slices in place_choices(places, blocked=fixed, most=most):
        found += [math.inf] * (number - len(found))
        found[number - 1] = min(found[number - 1], sum(1 for mask in leaving if mask & slices))
    return found


def _fewest_for_amounts(question: Question, card: Card, uses: Sequence[Use]) -> float:
    """The largest amounts of fewer pods would not be enough."""
    fewest = 0
    for rule in AMOUNT_RULES:
        missing, number = rule.wanted(question, card.device) - rule.free(question, card), 0
        for freed in sorted(map(rule.part, uses), reverse=True):
            if missing <= 0:
                break
            missing, number = missing - freed, number + 1
        if missing > 0:
            return math.inf
        fewest = max(fewest, number)
    return fewest


def _add_card(best: list[float], fewest: Fewest) -> list[float]:
    """The fewest pods for each number of instances, with one card more."""
    count, after = len(best) - 1, list(best)
    for number, pods in enumerate(best):
        if pods < math.inf:
            for more, leaving in enumerate(fewest, 1):
                reached = min(count, number + more)
                after[reached] = min(after[reached], pods + leaving)
    return after


def _card_cost(movers: Sequence[Mover]) -> Cost:
    """What it costs to move all these pods."""
    priorities = tuple(sorted((cost.priorities[0] for cost, _ in movers), reverse=True))
    ages = tuple(sorted((cost.ages[0] for cost, _ in movers), reverse=True))
    return Cost(NO_PRIORITY, len(movers), priorities, ages, sum(cost.work for cost, _ in movers))
