"""Preemption with bad luck or bad intent: what changes while it waits, pods that never leave, large backlogs."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from typing import Any

import pytest

from tessera.core.model.grants import Placement
from tessera.core.search.node_victims import NodeSearch
from tessera.core.search.preemption import Demand
from tessera.scheduler.features.preemption import feature
from tests.support.builders import node
from tests.support.event_loops import in_fake_time
from tests.support.fake_cluster import Step
from tests.support.preemption import CARD, GRACE, TIMEOUT, PreemptionCluster, budget, high, low, member
from tests.support.stepwise_scheduler import preempt_for, preemption_loop_of, preemptor_of, serving_downward_api


async def test_a_search_goes_on_when_a_node_with_more_cards_than_any_other_joins_while_it_pauses() -> None:
    cluster = PreemptionCluster(node("n1").gpus(1), node("n2").gpus(1))
    await cluster.runs(low("a").with_priority(1), low("b").with_priority(2))
    pod = cluster.refuse(high())
    search = cluster.engine.preemption.search(Demand.of_pod(pod.request, pod.candidates, priority=1000))
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


async def test_a_card_with_many_tenants_is_not_searched_for_all_their_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    trials = count_trials(monkeypatch)
    cluster = PreemptionCluster(node("n1").gpus(1, slots=64))
    large = [low(f"large-{i}", mem=3000).started("2026-01-01T00:00:00Z") for i in range(10)]
    small = [low(f"small-{i}", mem=1000).started("2026-02-01T00:00:00Z") for i in range(10)]
    await cluster.runs(*large, *small)
    # All that is free, and the large ones: but the small ones are newer.
    await cluster.preempts(high(mem=CARD - 10 * 1000))
    assert sorted(cluster.evictions) == sorted(pod.name for pod in large)
    assert len(trials) < 200


def count_trials(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The nodes on which the plain rule was asked in searches for victims."""
    tried: list[str] = []
    fit = NodeSearch._fit

    def counted(search: NodeSearch) -> Placement | None:
        tried.append(search.node)
        return fit(search)

    monkeypatch.setattr(NodeSearch, "_fit", counted)
    return tried


@in_fake_time
async def test_a_backlog_that_finds_no_victims_leaves_one_timer_whatever_its_size() -> None:
    cluster = PreemptionCluster(node("n1").gpus(1))
    await cluster.runs(low("runs"))
    timers: list[asyncio.TimerHandle] = []
    loop = asyncio.get_running_loop()
    set_timer = loop.call_at

    def call_at(*args: Any, **kwargs: Any) -> asyncio.TimerHandle:
        timers.append(set_timer(*args, **kwargs))
        return timers[-1]

    loop.call_at = call_at  # type: ignore[method-assign, assignment]
    running = asyncio.ensure_future(preemption_loop_of(cluster.engine).run())
    for i in range(20):
        cluster.refuse(low(f"pod-{i}"))
        for _ in range(5):
            await asyncio.sleep(0)
    assert [timer.cancelled() for timer in timers].count(False) == 1
    running.cancel()


@in_fake_time
async def test_a_pod_that_is_deleted_but_never_goes_is_waited_for_once() -> None:
    cluster = PreemptionCluster(node("n1").gpus(1), node("n2").gpus(1))
    await cluster.runs(low("stuck"), low("plain"))
    await cluster.api.evict("default", "stuck", uid="uid-stuck")
    cluster.watch()
    cluster.api.writes.clear()
    await cluster.preempts(high())
    assert cluster.evictions == []
    await asyncio.sleep(GRACE + TIMEOUT + 1)
    cluster.engine.tick()
    await cluster.preempts(high())
    assert cluster.evictions == ["plain"]


async def test_two_preemptors_do_not_spend_one_disruption_budget() -> None:
    cluster = PreemptionCluster(node("n1").gpus(1), node("n2").gpus(2))
    await cluster.runs(low("a").labelled(app="web").with_priority(-1), low("b").labelled(app="web"), low("c"))
    cluster.engine.budgets.put(*budget("web", 1, app="web"))
    first = preemptor_of(cluster.engine, cluster.refuse(high("first")))
    found = await preemption_loop_of(cluster.engine).nominate(first)
    assert found is not None
    assert found.victims == ("uid-a",)
    await cluster.preempts(high("second", gpu=2))
    assert cluster.evictions == [], "the eviction of b would be refused, and that of c in vain"


