"""The best victims where each card decides for itself: one request, shared rules, no quota in the way.

A node fits if enough of its cards take the request, each alone. For each card the sets of tenants that have to leave
are found (`sets_for`); for a card in MIG mode, which may take the request several times, those for each number of
instances (`instance_sets_for`). If no tenant holds two of the cards, the best set for the node is the union of the best
sets of the cheapest cards, because the order of sets is kept when both get the same further pods (`victims`). Otherwise
the unions are searched, and a union that costs more than the best one so far is not extended.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import combinations
from math import comb
from typing import NamedTuple

from tessera.core.grants import NO_USE, Use
from tessera.core.mig import bits, place_choices
from tessera.core.node_info import Card
from tessera.core.nominations import Share, counted
from tessera.core.victims import Unit, add_up

MAX_UNIONS = 4_096
"""looked at on one node; with more, the best one so far is taken"""
MAX_CHOICES = 1_024
"""sets tried of one card: all of ten tenants. With more, a set is taken of which no pod could stay"""
MAX_SETS_OF_A_CARD = 64
"""kept of one card, the cheapest ones, where unions are searched"""

Units = tuple[Unit, ...]


class CardSet(NamedTuple):
    """Units without which a card takes the request so many times."""

    takes: int
    """more than 1 only in MIG mode"""
    units: Units


class CardTenants(NamedTuple):
    """A card with what stays on it, and the units that may leave it."""

    card: Card
    """as it is without all units"""
    units: Units
    """that hold a part of it, the cheapest first"""
    shares: tuple[tuple[Share, ...], ...]
    """of the units"""
    staying: tuple[Share, ...]
    core_masks: bool

    def without(self, gone: Iterable[int]) -> Card:
        """The card once these units, by position, have left."""
        left = set(gone)
        shares = [share for i, of_unit in enumerate(self.shares) if i not in left for share in of_unit]
        return counted(self.card, (*self.staying, *shares), core_masks=self.core_masks)


def cost_of(units: Iterable[Unit]) -> tuple[tuple[object, ...], tuple[str, ...]]:
    """The order of sets whose highest priority is the same."""
    cost, uids = add_up(units)
    return cost[1:], uids


def sets_for(tenants: CardTenants, takes: Callable[[Card], bool], *, most: int) -> list[CardSet]:
    """Up to `most` minimal sets of units without which the card takes the request, the cheapest first.

    Empty if none helps; the only one is the empty set if nothing has to leave.
    """
    return [CardSet(1, units) for units in _sets_for(tenants, takes, most=most)]


def instance_sets_for(
    tenants: CardTenants, offered: Callable[[Card], int], places: Sequence[int], *, count: int, most: int
) -> list[CardSet]:
    """Sets of units without which a card in MIG mode takes the request, the cheapest first: for each number of
    instances up to `count` the cheapest set, or, with `most` above 1, up to so many of which no part does as much.
    `places`: where the request's instances may be (`mig.smallest_places`)."""
    sets = _sets_in_the_way(tenants, offered, places, count)
    if sets is None:
        sets = [
            CardSet(number, tuple(tenants.units[i] for i in sorted(chosen)))
            for chosen in _choices(tenants, offered)
            if (number := offered(tenants.without(chosen)))
        ]
    if most == 1:
        fewest: dict[int, int] = {}
        for each in sets:
            fewest[each.takes] = min(fewest.get(each.takes, _pods(each.units)), _pods(each.units))
        sets = [each for each in sets if _pods(each.units) == fewest[each.takes]]
    found: list[CardSet] = []
    for each in sorted(sets, key=lambda each: (cost_of(each.units), -each.takes)):
        rivals = (other for other in found if most == 1 or set(other.units) <= set(each.units))
        if not any(other.takes >= each.takes for other in rivals):
            found.append(each)
    return found if most == 1 else found[:most]


