"""Every rule of the table says the same of a card in both its forms, and its amounts tell how near a miss is."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from tessera.core.fit import screen
from tessera.core.fit.card_rules import AMOUNT_RULES, CARD_RULES, amount_checks
from tessera.core.ledger.ledger import Ledger
from tessera.core.model.node_info import Card
from tessera.core.search.selection import Selected, Selector
from tests.support import strategies as some
from tests.support.strategies import examples

PODS = 6


def cards_of(ledger: Ledger) -> Iterator[tuple[int, int, Card]]:
    """Each card with its place and row in the arrays."""
    for name in ledger.node_names():
        node = ledger.node(name)
        for place, card in enumerate(node.cards if node is not None else ()):
            yield place, ledger.arrays.row(name), card


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


@examples(1.5)
@given(ledger=used_clusters(), data=st.data())
def test_the_plain_form_and_the_form_on_arrays_of_every_rule_are_equal(ledger: Ledger, data: st.DataObject) -> None:
    pod = data.draw(some.pod_requests(("NVIDIA",), "asking"))
    columns = slice(0, len(ledger.arrays.names))
    for (_, request), rule in product(pod.requests, CARD_RULES):
        question = screen.question(pod, request, ledger.rules[request.vendor])
        is_asked = rule.needed is None or rule.needed(question)
        said = rule.refused(question, ledger.arrays, columns) if is_asked else None
        for place, row, card in cards_of(ledger):
            plain = rule.refuse(question.rules, question, card)
            code = 0 if said is None else int(said[place, row])
            reasons = (None, rule.reason, *rule.more_reasons)
            assert reasons[code] == (None if plain is None else plain.reason), rule


@examples(1.5)
@given(ledger=used_clusters(), data=st.data())
def test_a_card_has_a_distance_if_and_only_if_a_rule_of_amounts_refuses_it(ledger: Ledger, data: st.DataObject) -> None:
    pod = data.draw(some.pod_requests(("NVIDIA",), "asking"))
    columns = slice(0, len(ledger.arrays.names))
    for (_, request), rule in product(pod.requests, AMOUNT_RULES):
        question = screen.question(pod, request, ledger.rules[request.vendor])
        shares = rule.shares(question, ledger.arrays, columns) if rule in amount_checks(question) else None
        for place, row, card in cards_of(ledger):
            short = rule.shortage(question, card)
            share = 0.0 if shares is None else float(shares[place, row])
            refused = rule.refuse(question.rules, question, card) is not None
            assert (short is not None) == (share > 0) == refused, rule
            if short is not None and not math.isinf(share):
                assert share == short.share, rule