async def test_an_eviction_that_waits_is_not_sent_for_a_later_nomination(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tessera.scheduler.eviction.evictor.CONCURRENT", 1)
    cluster = PreemptionCluster(node("n1").gpus(2), node("n2").gpus(1))
    await cluster.runs(low("a"), low("b"), low("c").with_priority(10))
    pod = cluster.refuse(high(gpu=2))
    loop, preemptor = preemption_loop_of(cluster.engine), preemptor_of(cluster.engine, pod)

    def meanwhile() -> None:
        """Another replica led for a while, and the pod asks for less now: another victim is enough."""
        cluster.lead_again()
        cycle = cluster.cycles.get("uid-high")
        assert cycle is not None
        facts = high(gpu=2).on("n2", "n2-0,NVIDIA,1000,0:;").facts()
        cluster.cycles.nominate(cycle, facts, frozenset({"uid-c"}), deadline=math.inf)

    found = await loop.nominate(preemptor)
    assert found is not None
    assert set(found.victims) == {"uid-a", "uid-b"}
    cluster.api.script("evict", Step(meanwhile=meanwhile))
    assert not await loop.evict(preemptor, found)
    assert len(cluster.evictions) == 1
    [nomination] = cluster.ledger.nominations.all()
    assert nomination.victims == {"uid-c"}, "the later nomination stays"


async def test_the_preempt_verb_names_only_victims_on_the_node() -> None:
    """kube-scheduler ends its preemption with an error if it does not find a victim on the node."""
    cluster = PreemptionCluster(node("n1").gpus(1), node("n2").gpus(1))
    cluster.create(member("a", "n1"), member("b", "n2"))
    assert await cluster.preempt_verb(high(), {"n1": ["cpu-hog"]}) == {}
    assert await cluster.preempt_verb(high(), {"n1": ["cpu-hog"], "n2": ["cpu-hog"]}) == {}


async def test_the_preempt_verb_names_no_node_for_a_member_of_a_gang_that_waits() -> None:
    cluster = PreemptionCluster(node("n1").gpus(1))
    pod = high("g-0").in_gang("g", 2)
    cluster.create(pod)
    assert cluster.filtered(pod)["NodeNames"] is None
    assert await cluster.preempt_verb(pod, {"n1": ["cpu-hog"]}) == {}, (
        "the gang does not fit: they would leave for nothing"
    )


async def test_no_pod_is_evicted_for_one_that_has_joined_a_gang_since_it_was_refused() -> None:
    cluster = PreemptionCluster(node("n1").gpus(1))
    await cluster.runs(low("victim"))
    pod = cluster.refuse(high())
    assert cluster.filtered(high().in_gang("g", 8))["NodeNames"] is None
    await preempt_for(cluster.engine, pod)
    assert cluster.evictions == []
    assert len(cluster.unschedulable) == 0


async def test_a_nomination_ends_when_its_pod_joins_a_gang_that_waits() -> None:
    cluster = PreemptionCluster(node("n1").gpus(1))
    await cluster.runs(low("victim"))
    await cluster.preempts(high())
    assert cluster.filtered(high().in_gang("g", 8))["NodeNames"] is None
    assert not cluster.ledger.nominations.all()
    assert cluster.agrees()


async def test_the_preempt_verb_looks_at_fewer_nodes_where_each_takes_many_trials(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(feature, "MAX_TRIALS", 8)
    names = [f"n{i}" for i in range(4)]
    cluster = PreemptionCluster(*(node(name).gpus(4, slots=10) for name in names))
    for name in names:
        for i in range(12):
            pod = low(f"{name}-{i}", mem=27_000)
            cluster.create(pod)
            assert await cluster.bound(pod, cluster.chosen(pod, [name])) == ""
            cluster.watch()
    answer = await cluster.preempt_verb(high(gpu=4, mem=60_000), {name: ["cpu-hog"] for name in names})
    assert list(answer) == ["n0"]


async def test_a_set_that_was_found_in_steps_is_used_only_while_all_of_it_is_needed() -> None:
    cluster = PreemptionCluster(node("n1").gpus(3))
    await cluster.runs(low("a"), low("b"), low("c"))
    pod = cluster.refuse(high(gpu=2))
    found = cluster.engine.preemption.find_for_pod(pod.request, priority=1000, candidates=pod.candidates)
    assert found is not None
    assert len(found.victims) == 2

    def confirmed() -> bool:
        return cluster.engine.preemption.confirm(pod.request, found, priority=1000) is not None

    assert confirmed()
    [other] = {"uid-a", "uid-b", "uid-c"} - set(found.victims)
    cluster.gone(other.removeprefix("uid-"))
    assert not confirmed(), "one victim could stay"
    await cluster.runs(low("d"))
    assert confirmed()
    cluster.engine.victims.spare(found.victims[0], "refused", seconds=30)
    assert not confirmed(), "one of them may not leave"
    cluster.gone(*(uid.removeprefix("uid-") for uid in found.victims))
    assert not confirmed(), "it fits as it is"


async def test_a_search_that_tries_sets_ends_with_the_best_one_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"n{i}" for i in range(6)]
    cluster = PreemptionCluster(*(node(name).gpus(2) for name in names))
    await cluster.runs(*(low(f"p{i:02}") for i in range(12)))
    pod = cluster.refuse(high())
    # On each node one victim may be enough for each container, but both together need two.
    asked = replace(pod.request, containers=pod.request.containers * 2)

    tried = count_trials(monkeypatch)

    def trials() -> int:
        tried.clear()
        assert cluster.engine.preemption.find_for_pod(asked, priority=1000, candidates=pod.candidates) is not None
        return len(tried)

    everywhere = trials()
    monkeypatch.setattr("tessera.core.search.preemption.MAX_TRIALS", 1)
    assert trials() < everywhere / 2