def _sets_in_the_way(
    tenants: CardTenants, offered: Callable[[Card], int], places: Sequence[int], count: int
) -> list[CardSet] | None:
    """For each choice of places, the units that are in the way. None if more than places decides about the card."""
    staying = bits(slot.placement for share in tenants.staying for slot in share.holding.mig)
    masks = [bits(slot.placement for share in of_unit for slot in share.holding.mig) for of_unit in tenants.shares]
    wanted: dict[tuple[int, ...], int] = {}
    for number, slices in place_choices(places, blocked=staying, most=count):
        chosen = tuple(i for i, mask in enumerate(masks) if mask & slices)
        wanted[chosen] = max(wanted.get(chosen, 0), number)
    if not all(masks) or any(offered(tenants.without(chosen)) != number for chosen, number in wanted.items()):
        return None
    return [CardSet(number, tuple(tenants.units[i] for i in chosen)) for chosen, number in wanted.items()]


def _choices(tenants: CardTenants, offered: Callable[[Card], int]) -> Iterator[Collection[int]]:
    """All sets of units, as far as `MAX_CHOICES`; then, of the largest, one of which no unit could stay."""
    left = MAX_CHOICES
    for size in range(len(tenants.units) + 1):
        left -= comb(len(tenants.units), size)
        if left < 0:
            yield _minimal(tenants, lambda card: offered(card) > 0)
            return
        yield from combinations(range(len(tenants.units)), size)


def _pods(units: Units) -> int:
    return sum(unit.cost.pods for unit in units)


def _sets_for(tenants: CardTenants, takes: Callable[[Card], bool], *, most: int) -> list[Units]:
    everything = range(len(tenants.units))
    if any(unit.cost.pods > 1 for unit in tenants.units):
        most = MAX_SETS_OF_A_CARD  # Two pods may cost less than one group.
    if takes(tenants.without(())):
        return [()]
    if not takes(tenants.without(everything)):
        return []
    # Without these no set is enough.
    essential = [i for i in everything if not takes(tenants.without(j for j in everything if j != i))]
    optional = [i for i in everything if i not in essential]
    found: list[frozenset[int]] = []
    left = MAX_CHOICES
    for size in range(_least(tenants, takes, essential, optional), len(optional) + 1):
        # Of all sets of this size, none costs less than the cheapest units together.
        cheapest = frozenset((*essential, *optional[:size]))
        if most == 1 and takes(tenants.without(cheapest)):
            return _ordered(tenants.units, [cheapest])
        left -= comb(len(optional), size)
        if left < 0:
            return _ordered(tenants.units, found or [_minimal(tenants, takes)])
        for chosen in _in_order(tenants.units, essential, combinations(optional, size)):
            if any(smaller <= chosen for smaller in found):
                continue
            if takes(tenants.without(chosen)):
                found.append(chosen)
                if len(found) == most:
                    return _ordered(tenants.units, found)
        if found and most == 1:
            break
    return _ordered(tenants.units, found)


def _minimal(tenants: CardTenants, takes: Callable[[Card], bool]) -> frozenset[int]:
    """All units, less those that can stay, the smallest first, so that few have to leave; then the dearest."""
    chosen = frozenset(range(len(tenants.units)))
    for i in sorted(chosen, key=lambda i: (_use(tenants.shares[i])[1:], -i)):
        if takes(tenants.without(chosen - {i})):
            chosen -= {i}
    return chosen


def _least(
    tenants: CardTenants, takes: Callable[[Card], bool], essential: Sequence[int], optional: Sequence[int]
) -> int:
    """How many of the optional units have to leave at least: even the largest amounts of fewer are not enough."""
    if tenants.core_masks:
        return 0
    rest = tenants.without((*essential, *optional))
    uses = [_use(tenants.shares[i]) for i in optional]
    for size in range(len(optional) + 1):
        kept = len(optional) - size
        card = rest.copy()
        card.take(Use(*(sum(sorted(amounts)[:kept]) for amounts in zip(*uses, strict=True))) if uses else NO_USE)
        if takes(card):
            return size
    return len(optional)


