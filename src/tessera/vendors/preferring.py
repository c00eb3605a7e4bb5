"""The last step of a vendor that has preferences: from cards that passed its checks, best first, to grants.

Quota, NUMA binding and the texts of refusals stay the generic ones. Not here: the checks and the order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tessera.core import generic
from tessera.core.cards import Card
from tessera.core.grants import Grants
from tessera.core.misfits import CardMisfit, Misfit, Reason, cards_misfit
from tessera.core.rules import Ask, Rules


def take_first(rules: Rules, ask: Ask, fitting: Sequence[Card], refused: Sequence[CardMisfit]) -> Grants | Misfit:
    """The first `fitting` cards that quota and NUMA binding allow, or a verdict that has the `refused` ones too."""
    # Shown as unused, so that the generic rule does not repeat checks of use that this vendor makes differently.
    answer = generic.fit(rules, replace(ask, cards=[Card(card.device) for card in fitting]))
    if not isinstance(answer, Misfit):
        return answer
    return cards_misfit(
        [*refused, *answer.cards],
        total=len(ask.cards),
        vendor=rules.key,
        taken=dict(answer.counts).get(Reason.TOO_FEW_CARDS, 0),
        container=ask.container,
    )
