"""Sets of victims: none leaves for nothing if another one stays."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tessera.kube.errors import KubeError
from tessera.scheduler.pod_cycle import CycleState
from tests.support.builders import node
from tests.support.fake_cluster import Step, never_sent, not_found, refused
from tests.support.preemption import PreemptionCluster, budget, high, low, member
from tests.support.stepwise_scheduler import preemption_loop_of, preemptor_of


async def two_victims() -> PreemptionCluster:
    """A cluster in which a pod that asks for two cards needs the only two; `web` has a budget."""
    cluster = PreemptionCluster(node("n1").gpus(2))
    await cluster.runs(low("plain"), low("web").labelled(app="web"))
    cluster.engine.budgets.put(*budget("web", 1, app="web"))
    return cluster


def calls(cluster: PreemptionCluster) -> list[str]:
    return [call for call in cluster.api.calls if call.startswith("evict")]


async def test_one_victim_is_evicted_without_a_dry_run() -> None:
    cluster = PreemptionCluster(node("n1").gpus(1))
    await cluster.runs(low("victim"))
    await cluster.preempts(high())
    assert calls(cluster) == ["evict"]


async def test_a_dry_run_of_all_comes_first_then_pods_with_a_budget_then_the_others() -> None:
    cluster = await two_victims()
    await cluster.preempts(high(gpu=2))
    assert calls(cluster) == ["evict_dry_run", "evict_dry_run", "evict", "evict"]
    assert cluster.evictions == ["web", "plain"]


@pytest.mark.parametrize(
    ("steps", "stays"),
    [((Step(), refused(429)), "default/web"), ((never_sent(),), "default/plain")],
    ids=["refused", "not answered"],
)
async def test_none_leaves_if_the_dry_run_of_one_fails(steps: Sequence[Step | KubeError], stays: str) -> None:
    cluster = await two_victims()
    cluster.api.script("evict_dry_run", *steps)
    await cluster.preempts(high(gpu=2))
    assert cluster.evictions == []
    assert cluster.cycle_state(high()) is CycleState.REFUSED
    assert any(text.startswith(f"{stays} is not evicted: ") for text in cluster.seen.texts)
    assert not cluster.ledger.nominations.all()


async def test_nothing_further_is_evicted_after_a_refusal() -> None:
    cluster = await two_victims()
    cluster.api.script("evict", refused(429))
    await cluster.preempts(high(gpu=2))
    assert cluster.evictions == ["web"], "refused: the other one stays as well"
    assert cluster.cycle_state(high()) is CycleState.REFUSED


async def test_pods_with_a_budget_are_evicted_one_after_the_other() -> None:
    cluster = PreemptionCluster(node("n1").gpus(3))
    await cluster.runs(*(low(name).labelled(app="web") for name in "abc"))
    cluster.engine.budgets.put(*budget("web", 3, app="web"))
    cluster.api.script("evict", Step(), refused(429))
    await cluster.preempts(high(gpu=3))
    assert cluster.evictions == ["a", "b"], "c is not even tried"


async def test_of_pods_without_a_budget_none_is_evicted_that_was_not_sent_before_a_refusal() -> None:
    cluster = PreemptionCluster(node("n1").gpus(16))
    await cluster.runs(*(low(f"p{i:02}") for i in range(16)))
    cluster.api.script("evict", refused(500))
    await cluster.preempts(high(gpu=16))
    assert len(cluster.evictions) == 8, "as many as are sent at once"


async def test_a_victim_that_is_gone_is_no_obstacle_and_not_reported_as_evicted() -> None:
    cluster = await two_victims()
    cluster.api.script("evict_dry_run", not_found("pod"))
    cluster.api.script("evict", not_found("pod"))
    await cluster.preempts(high(gpu=2))
    assert cluster.cycle_state(high()) is CycleState.NOMINATED
    assert [name for name, _ in cluster.seen.evicted] == ["plain"]


async def test_a_victim_that_leaves_for_another_preemptor_already_is_not_evicted_again() -> None:
    """A group on two nodes, and a preemptor on each of them: the second waits for what leaves for the first."""
    cluster = PreemptionCluster(node("n1").gpus(1), node("n2").gpus(1))
    cluster.create(member("a", "n1"), member("b", "n2"))
    waiting = [cluster.refuse(high(name)) for name in ("one", "other")]
    loop, preemptors = preemption_loop_of(cluster.engine), [preemptor_of(cluster.engine, pod) for pod in waiting]
    found = [await loop.nominate(each) for each in preemptors]
    assert [sorted(each.victims) for each in found if each is not None] == [["uid-a", "uid-b"], []]
    assert [sorted(each.victims) for each in cluster.ledger.nominations.all()] == [["uid-a", "uid-b"], ["uid-b"]]
    for preemptor, victims in zip(preemptors, found, strict=True):
        assert victims is not None
        assert await loop.evict(preemptor, victims)
    assert sorted(cluster.evictions) == ["a", "b"]
    assert [cluster.cycle_state(high(name)) for name in ("one", "other")] == [CycleState.NOMINATED] * 2