def _use(shares: Iterable[Share]) -> Use:
    total = NO_USE
    for share in shares:
        total = total.plus(share.holding.use)
    return total


def _in_order(units: Units, essential: Sequence[int], choices: Iterable[tuple[int, ...]]) -> Iterator[frozenset[int]]:
    sets = [frozenset((*essential, *chosen)) for chosen in choices]
    return iter(sorted(sets, key=lambda chosen: cost_of(units[i] for i in chosen)))


def _ordered(units: Units, found: Iterable[frozenset[int]]) -> list[Units]:
    sets = [tuple(units[i] for i in sorted(chosen)) for chosen in found]
    return sorted(sets, key=cost_of)


def best_union(
    cards: Sequence[Sequence[CardSet]], count: int, *, allow: Callable[[Units], bool], independent: bool
) -> Units | None:
    """The cheapest set with which these cards, each given by its sets, take the request `count` times; None if there is
    none.

    `independent`: no unit occurs at two cards, and `allow` permits everything.
    """
    if sum(max(one.takes for one in sets) for sets in cards) < count:
        return None
    if not independent:
        return _UnionSearch(cards, count, allow).run()
    if all(len(sets) == 1 and sets[0].takes == 1 for sets in cards):
        cheapest = sorted((sets[0].units for sets in cards), key=cost_of)[:count]
        return tuple(unit for chosen in cheapest for unit in chosen)
    return _cheapest_sum(cards, count)


def _cheapest_sum(cards: Sequence[Sequence[CardSet]], count: int) -> Units | None:
    """One set of each card at most. The cheapest way to each number is made of the cheapest ways to smaller ones."""
    best: list[Units | None] = [(), *[None] * count]
    for sets in cards:
        after = list(best)
        for number, chosen in enumerate(best):
            for one in sets if chosen is not None else ():
                union, reached = (*(chosen or ()), *one.units), min(count, number + one.takes)
                rival = after[reached]
                if rival is None or _is_cheaper(union, rival):
                    after[reached] = union
        best = after
    return best[count]


def _is_cheaper(one: Units, other: Units) -> bool:
    more = _pods(one) - _pods(other)
    return more < 0 or (more == 0 and cost_of(one) < cost_of(other))


class _UnionSearch:
    """Depth first over the cards, the cheapest first."""

    def __init__(self, cards: Sequence[Sequence[CardSet]], count: int, allow: Callable[[Units], bool]) -> None:
        self._cards = sorted(cards, key=lambda sets: cost_of(sets[0].units))
        self._count = count
        self._allow = allow
        self._best: Units | None = None
        self._best_cost: tuple[tuple[object, ...], tuple[str, ...]] | None = None
        self._left = MAX_UNIONS

    def run(self) -> Units | None:
        self._extend((), 0)
        return self._best

    def _extend(self, chosen: Units, position: int) -> None:
        self._left -= 1
        cost = cost_of(chosen)
        if self._left < 0 or not self._allow(chosen) or (self._best_cost is not None and cost >= self._best_cost):
            return
        uids = {unit.uids for unit in chosen}
        takes = [
            max((one.takes for one in sets if all(unit.uids in uids for unit in one.units)), default=0)
            for sets in self._cards
        ]
        if sum(takes) >= self._count:
            self._best, self._best_cost = chosen, cost
            return
        for i in range(position, len(self._cards)):
            for one in self._cards[i]:
                if one.takes > takes[i]:
                    self._extend((*chosen, *(unit for unit in one.units if unit.uids not in uids)), i + 1)


def are_independent(cards: Iterable[CardTenants]) -> bool:
    """Whether no unit holds a part of two of the cards."""
    counts = Counter(unit.uids for tenants in cards for unit in tenants.units)
    return all(count == 1 for count in counts.values())
