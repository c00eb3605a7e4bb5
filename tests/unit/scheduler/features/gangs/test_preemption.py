"""Gangs preempt as one: which pods are evicted, what is claimed meanwhile, and what ends it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest
from msgspec import structs

from tessera.core.fit.quota import QuotaFacts
from tessera.core.ledger.audit import audit
from tessera.core.search.preemption import Demand, Preemption, Search
from tessera.scheduler.features.gangs.gang import GangState
from tessera.wire import keys
from tests.support.builders import node
from tests.support.event_loops import in_fake_time
from tests.support.fake_cluster import OK, refused
from tests.support.gangs import bind_all, woken
from tests.support.preemption import CARD, GRACE, TIMEOUT, GangCluster, budget, high, low
from tests.support.preemption import important_gang as gang
from tests.support.stepwise_scheduler import gangs_of, preempt_for, preemption_loop_of, tick_gangs, uid


async def test_a_gang_is_bound_as_a_whole_where_its_victims_were() -> None:
    cluster = GangCluster(node("n1").gpus(1), node("n2").gpus(1), node("n3").gpus(1))
    await cluster.runs(low("a"), low("b"))
    pods = gang(3)
    await cluster.preempts_for(pods)
    assert sorted(cluster.evictions) == ["a", "b"]
    assert cluster.claims == ["n1", "n2", "n3"]
    assert cluster.gang().state is GangState.NOMINATED
    assert await woken(cluster) == []
    cluster.gone("a")
    assert await woken(cluster) == []
    cluster.gone("b")
    assert sorted(await woken(cluster)) == ["g-0", "g-1", "g-2"]
    assert (cluster.claims, cluster.gang().state) == ([], GangState.PLANNED)
    assert await bind_all(cluster, pods) == [""] * 3
    assert cluster.agrees()


async def test_members_show_the_nodes_that_are_claimed_for_them_and_get_them() -> None:
    cluster = GangCluster(node("n1").gpus(1), node("n2").gpus(1))
    await cluster.runs(low("a"), low("b"))
    pods = gang(2)
    await cluster.preempts_for(pods)
    nominated = await cluster.nominated()
    assert sorted(nominated) == ["g-0", "g-1"]
    assert sorted(map(str, nominated.values())) == ["n1", "n2"]
    cluster.gone("a")
    cluster.gone("b")
    await woken(cluster)
    for pod in reversed(pods):
        assert cluster.chosen(pod) == nominated[pod.name]
    assert await cluster.nominated() == nominated


async def test_members_show_no_node_before_their_victims_leave() -> None:
    cluster = GangCluster(node("n1").gpus(1), node("n2").gpus(1))
    await cluster.runs(low("a"), low("b"))
    cluster.api.always("evict", refused(429))
    await cluster.preempts_for(gang(2))
    assert await cluster.nominated() == {}


@in_fake_time
async def test_members_show_no_node_any_more_once_their_claims_have_ended() -> None:
    cluster = GangCluster(node("n1").gpus(1), node("n2").gpus(1))
    await cluster.runs(low("a"), low("b"))
    await cluster.preempts_for(gang(2))
    await asyncio.sleep(GRACE + TIMEOUT + 1)
    cluster.engine.cycles.tick()
    assert cluster.claims == []
    assert await cluster.nominated() == {"g-0": None, "g-1": None}, "what is wanted last is written"


async def test_a_replica_that_stops_deciding_leaves_nominated_nodes_to_the_next_one() -> None:
    cluster = GangCluster(node("n1").gpus(1), node("n2").gpus(1))
    await cluster.runs(low("a"), low("b"))
    await cluster.preempts_for(gang(2))
    nominated = await cluster.nominated()
    assert gangs_of(cluster.engine).is_nominated(uid(gang(2)[0]))
    cluster.stop_leading()
    assert not gangs_of(cluster.engine).is_nominated(uid(gang(2)[0]))
    assert await cluster.nominated() == nominated


async def test_no_plan_is_changed_for_a_call_about_the_nominated_node_alone() -> None:
    cluster = GangCluster(node("n1").gpus(1), node("n2").gpus(1), node("n3").gpus(1))
    pods = [replace(pod, status={"nominatedNodeName": "n3"}) for pod in gang(2)]
    cluster.create(*pods)
    first = cluster.chosen(pods[0])
    assert cluster.filtered(pods[1], ["n3"])["NodeNames"] is None
    assert cluster.gang().state is GangState.PLANNED
    assert cluster.chosen(pods[1]) in {"n1", "n2"} - {first}


async def test_a_member_that_may_use_its_nominated_node_alone_gets_it() -> None:
    cluster = GangCluster(node("n1").gpus(1), node("n2").gpus(1), node("n3").gpus(1))
    pods = [replace(pod, status={"nominatedNodeName": "n3"}) for pod in gang(2)]
    cluster.create(*pods)
    cluster.chosen(pods[0])
    assert cluster.filtered(pods[1], ["n3"])["NodeNames"] is None
    assert cluster.chosen(pods[1], ["n3"]) == "n3"


async def test_victims_and_members_are_told_of_each_other() -> None:
    cluster = GangCluster(node("n1").gpus(1), node("n2").gpus(1))
    await cluster.runs(low("a"), low("b"))
    await cluster.preempts_for(gang(2))
    assert sorted(cluster.seen.evicted) == [
        ("a", "Preempted by gang default/g (priority 1000) on node n1, which needs its devices"),
        ("b", "Preempted by gang default/g (priority 1000) on node n2, which needs its devices"),
    ]
    assert cluster.seen.texts == [
        "Gang default/g is nominated as a whole: evicting default/a (priority 0) and default/b (priority 0)"
    ]
    answer = cluster.filtered(gang(2)[0])
    [text] = set((answer["FailedNodes"] or answer["FailedAndUnresolvableNodes"]).values())
    assert text == "gang default/g: waits for 2 pods to leave; then all members fit"


async def test_nothing_is_evicted_if_victims_for_some_members_only_are_found() -> None:
    cluster = GangCluster(node("n1").gpus(1), node("n2").gpus(1))
    await cluster.runs(low("a"), low("b").with_priority(1000))
    await cluster.preempts_for(gang(2))
    assert (cluster.evictions, cluster.claims) == ([], [])
    assert cluster.gang().state is GangState.WAITING
    assert cluster.seen.texts == ["Gang default/g: no victims"]


async def test_few_large_pods_leave_rather_than_many_small_ones() -> None:
    cluster = GangCluster(node("n1").gpus(4), node("n2").gpus(4))
    await cluster.runs(low("large", gpu=4), *(low(f"small-{i}") for i in range(4)))
    await cluster.preempts_for(gang(4))
    assert cluster.evictions == ["large"]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("missing", "a member does not exist"),
        ("unasked", "kube-scheduler has not asked for a member"),
        ("gated", "a member is gated"),
        ("patient", "a member never preempts"),
        ("poor", "the lowest priority counts"),
    ],
)
async def test_a_gang_that_is_not_complete_or_may_not_preempt_evicts_none(change: str, why: str) -> None:
    cluster = GangCluster(node("n1").gpus(1), node("n2").gpus(1))
    await cluster.runs(low("a").with_priority(5), low("b").with_priority(5))
    pods = gang(2)
    if change == "missing":
        cluster.refuse_all(pods[:1])
    elif change == "unasked":
        cluster.create(*pods)
        cluster.refuse_all(pods[:1])
    elif change == "gated":
        pods = gang(3, gang_min="2")
        cluster.create(*pods[:2], pods[2].gated())
        cluster.refuse_all(pods[:2])
    elif change == "patient":
        cluster.refuse_all([pods[0], pods[1].with_priority(1000, policy="Never")])
    else:
        cluster.refuse_all([pods[0], pods[1].with_priority(5)])
    await preempt_for(cluster.engine, cluster.gang())
    assert (cluster.evictions, cluster.claims) == ([], []), why


async def test_only_the_minimum_is_made_room_for() -> None:
    cluster = GangCluster(node("n1").gpus(3))
    await cluster.runs(low("a"), low("b"), low("c"))
    await cluster.preempts_for(gang(3, gang_min="2"))
    assert len(cluster.evictions) == 2


async def test_other_gangs_leave_whole_and_members_of_the_same_gang_stay() -> None:
    cluster = GangCluster(node("n1").gpus(2), node("n2").gpus(2))
    others = [low(f"o-{i}").in_gang("o", 3) for i in range(3)]
    cluster.create(*others)
    assert await bind_all(cluster, others) == [""] * 3
    cluster.watch()
    await cluster.runs(low("single").with_priority(3))
    await cluster.preempts_for(gang(2))
    assert sorted(cluster.evictions) == ["o-0", "o-1", "o-2"]


async def test_claimed_places_are_not_taken_while_the_victims_leave_and_what_fits_beside_goes_in() -> None:
    cluster = GangCluster(node("n1").gpus(2), node("n2").gpus(2))
    await cluster.runs(low("half", mem=CARD // 2).with_priority(9), low("b"), low("c"), low("d"))
    await cluster.preempts_for(gang(4, mem=CARD // 2))
    assert len(cluster.claims) == 4
    assert len(cluster.evictions) == 2
    thief, beside = low("thief", mem=CARD // 2 + 1).with_priority(5000), low("beside", mem=CARD // 2)
    cluster.create(thief, beside)
    assert cluster.filtered(beside)["NodeNames"] is None
    cluster.gone(*cluster.evictions)
    assert cluster.filtered(thief)["NodeNames"] is None, "half of a card is free beside the gang"
    await cluster.runs(beside)
    assert sorted(await woken(cluster)) == ["g-0", "g-1", "g-2", "g-3"]
    assert audit(cluster.ledger) == []
    assert await bind_all(cluster, gang(4, mem=CARD // 2)) == [""] * 4


async def test_if_one_eviction_is_refused_all_is_renounced_and_others_are_evicted() -> None:
    cluster = GangCluster(node("n1").gpus(1), node("n2").gpus(1), node("n3").gpus(1))
    await cluster.runs(low("a"), low("b"), low("c").with_priority(5))
    cluster.api.script("evict_dry_run", OK, refused(429))
    await cluster.preempts_for(gang(2))
    assert sorted(cluster.evictions) == ["a", "c"]
    assert cluster.claims == ["n1", "n3"]
    assert "Gang default/g: default/b is not evicted: scripted" in cluster.seen.texts


async def test_if_no_other_set_helps_nothing_stays_claimed() -> None:
    cluster = GangCluster(node("n1").gpus(1), node("n2").gpus(1))
    await cluster.runs(low("a"), low("b"))
    cluster.api.script("evict_dry_run", OK, refused(429))
    await cluster.preempts_for(gang(2))
    assert (cluster.evictions, cluster.claims) == ([], [])
    assert cluster.gang().state is GangState.WAITING


async def test_budgets_of_all_victims_together_hold() -> None:
    cluster = GangCluster(node("n1").gpus(1), node("n2").gpus(1), node("n3").gpus(1))
    cluster.engine.budgets.put(*budget("guard", 1, app="guarded"))
    guarded = [low(name).labelled(app="guarded") for name in ("a", "b")]
    await cluster.runs(*guarded, low("dear").with_priority(9))
    await cluster.preempts_for(gang(2))
    assert len(set(cluster.evictions) & {"a", "b"}) == 1
    assert "dear" in cluster.evictions


@in_fake_time
async def test_claims_end_in_time_and_pods_that_never_leave_are_left_alone() -> None:
    cluster = GangCluster(node("n1").gpus(1), node("n2").gpus(1))
    hasty = low("b")
    await cluster.runs(low("a"), replace(hasty, spec={**hasty.spec, "terminationGracePeriodSeconds": 1}))
    await cluster.preempts_for(gang(2))
    await asyncio.sleep(GRACE + TIMEOUT - 1)
    cluster.engine.cycles.tick()
    assert len(cluster.claims) == 2, "the longest grace counts"
    await asyncio.sleep(2)
    cluster.engine.cycles.tick()
    assert (cluster.claims, cluster.gang().state) == ([], GangState.WAITING)
    await preempt_for(cluster.engine, cluster.gang())
    assert len(cluster.evictions) == 2


async def test_claims_end_with_a_member_and_its_replacement_waits_for_the_same_victims() -> None:
    cluster = GangCluster(node("n1").gpus(1), node("n2").gpus(1))
    await cluster.runs(low("a"), low("b"))
    pods = gang(2)
    await cluster.preempts_for(pods)
    cluster.api.delete_pod("default/g-1")
    cluster.watch()
    assert (cluster.claims, cluster.gang().state) == ([], GangState.WAITING)
    replacement = high("g-2").in_gang("g", 2)
    await cluster.preempts_for([pods[0], replacement])
    assert len(cluster.evictions) == 2
    assert cluster.claims == ["n1", "n2"]


async def test_claims_end_with_the_last_member_and_with_the_tenure() -> None:
    cluster = GangCluster(node("n1").gpus(1), node("n2").gpus(1))
    await cluster.runs(low("a"), low("b"))
    pods = gang(2)
    await cluster.preempts_for(pods)
    cluster.stop_leading()
    assert cluster.claims == []
    cluster.lead_again()
    await cluster.preempts_for(pods)
    assert len(cluster.claims) == 2
    assert len(cluster.evictions) == 2, "those that leave are not evicted again"
    for pod in pods:
        cluster.api.delete_pod(f"default/{pod.name}")
    cluster.watch()
    assert cluster.claims == []


async def test_a_new_process_waits_for_the_victims_that_leave() -> None:
    cluster = GangCluster(node("n1").gpus(1), node("n2").gpus(1))
    await cluster.runs(low("a"), low("b"))
    pods = gang(2)
    await cluster.preempts_for(pods)
    cluster.restart()
    cluster.started()
    await cluster.preempts_for(pods)
    assert sorted(cluster.evictions) == ["a", "b"]
    assert cluster.claims == ["n1", "n2"]
    cluster.gone("a", "b")
    assert sorted(await woken(cluster)) == ["g-0", "g-1"]
    assert await bind_all(cluster, pods) == ["", ""]


async def test_a_place_that_is_lost_before_the_victims_have_left_ends_all_claims() -> None:
    cluster = GangCluster(node("n1").gpus(1), node("n2").gpus(1))
    await cluster.runs(low("a"), low("b"))
    await cluster.preempts_for(gang(2))
    cluster.api.delete_node("n2")
    cluster.gone("a", "b")
    assert await woken(cluster) == []
    assert (cluster.claims, cluster.gang().state) == ([], GangState.WAITING)


async def test_quota_that_victims_free_counts_for_all_members() -> None:
    cluster = GangCluster(node("n1").gpus(2), node("n2").gpus(2))
    await cluster.runs(*(low(f"p{i}") for i in range(4)))
    cluster.ledger.observe_quota(QuotaFacts("default", "q", {"nvidia.com/gpumem": 4 * CARD}))
    await cluster.preempts_for(gang(2))
    assert len(cluster.evictions) == 2


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> list[Demand]:
    """What victims were searched for."""
    found: list[Demand] = []
    search = Preemption.search

    def recorded(preemption: Preemption, demand: Demand) -> Search:
        found.append(demand)
        return (yield from search(preemption, demand))

    monkeypatch.setattr(Preemption, "search", recorded)
    return found


async def test_a_search_in_vain_is_not_repeated_while_nothing_changes(searches: list[Demand]) -> None:
    cluster = GangCluster(node("n1").gpus(1), node("n2").gpus(1))
    await cluster.runs(low("a"), high("b"))
    await cluster.preempts_for(gang(2))
    for _ in range(3):
        tick_gangs(cluster.engine)
        await preempt_for(cluster.engine, cluster.gang())
    await cluster.preempts_for(gang(2))
    assert (len(searches), cluster.evictions) == (1, [])


@pytest.mark.parametrize("change", ["budget", "no budget", "labels", "annotation", "quota", "time", "nodes"])
@in_fake_time
async def test_victims_are_searched_for_again_once_they_can_be_found(change: str) -> None:
    cluster = GangCluster(node("n1").gpus(1), node("n2").gpus(1))
    quota = QuotaFacts("default", "q", {"nvidia.com/gpumem": 10 * CARD})
    victim = low("a").labelled(app="guarded")
    await cluster.runs(low("b"), victim)
    if change == "annotation":
        await cluster.api.annotate_pod("default", "a", {keys.PREEMPTIBLE: "false"})
        cluster.watch()
    elif change == "quota":
        cluster.ledger.observe_quota(replace(quota, limits={"nvidia.com/gpumem": CARD}))
    elif change == "time":
        cluster.engine.victims.spare("uid-a", "its eviction was refused", seconds=30.0)
    elif change != "nodes":
        cluster.engine.budgets.put(*budget("guard", 0, app="guarded"))
    await cluster.preempts_for(gang(2), names=["n1"] if change == "nodes" else None)
    assert cluster.evictions == []
    match change:
        case "annotation":
            await cluster.api.annotate_pod("default", "a", {keys.PREEMPTIBLE: "true"})
        case "quota":
            cluster.ledger.observe_quota(quota)
        case "time":
            await asyncio.sleep(31)
        case "labels":
            pod = cluster.api.pods["default/a"]
            cluster.pods.put("default/a", structs.replace(pod, metadata=structs.replace(pod.metadata, labels={})))
        case "budget":
            cluster.engine.budgets.put(*budget("guard", 1, app="guarded"))
        case "no budget":
            cluster.engine.budgets.drop("default/guard")
        case "nodes":
            cluster.refuse_all(gang(2))
    cluster.watch()
    await preempt_for(cluster.engine, cluster.gang())
    assert sorted(cluster.evictions) == ["a", "b"]


@in_fake_time
async def test_the_preemptor_runs_by_itself_and_waits_for_the_delay() -> None:
    cluster = GangCluster(node("n1").gpus(1), node("n2").gpus(1))
    cluster.settings = replace(cluster.settings, preemption_delay_s=30.0)
    cluster.restart()
    cluster.started()
    await cluster.runs(low("a"), low("b"))
    running = asyncio.gather(preemption_loop_of(cluster.engine).run(), cluster.engine.nominated_nodes.run())
    cluster.refuse_all(gang(2))
    await asyncio.sleep(29)
    assert cluster.evictions == []
    await asyncio.sleep(2)
    assert sorted(cluster.evictions) == ["a", "b"]
    assert sorted(cluster.api.nominated) == ["default/g-0", "default/g-1"]
    running.cancel()


async def test_the_preempt_verb_names_no_node_while_the_gang_preempts_itself() -> None:
    cluster = GangCluster(node("n1").gpus(1), node("n2").gpus(1))
    await cluster.runs(low("a"), low("b"))
    pods = gang(2)
    await cluster.preempts_for(pods)
    assert await cluster.preempt_verb(pods[0], {"n1": ["cpu-hog"]}) == {}


async def test_the_preempt_verb_names_the_planned_nodes_of_a_gang_and_no_other() -> None:
    cluster = GangCluster(node("n1").gpus(1), node("n2").gpus(1), node("n3").gpus(1))
    pods = gang(2)
    cluster.create(*pods)
    first = cluster.chosen(pods[0])
    [planned] = [hold.node for hold in gangs_of(cluster.engine).holds.of(cluster.gang())]
    victims: dict[str, Sequence[str]] = {name: ["cpu-hog"] for name in ("n1", "n2", "n3")}
    assert first != planned
    assert await cluster.preempt_verb(pods[1], victims) == {planned: ["cpu-hog"]}


async def test_a_replacement_in_a_gang_that_runs_never_evicts_its_own_gang() -> None:
    cluster = GangCluster(node("n1").gpus(1), node("n2").gpus(1))
    driver, worker = high("driver").in_gang("g", 2), low("worker").in_gang("g", 2)
    cluster.create(driver, worker)
    assert await bind_all(cluster, [driver, worker]) == ["", ""]
    cluster.watch()
    cluster.gone("driver")
    await cluster.runs(low("thief").with_priority(2000))
    await cluster.preempts(high("driver-2").in_gang("g", 2))
    assert cluster.evictions == []
