"""The table of card rules, in the order in which they are asked: it decides which reason a card shows on the wire.

To add a rule, write it in a file of this package and put it into `CARD_RULES` (CONTRIBUTING.md). Nothing else names
rules one by one.
"""

from __future__ import annotations

from typing import NamedTuple

from tessera.core.fit.card_rules.amounts import AmountRule, Cores, CoresLeft, Memory, Slots, Unused, WholeCard
from tessera.core.fit.card_rules.base import Asked, CardRule
from tessera.core.fit.card_rules.identity import Healthy, Model, NotCordoned, Selectors, Uuid
from tessera.core.fit.card_rules.pods_per_card import PodsPerCard

CARD_RULES: tuple[CardRule, ...] = (
    Healthy(),
    NotCordoned(),
    Model(),
    Uuid(),
    Selectors(),
    Slots(),
    Unused(),
    PodsPerCard(),
    Memory(),
    Cores(),
    WholeCard(),
    CoresLeft(),
)
AMOUNT_RULES = tuple(rule for rule in CARD_RULES if isinstance(rule, AmountRule))
SETTINGS = tuple(rule.setting for rule in CARD_RULES if rule.setting)
"""of pods, that rules read"""


class Checks(NamedTuple):
    """The rules that may refuse a card for one request, by stage."""

    identity: list[CardRule]
    sharing: list[CardRule]
    capacity: list[CardRule]


def checks_for(asked: Asked) -> Checks:
    """An administrator's access asks only which card it is."""
    checks = Checks([], [], [])
    for rule in CARD_RULES:
        if rule.needed is None or rule.needed(asked):
            checks[rule.stage].append(rule)
    return Checks(checks.identity, [], []) if asked.request.is_admin else checks


def amount_checks(asked: Asked) -> list[AmountRule]:
    """The rules of amounts that may refuse a card for one request."""
    return [rule for rule in AMOUNT_RULES if rule.needed is None or rule.needed(asked)]
