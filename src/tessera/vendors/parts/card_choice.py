"""Card choice for vendors with their own checks: check every card, then apply the generic choice.

Every card is checked before any is taken, so a card's reason never depends on the order of the others. Vendors with
a layout of their own check with `judge_all` and choose themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from tessera.core.fit import card_checks
from tessera.core.fit.card_checks import Fitting, Offer
from tessera.core.fit.device_rules import Ask, QuotaRoom, Rules
from tessera.core.model.grants import Grant, Grants
from tessera.core.model.misfits import CardMisfit, Misfit, Reason
from tessera.core.model.node_info import Card

Judge = Callable[[Card], Offer]


def judge_all(ask: Ask, judge: Judge) -> tuple[Fitting, list[CardMisfit]]:
    return card_checks.sort_out(ask, lambda card: (judge(card),))


def first_fit(rules: Rules, ask: Ask, judge: Judge) -> Grants | Misfit:
    """The generic choice among the cards that pass."""
    return card_checks.choose(rules, ask, *judge_all(ask, judge))


def refuse_unpaid(ask: Ask, card: Card, grant: Grant) -> CardMisfit | None:
    """Refuse a card whose slice alone exceeds the remaining quota."""
    return card_checks.refuse_quota(ask, card, memory=grant.memory, cores=grant.cores)


def refuse_used(card: Card) -> CardMisfit | None:
    """Refuse a card that is in use, where only an unused one will do."""
    if card.used == 0:
        return None
    slots = card.device.slots
    return CardMisfit(card.device.uuid, Reason.EXCLUSIVE_CONFLICT, asked=slots, free=slots - card.used, total=slots)


def unused_card(rules: Rules, ask: Ask, card: Card) -> Offer:
    """The judge of vendors whose cards are never shared."""
    return card_checks.refuse_identity(rules, ask, card) or refuse_used(card) or rules.grant(card, ask)


def all_as(reason: Reason, fitting: Iterable[tuple[Card, Grant]], *, asked: int) -> list[CardMisfit]:
    """Refuse cards that pass one by one but not together."""
    return [CardMisfit(card.device.uuid, reason, asked=asked) for card, _ in fitting]


def pays_together(room: QuotaRoom, grants: Sequence[Grant]) -> bool:
    """Whether the quota covers all of them."""
    return room.allows(
        sum(grant.memory for grant in grants), sum(card_checks.counted_cores(grant.cores) for grant in grants)
    )
