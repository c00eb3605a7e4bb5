"""Advice holds what it says: the advised request fits, and asking for one more does not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import assume, given
from hypothesis import strategies as st

from tessera.core.ledger.ledger import Ledger
from tessera.core.model.requests import PodRequest
from tessera.core.search import finish
from tessera.core.search.advice import RequestChange, advise
from tessera.core.search.near_misses import FewCards
from tessera.core.search.selection import Refused, Selected, Selector
from tests.support import strategies as some


def with_value(pod: PodRequest, change: RequestChange, value: int) -> PodRequest:
    """The pod with the changed field of that container set to `value`."""
    field: dict[str, Any] = {change.field: value}
    containers = tuple(
        replace(c, requests=tuple(replace(request, **field) for request in c.requests))
        if c.name == change.container
        else c
        for c in pod.containers
    )
    return replace(pod, containers=containers)


@given(data=st.data(), vendor=st.sampled_from(sorted(some.VENDORS)))
def test_every_advised_change_fits_and_one_more_does_not(data: st.DataObject, vendor: str) -> None:
    ledger = Ledger(some.VENDORS)
    for node in data.draw(some.clusters((vendor,))):
        ledger.observe_node(node)
    for quota in data.draw(st.lists(some.quotas((vendor,)), max_size=1)):
        ledger.observe_quota(quota)
    selector = Selector(ledger)
    for i in range(data.draw(st.integers(0, 3))):
        placed = data.draw(some.pod_requests((vendor,), f"placed-{i}"))
        answer = selector.select(placed, some.NODES)
        if isinstance(answer, Selected):
            ledger.reserve(placed, answer.placement, deadline=1)
    pod = data.draw(some.pod_requests((vendor,), "refused"))
    assume(isinstance(selector.select(pod, some.NODES), Refused))

    advice = finish(advise(ledger, pod, some.NODES))

    for change in advice.changes:
        answer = selector.select(with_value(pod, change, change.fits), some.NODES)
        assert isinstance(answer, Selected)
        assert answer.placement.node == change.node
        assert change.fits < change.asked
        assert isinstance(selector.select(with_value(pod, change, change.fits + 1), some.NODES), Refused)
    if isinstance(advice.near_miss, FewCards):
        assert 0 < advice.near_miss.found < advice.near_miss.asked
    elif advice.near_miss is not None:
        assert all(short.free < short.asked for short in advice.near_miss.shortages)
