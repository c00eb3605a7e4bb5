"""Selection over all nodes at once answers as the plain rule does: every group of vendors, with and without quotas."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.core.ledger.ledger import Ledger
from tessera.core.search.selection import Selected, Selector
from tests.support import strategies as some
from tests.support.oracles import select_and_check
from tests.support.strategies import examples

PODS = 5


@pytest.mark.parametrize("pool", some.POOLS, ids="+".join)
@examples(1 / 3)
@given(data=st.data())
def test_selection_answers_as_the_plain_rule(pool: tuple[str, ...], data: st.DataObject) -> None:
    ledger = Ledger(some.VENDORS)
    for node in data.draw(some.clusters(pool, least=3)):
        ledger.observe_node(node)
    for quota in data.draw(st.lists(some.quotas(pool), max_size=2)):
        ledger.observe_quota(quota)
    selector = Selector(ledger)
    candidates = selector.candidates(some.NODES)
    for i in range(PODS):
        drawn = data.draw(some.pod_requests(pool, f"pod-{i}"))
        # The same wish in another namespace and with another policy: what is remembered of a shape must not leak.
        for policy, namespace in zip(("binpack", "spread"), some.NAMESPACES, strict=True):
            pod = replace(drawn, uid=f"{drawn.uid}-{policy}", node_policy=policy, namespace=namespace)
            answer = select_and_check(selector, pod, candidates)
        if isinstance(answer, Selected):
            ledger.reserve(pod, answer.placement, deadline=1)
