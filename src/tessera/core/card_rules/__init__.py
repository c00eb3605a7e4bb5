"""The table of card rules, in the order in which they are asked: it decides which reason a card shows on the wire.

To add a rule, write it in a file of this package and put it into `CARD_RULES` (CONTRIBUTING.md). Nothing else names
rules one by one.
"""

from __future__ import annotations

from tessera.core.card_rules.amounts import Cores, CoresLeft, Memory, Slots, Unused, WholeCard
from tessera.core.card_rules.base import AmountRule, CardRule, Stage
from tessera.core.card_rules.identity import Healthy, Model, NotCordoned, Selectors, Uuid
from tessera.core.card_rules.pods_per_card import PodsPerCard

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


def rules_of(stage: Stage) -> tuple[CardRule, ...]:
    return tuple(rule for rule in CARD_RULES if rule.stage is stage)
