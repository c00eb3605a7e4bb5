"""Preemption with bad luck or bad intent: what changes while it waits, pods that never leave, large backlogs."""

from __future__ import annotations

from tests.support.builders import node
from tests.support.stepwise_scheduler import serving_downward_api
from tests.unit.scheduler.test_preemptor import Cluster, high, low


async def test_a_search_goes_on_when_a_node_with_more_cards_than_any_other_joins_while_it_pauses() -> None:
    cluster = Cluster(node("n1").gpus(1), node("n2").gpus(1))
    await cluster.runs(low("a").with_priority(1), low("b").with_priority(2))
    pod = cluster.refuse(high())
    search = cluster.engine.preemption.search(pod.request, priority=1000, candidates=pod.candidates)
    next(search)
    cluster.api.add_node(serving_downward_api(node("n3").gpus(16)))
    cluster.watch()
    found = None
    try:
        while True:
            next(search)
    except StopIteration as end:
        found = end.value
    assert found is not None
    assert found.victims == ("uid-a",)
