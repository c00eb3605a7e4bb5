"""Preemption from refusal to bind: who is evicted, what is held meanwhile, and what ends it."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest

from tessera.core.search import node_victims
from tessera.scheduler.eviction.evictor import SPARED_S
from tessera.scheduler.pod_cycle import CycleState
from tessera.wire import keys
from tests.support.builders import PodBuilder, node
from tests.support.event_loops import in_fake_time
from tests.support.fake_cluster import Step, lost_answer, refused
from tests.support.preemption import CARD, GRACE, TIMEOUT, PreemptionCluster, budget, high, low, member
from tests.support.stepwise_scheduler import preempt_for, preemption_loop_of, serving_downward_api, uid


async def test_a_pod_of_higher_priority_is_bound_where_its_victim_was() -> None:
    cluster = PreemptionCluster(node("n1").gpus(1))
    await cluster.runs(low("victim"))
    await cluster.preempts(high())
    assert cluster.evictions == ["victim"]
    assert cluster.cycle_state(high()) is CycleState.NOMINATED
    assert cluster.api.nominated == {"default/high": "n1"}
    assert cluster.woken() == []
    cluster.gone("victim")
    assert cluster.woken() == ["high"]
    assert cluster.woken() == []
    assert await cluster.bound(high(), cluster.chosen(high())) == ""
    assert cluster.agrees()
    assert not cluster.ledger.nominations.all()


async def test_victim_and_preemptor_are_told_of_each_other() -> None:
    cluster = PreemptionCluster(node("n1").gpus(1))
    await cluster.runs(low("victim"))
    await cluster.preempts(high())
    assert cluster.seen.evicted == [
        ("victim", "Preempted by pod default/high (priority 1000) on node n1, which needs its devices")
    ]
    assert cluster.seen.texts == ["Nominated for node n1: evicting default/victim (priority 0)"]


async def test_no_other_pod_takes_what_is_nominated_and_what_fits_beside_goes_in() -> None:
    cluster = PreemptionCluster(node("n1").gpus(1, slots=10))
    await cluster.runs(low("victim", mem=60_000))
    await cluster.preempts(high(mem=70_000))
    beside, thief = low("beside", mem=10_000), low("thief", mem=20_000).with_priority(5000)
    cluster.create(beside, thief)
    assert cluster.filtered(thief)["NodeNames"] is None, "there are 21,920 MiB free now, but not later"
    assert cluster.chosen(beside) == "n1"
    cluster.gone("victim")
    assert cluster.filtered(thief)["NodeNames"] is None
    assert cluster.chosen(high(mem=70_000)) == "n1"


@pytest.mark.parametrize(
    "pod",
    [
        high().with_priority(1000, policy="Never"),
        low("equal"),
        low("lower").with_priority(-1),
    ],
)
async def test_a_pod_that_may_not_preempt_evicts_none(pod: PodBuilder) -> None:
    cluster = PreemptionCluster(node("n1").gpus(1))
    await cluster.runs(low("runs"))
    await cluster.preempts(pod)
    assert cluster.evictions == []
    assert cluster.cycle_state(pod) is CycleState.REFUSED


async def test_a_pod_that_opted_out_is_not_evicted() -> None:
    cluster = PreemptionCluster(node("n1").gpus(1))
    await cluster.runs(low("stays").annotate((keys.PREEMPTIBLE, "false")))
    await cluster.preempts(high())
    assert cluster.evictions == []


async def test_a_pod_whose_budget_allows_no_eviction_is_not_evicted_and_another_one_is() -> None:
    cluster = PreemptionCluster(node("n1").gpus(2))
    await cluster.runs(low("guarded").labelled(app="web").with_priority(-5), low("plain"))
    cluster.engine.budgets.put(*budget("web", 0, app="web"))
    await cluster.preempts(high())
    assert cluster.evictions == ["plain"]


async def test_a_victim_that_the_apiserver_keeps_is_left_alone_and_another_set_is_chosen() -> None:
    cluster = PreemptionCluster(node("n1").gpus(2))
    await cluster.runs(low("guarded").with_priority(-5), low("plain"))
    cluster.api.script("evict", refused(429))
    await cluster.preempts(high())
    assert cluster.evictions == ["guarded", "plain"]
    [nomination] = cluster.ledger.nominations.all()
    assert nomination.victims == {"uid-plain"}
    assert "default/guarded is not evicted: scripted" in cluster.seen.texts


async def test_evictions_that_are_all_refused_end_and_leave_no_nomination() -> None:
    cluster = PreemptionCluster(node("n1").gpus(2))
    await cluster.runs(low("a"), low("b"))
    cluster.api.always("evict", refused(429))
    await cluster.preempts(high())
    assert sorted(cluster.evictions) == ["a", "b"]
    assert cluster.cycle_state(high()) is CycleState.REFUSED
    assert cluster.agrees()


@in_fake_time
async def test_a_spared_pod_is_tried_again_later() -> None:
    cluster = PreemptionCluster(node("n1").gpus(1))
    await cluster.runs(low("a"))
    cluster.api.script("evict", refused(429))
    await cluster.preempts(high())
    await asyncio.sleep(SPARED_S + 1)
    await cluster.preempts(high())
    assert cluster.evictions == ["a", "a"]
    assert cluster.cycle_state(high()) is CycleState.NOMINATED


@in_fake_time
async def test_a_lost_answer_to_an_eviction_evicts_no_further_pod_once_the_victim_is_seen_to_leave() -> None:
    cluster = PreemptionCluster(node("n1").gpus(1))
    await cluster.runs(low("victim"))
    cluster.api.script("evict", Step(error=lost_answer(), done=True))
    await cluster.preempts(high())
    await cluster.preempts(high())
    assert cluster.evictions == ["victim"]
    [nomination] = cluster.ledger.nominations.all()
    assert nomination.victims == {"uid-victim"}


async def test_after_a_restart_terminating_victims_are_waited_for_and_none_is_evicted_again() -> None:
    cluster = PreemptionCluster(node("n1").gpus(1), node("n2").gpus(1))
    await cluster.runs(low("one"), low("two"))
    await cluster.preempts(high())
    [first] = cluster.evictions
    cluster.restart()
    cluster.started()
    assert not cluster.ledger.nominations.all()
    await cluster.preempts(high())
    assert cluster.evictions == [first]
    assert cluster.cycle_state(high()) is CycleState.NOMINATED
    cluster.gone(first)
    assert await cluster.bound(high(), cluster.chosen(high())) == ""
    assert cluster.agrees()


async def test_two_preemptors_do_not_share_a_victim() -> None:
    cluster = PreemptionCluster(node("n1").gpus(1), node("n2").gpus(1))
    await cluster.runs(low("one"), low("two"))
    await cluster.preempts(high("first"))
    await cluster.preempts(high("second"))
    assert sorted(cluster.evictions) == ["one", "two"]
    cluster.gone("one", "two")
    assert {cluster.chosen(high("first")), cluster.chosen(high("second"))} == {"n1", "n2"}


async def test_two_pods_share_what_one_victim_frees() -> None:
    cluster = PreemptionCluster(node("n1").gpus(1))
    await cluster.runs(low("victim"))
    await cluster.preempts(high("first", mem=CARD // 2))
    await cluster.preempts(high("second", mem=CARD // 2))
    assert cluster.evictions == ["victim"]
    cluster.gone("victim")
    assert sorted(cluster.woken()) == ["first", "second"]
    assert [cluster.chosen(high(name, mem=CARD // 2)) for name in ("first", "second")] == ["n1", "n1"]


async def test_a_nomination_ends_with_its_pod() -> None:
    cluster = PreemptionCluster(node("n1").gpus(1))
    await cluster.runs(low("victim"))
    await cluster.preempts(high())
    cluster.gone("high", "victim")
    assert not cluster.ledger.nominations.all()
    assert cluster.agrees()


@in_fake_time
async def test_a_nomination_ends_by_its_deadline_and_the_devices_are_free() -> None:
    cluster = PreemptionCluster(node("n1").gpus(1))
    await cluster.runs(low("victim"))
    await cluster.preempts(high())
    cluster.gone("victim")
    cluster.create(low("other"))
    assert cluster.filtered(low("other"))["FailedNodes"]
    await asyncio.sleep(GRACE + TIMEOUT - 1)
    cluster.engine.tick()
    assert cluster.filtered(low("other"))["FailedNodes"]
    await asyncio.sleep(2)
    cluster.engine.tick()
    assert cluster.cycle_state(high()) is CycleState.REFUSED
    await cluster.engine.nominated_nodes.write()
    assert cluster.api.nominated == {"default/high": None}
    assert cluster.chosen(low("other")) == "n1"


async def test_a_replica_that_leads_no_more_evicts_none_and_keeps_no_nomination() -> None:
    cluster = PreemptionCluster(node("n1").gpus(1))
    await cluster.runs(low("victim"))
    pod = cluster.refuse(high())
    cluster.stop_leading()
    await preempt_for(cluster.engine, pod)
    assert cluster.evictions == []
    cluster.lead_again()
    await preempt_for(cluster.engine, pod)
    assert cluster.evictions == ["victim"]
    cluster.stop_leading()
    assert not cluster.ledger.nominations.all()
    assert cluster.cycle_state(high()) is CycleState.REFUSED


async def test_a_pod_that_fits_elsewhere_meanwhile_goes_there_and_frees_its_nomination() -> None:
    cluster = PreemptionCluster(node("n1").gpus(1))
    await cluster.runs(low("victim"))
    await cluster.preempts(high())
    cluster.api.add_node(serving_downward_api(node("n2").gpus(1)))
    cluster.watch()
    assert cluster.chosen(high()) == "n2"
    assert not cluster.ledger.nominations.all()


async def test_no_pod_is_evicted_any_more_for_a_pod_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tessera.scheduler.eviction.evictor.CONCURRENT", 1)
    cluster = PreemptionCluster(node("n1").gpus(2))
    await cluster.runs(low("one"), low("two"))
    cluster.api.script("evict", Step(meanwhile=lambda: cluster.gone("high")))
    await cluster.preempts(high(gpu=2))
    assert len(cluster.evictions) == 1
    assert not cluster.ledger.nominations.all()


async def test_groups_leave_whole_or_not_at_all() -> None:
    cluster = PreemptionCluster(node("n1").gpus(1), node("n2").gpus(1), node("n3").gpus(1))
    cluster.create(member("a", "n1"), member("b", "n2"))
    await cluster.runs(low("important").with_priority(2000))
    await cluster.preempts(high())
    assert sorted(cluster.evictions) == ["a", "b"]


async def test_a_group_with_a_member_that_must_stay_is_left_alone() -> None:
    cluster = PreemptionCluster(node("n1").gpus(1), node("n2").gpus(1))
    cluster.create(member("a", "n1"), member("b", "n2").with_priority(2000))
    await cluster.preempts(high())
    assert cluster.evictions == []


# -- the loop


@in_fake_time
async def test_the_delay_passes_before_the_first_eviction() -> None:
    cluster = PreemptionCluster(node("n1").gpus(1))
    cluster.settings = replace(cluster.settings, preemption_delay_s=60.0)
    cluster.restart()
    cluster.started()
    await cluster.runs(low("victim"))
    task = asyncio.ensure_future(preemption_loop_of(cluster.engine).run())
    cluster.refuse(high())
    await asyncio.sleep(59)
    assert cluster.evictions == []
    await asyncio.sleep(2)
    assert cluster.evictions == ["victim"]
    task.cancel()


@in_fake_time
async def test_the_highest_priority_comes_first() -> None:
    cluster = PreemptionCluster(node("n1").gpus(1))
    await cluster.runs(low("victim"))
    cluster.refuse(high("second").with_priority(10))
    cluster.refuse(high("first").with_priority(20))
    task = asyncio.ensure_future(preemption_loop_of(cluster.engine).run())
    await asyncio.sleep(5)
    assert cluster.evictions == ["victim"]
    assert cluster.cycle_state(high("first")) is CycleState.NOMINATED
    task.cancel()


@in_fake_time
async def test_nothing_is_evicted_before_the_budgets_are_known() -> None:
    cluster = PreemptionCluster(node("n1").gpus(1))
    cluster.engine.budgets.has_synced = False
    await cluster.runs(low("victim"))
    task = asyncio.ensure_future(preemption_loop_of(cluster.engine).run())
    cluster.refuse(high())
    await asyncio.sleep(10)
    assert cluster.evictions == []
    cluster.engine.budgets.synced()
    await asyncio.sleep(10)
    assert cluster.evictions == ["victim"]
    task.cancel()


@in_fake_time
async def test_a_pod_with_other_candidates_is_not_kept_waiting_by_one_of_its_kind_that_finds_no_victims() -> None:
    cluster = PreemptionCluster(node("n1").gpus(1), node("n2").gpus(1))
    await cluster.runs(low("runs").with_priority(5000))
    [full] = {cluster.placement(low("runs")).node}
    [other] = {"n1", "n2"} - {full}
    await cluster.runs(low("victim"))
    searched = cluster.seen.texts
    cluster.create(*(high(name) for name in "abc"))
    for name, where in (("a", full), ("b", full), ("c", other)):
        assert cluster.filtered(high(name), [where])["FailedAndUnresolvableNodes"]
    task = asyncio.ensure_future(preemption_loop_of(cluster.engine).run())
    await asyncio.sleep(0.5)
    assert cluster.evictions == ["victim"]
    assert len([text for text in searched if "no victims" in text]) == 1, "b has to wait for its turn"
    task.cancel()


# -- POST /preempt


async def test_the_preempt_verb_adds_the_pods_whose_devices_are_needed() -> None:
    cluster = PreemptionCluster(node("n1").gpus(1), node("n2").gpus(1))
    await cluster.runs(low("a"), low("b").with_priority(2000))
    taken = {cluster.placement(pod).node: uid(pod) for pod in (low("a"),)}
    [where] = taken
    answer = await cluster.preempt_verb(high(), {"n1": ["cpu-hog"], "n2": ["cpu-hog"]})
    assert answer == {where: sorted(["cpu-hog", taken[where]])}


async def test_the_preempt_verb_keeps_what_is_enough() -> None:
    cluster = PreemptionCluster(node("n1").gpus(1))
    await cluster.runs(low("a"))
    assert await cluster.preempt_verb(high(), {"n1": ["uid-a"]}) == {"n1": ["uid-a"]}
    assert cluster.evictions == [], "kube-scheduler deletes the victims itself"


async def test_the_preempt_verb_passes_pods_without_devices_through() -> None:
    cluster = PreemptionCluster(node("n1").gpus(1))
    assert await cluster.preempt_verb(PodBuilder("plain"), {"n1": ["x"]}) == {"n1": ["x"]}


async def test_the_preempt_verb_names_no_node_while_tessera_preempts_itself() -> None:
    cluster = PreemptionCluster(node("n1").gpus(1))
    await cluster.runs(low("victim"))
    await cluster.preempts(high())
    assert await cluster.preempt_verb(high(), {"n1": ["uid-victim"]}) == {}


@in_fake_time
async def test_tessera_leaves_a_pod_to_kube_scheduler_that_was_told_of_victims() -> None:
    cluster = PreemptionCluster(node("n1").gpus(1))
    await cluster.runs(low("victim"))
    cluster.refuse(high())
    assert await cluster.preempt_verb(high(), {"n1": ["uid-victim"]})
    task = asyncio.ensure_future(preemption_loop_of(cluster.engine).run())
    await asyncio.sleep(5)
    assert cluster.evictions == []
    await asyncio.sleep(20)
    assert cluster.evictions == ["victim"], "kube-scheduler did nothing"
    task.cancel()


async def test_the_preempt_verb_matches_many_budgets_between_other_requests() -> None:
    cluster = PreemptionCluster(node("n1").gpus(1))
    await cluster.runs(low("victim").labelled(app="x"))
    for number in range(5_000):
        cluster.engine.budgets.put(*budget(f"b{number}", 0, tier="x"))
    cluster.engine.budgets.put(*budget("web", 1, app="x"))
    others = 0

    async def count() -> None:
        nonlocal others
        while True:
            others += 1
            await asyncio.sleep(0)

    task = asyncio.ensure_future(count())
    assert await cluster.preempt_verb(high(), {"n1": []}) == {"n1": ["uid-victim"]}
    assert others > 1
    task.cancel()


async def test_the_preempt_verb_names_no_node_if_tessera_began_to_preempt_meanwhile() -> None:
    cluster = PreemptionCluster(node("n1").gpus(1))
    await cluster.runs(low("victim"))
    refused = cluster.refuse(high())
    named = {f"n{i}": {"Pods": [], "NumPDBViolations": 0} for i in range(1, 50)}
    body = {"Pod": high().manifest(), "NodeNameToMetaVictims": named}
    answering = asyncio.ensure_future(cluster.engine.answer_preempt(json.dumps(body).encode()))
    await asyncio.sleep(0)
    await preempt_for(cluster.engine, refused)
    assert not answering.done()
    assert json.loads(await answering)["NodeNameToMetaVictims"] == {}


async def test_a_pod_whose_budgets_take_too_long_to_match_is_spared(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = PreemptionCluster(node("n1").gpus(1))
    await cluster.runs(low("victim").labelled(app="x"))
    for number in range(5_000):
        cluster.engine.budgets.put(*budget(f"b{number}", 1, tier="x"))
    monkeypatch.setattr(node_victims, "MAX_MATCHING", 1)
    assert await cluster.preempt_verb(high(), {"n1": []}) == {}
    monkeypatch.undo()
    assert await cluster.preempt_verb(high(), {"n1": []}) == {"n1": ["uid-victim"]}
