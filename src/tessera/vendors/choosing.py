"""Choosing cards for vendors whose checks differ from the generic ones: judge every card, then take the first that do.

Cards are judged one by one before any is taken, so a card's reason never depends on the order of the others. Vendors
with a layout of their own judge with `judge_all` and choose themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from tessera.core.cards import Card
from tessera.core.grants import Grant, Grants
from tessera.core.misfits import CardMisfit, Misfit, Reason, cards_misfit
from tessera.core.requests import WHOLE_CARD_CORES
from tessera.core.rules import Ask, Room, Rules

Judge = Callable[[Card], Grant | CardMisfit]
"""what one card would give, or why it gives nothing"""
Fitting = list[tuple[Card, Grant]]
"""cards that would do, best first"""


def judge_all(ask: Ask, judge: Judge) -> tuple[Fitting, list[CardMisfit]]:
    fitting: Fitting = []
    refused: list[CardMisfit] = []
    for card in ask.cards:
        verdict = judge(card)
        if isinstance(verdict, CardMisfit):
            refused.append(verdict)
        else:
            fitting.append((card, verdict))
    return fitting, refused


def refuse_unpaid(room: Room, grant: Grant) -> CardMisfit | None:
    """A card whose slice alone is more than the quota leaves."""
    if room.allows(grant.memory, _counted_cores(grant)):
        return None
    return CardMisfit(grant.uuid, Reason.QUOTA_NOT_FIT, asked=grant.memory, free=room.memory)


def refuse_used(card: Card) -> CardMisfit | None:
    """A card of which somebody has a part already, where only an unused one will do."""
    if card.used == 0:
        return None
    slots = card.device.slots
    return CardMisfit(card.device.uuid, Reason.EXCLUSIVE_CONFLICT, asked=slots, free=slots - card.used, total=slots)


def all_as(reason: Reason, fitting: Iterable[tuple[Card, Grant]], *, asked: int) -> list[CardMisfit]:
    """Cards that would do by themselves but not together."""
    return [CardMisfit(card.device.uuid, reason, asked=asked) for card, _ in fitting]


def verdict(rules: Rules, ask: Ask, refused: Iterable[CardMisfit], *, taken: int = 0) -> Misfit:
    return cards_misfit(refused, total=len(ask.cards), vendor=rules.key, taken=taken, container=ask.container)


def first_fit(rules: Rules, ask: Ask, judge: Judge) -> Grants | Misfit:
    """The first `count` cards that do; all of one NUMA node where the pod wants that."""
    fitting, refused = judge_all(ask, judge)
    count = ask.request.count
    if len(fitting) < count:
        return verdict(rules, ask, refused, taken=len(fitting))
    groups = [group for group in _groups(ask, fitting) if len(group) >= count]
    if not groups:
        return verdict(rules, ask, [*refused, *all_as(Reason.NUMA_NOT_FIT, fitting, asked=count)])
    for group in groups:
        paid, _ = _paid(ask, group)
        if len(paid) == count:
            return paid
    paid, unpaid = _paid(ask, groups[0])
    return verdict(rules, ask, [*refused, *unpaid], taken=len(paid))


def pays_together(room: Room, grants: Sequence[Grant]) -> bool:
    """Whether the quota pays for all of them."""
    return room.allows(sum(grant.memory for grant in grants), sum(map(_counted_cores, grants)))


def _counted_cores(grant: Grant) -> int:
    """As the ledger counts cores against quotas."""
    return min(grant.cores, WHOLE_CARD_CORES)


def _groups(ask: Ask, fitting: Fitting) -> list[Fitting]:
    if not ask.pod.numa_bind:
        return [fitting]
    by_numa: dict[int, Fitting] = {}
    for card, grant in fitting:
        by_numa.setdefault(card.device.numa, []).append((card, grant))
    return list(by_numa.values())


def _paid(ask: Ask, fitting: Fitting) -> tuple[Grants, list[CardMisfit]]:
    """The first cards that the quota pays for together, at most as many as asked, and those it does not."""
    room = ask.room
    paid: list[Grant] = []
    unpaid: list[CardMisfit] = []
    for _, grant in fitting:
        refusal = refuse_unpaid(room, grant)
        if refusal is not None:
            unpaid.append(refusal)
        elif len(paid) < ask.request.count:
            paid.append(grant)
            room = room.less(grant.memory, _counted_cores(grant))
    return tuple(paid), unpaid
