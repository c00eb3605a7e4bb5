"""Every rule of the table says the same of a card in both its forms, and its amounts tell how near a miss is."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.core import screen
from tessera.core.card_rules import AMOUNT_RULES, CARD_RULES, amount_checks
from tessera.core.card_rules.amounts import AmountRule
from tessera.core.card_rules.base import CardRule
from tessera.core.ledger import Ledger
from tessera.core.selection import Selected, Selector
from tests.support import strategies as some
from tests.support.examples import examples

PODS = 6


def name_of(rule: CardRule) -> str:
    return type(rule).__name__


@st.composite
def used_clusters(draw: st.DrawFn) -> Ledger:
    ledger = Ledger(some.VENDORS)
    for node in draw(some.clusters(("NVIDIA",), least=2)):
        ledger.observe_node(node)
    selector = Selector(ledger)
    for i in range(PODS):
        pod = draw(some.pod_requests(("NVIDIA",), f"pod-{i}"))
        answer = selector.select(pod, some.NODES)
        if isinstance(answer, Selected):
            ledger.reserve(pod, answer.placement, deadline=1)
    return ledger


@pytest.mark.parametrize("rule", CARD_RULES, ids=name_of)
@examples(1 / 2)
@given(ledger=used_clusters(), data=st.data())
def test_the_plain_form_and_the_form_on_arrays_are_equal(rule: CardRule, ledger: Ledger, data: st.DataObject) -> None:
    pod = data.draw(some.pod_requests(("NVIDIA",), "asking"))
    columns = slice(0, len(ledger.arrays.names))
    for _, request in pod.requests:
        question = screen.question(pod, request, ledger.rules[request.vendor])
        is_asked = rule.needed is None or rule.needed(question)
        said = rule.refused(question, ledger.arrays, columns) if is_asked else None
        for name in ledger.node_names():
            node, row = ledger.node(name), ledger.arrays.row(name)
            for place, card in enumerate(node.cards if node is not None else ()):
                plain = rule.refuse(question.rules, question, card)
                code = 0 if said is None else int(said[place, row])
                reasons = (None, rule.reason, *rule.more_reasons)
                assert reasons[code] == (None if plain is None else plain.reason)


@pytest.mark.parametrize("rule", AMOUNT_RULES, ids=name_of)
@examples(1 / 2)
@given(ledger=used_clusters(), data=st.data())
def test_a_card_has_a_distance_if_and_only_if_the_rule_refuses_it(
    rule: AmountRule, ledger: Ledger, data: st.DataObject
) -> None:
    pod = data.draw(some.pod_requests(("NVIDIA",), "asking"))
    columns = slice(0, len(ledger.arrays.names))
    for _, request in pod.requests:
        question = screen.question(pod, request, ledger.rules[request.vendor])
        shares = rule.shares(question, ledger.arrays, columns) if rule in amount_checks(question) else None
        for name in ledger.node_names():
            node, row = ledger.node(name), ledger.arrays.row(name)
            for place, card in enumerate(node.cards if node is not None else ()):
                short = rule.shortage(question, card)
                share = 0.0 if shares is None else float(shares[place, row])
                assert (short is not None) == (share > 0) == (rule.refuse(question.rules, question, card) is not None)
                if short is not None and not math.isinf(share):
                    assert share == short.share
