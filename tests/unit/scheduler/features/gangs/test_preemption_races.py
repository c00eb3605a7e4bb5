"""What changes while a gang looks for victims, is nominated and waits for them to leave."""

from __future__ import annotations

import asyncio
from itertools import count

import pytest

from tessera.core.ledger.audit import audit
from tessera.core.model.grants import Grant, Placement
from tessera.core.search.gang_trial import Placed
from tessera.core.search.preemption import Demand, Preemption, Search, VictimSet
from tessera.core.search.victims import Cost
from tessera.scheduler.eviction import preemption_loop
from tessera.scheduler.features.gangs import preemption
from tessera.scheduler.features.gangs.gang import GangState
from tests.support.builders import node
from tests.support.event_loops import in_fake_time
from tests.support.fake_cluster import OK, Step
from tests.support.gangs import woken
from tests.support.preemption import GangCluster, high, low
from tests.support.preemption import important_gang as gang
from tests.support.stepwise_scheduler import gangs_of, preempt_for, preemption_loop_of, uid


@pytest.fixture
def _pausing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Searches and claims pause at each step."""
    monkeypatch.setattr(preemption_loop, "SLICE_S", -1.0)
    monkeypatch.setattr(preemption, "MEMBERS_AT_ONCE", 1)


async def until_claimed(cluster: GangCluster, count: int) -> None:
    while len(cluster.ledger.nominations) < count:
        await asyncio.sleep(0)


async def test_a_pod_that_leaves_while_victims_are_searched_for_saves_another_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = GangCluster(node("n1").gpus(2), node("n2").gpus(1))
    await cluster.runs(low("a"), high("neighbour"), low("c"))
    search = Preemption.search

    def late(preemption: Preemption, demand: Demand) -> Search:
        found = yield from search(preemption, demand)
        if "default/neighbour" in cluster.api.pods:
            cluster.gone("neighbour")
        return found

    monkeypatch.setattr(Preemption, "search", late)
    await cluster.preempts_for(gang(2))
    assert len(cluster.evictions) == 1
    assert len(cluster.claims) == 2


@pytest.mark.no_cover
@pytest.mark.usefixtures("_pausing")
@pytest.mark.parametrize("victim", "abcd")
@pytest.mark.parametrize("pause", range(8))
async def test_a_victim_may_go_in_any_pause_of_the_search(
    pause: int, victim: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = GangCluster(node("n1").gpus(2), node("n2").gpus(2))
    await cluster.runs(*(low(name) for name in "abcd"))
    search = Preemption.search

    def interrupted(preemption: Preemption, demand: Demand) -> Search:
        steps = search(preemption, demand)
        for number in count():
            try:
                next(steps)
            except StopIteration as end:
                found: VictimSet | None = end.value
                return found
            if number == pause and f"default/{victim}" in cluster.api.pods:
                cluster.gone(victim)
            yield
        raise AssertionError

    monkeypatch.setattr(Preemption, "search", interrupted)
    await cluster.preempts_for(gang(3))
    assert len(cluster.claims) == 3
    assert len(cluster.evictions) == 3 - (f"default/{victim}" not in cluster.api.pods)


@pytest.mark.usefixtures("_pausing")
async def test_no_pod_is_evicted_if_a_member_goes_before_all_places_are_claimed() -> None:
    cluster = GangCluster(node("n1").gpus(2), node("n2").gpus(2))
    await cluster.runs(*(low(name) for name in "abcd"))
    cluster.refuse_all(gang(3))
    preempting = asyncio.ensure_future(preempt_for(cluster.engine, cluster.gang()))
    await until_claimed(cluster, 1)
    cluster.gone("g-1")
    await preempting
    assert (cluster.evictions, cluster.claims) == ([], [])


@pytest.mark.usefixtures("_pausing")
async def test_no_pod_is_evicted_if_a_victim_opts_out_before_all_places_are_claimed() -> None:
    cluster = GangCluster(node("n1").gpus(2))
    await cluster.runs(low("a"), low("b"))
    cluster.refuse_all(gang(2))
    preempting = asyncio.ensure_future(preempt_for(cluster.engine, cluster.gang()))
    await until_claimed(cluster, 1)
    cluster.engine.victims.spare("uid-a", "it opted out", seconds=60.0)
    await preempting
    assert (cluster.evictions, cluster.claims) == ([], [])


@pytest.mark.usefixtures("_pausing")
async def test_claims_are_not_redeemed_before_all_places_are_claimed() -> None:
    cluster = GangCluster(node("n1").gpus(2))
    await cluster.runs(low("a"), low("b"))
    cluster.refuse_all(gang(2))
    preempting = asyncio.ensure_future(preempt_for(cluster.engine, cluster.gang()))
    await until_claimed(cluster, 1)
    cluster.gone("a", "b")
    assert await woken(cluster) in ([], ["g-0", "g-1"])
    assert gangs_of(cluster.engine).holds.count(cluster.gang()) in (0, 2), "all or nothing"
    await preempting
    assert cluster.evictions == []


@pytest.mark.usefixtures("_pausing")
async def test_a_member_that_goes_while_claims_become_holds_ends_all_of_them() -> None:
    cluster = GangCluster(node("n1").gpus(3))
    await cluster.runs(low("a"), low("b"), low("c"))
    await cluster.preempts_for(gang(3))
    cluster.gone("a", "b", "c")
    waking = asyncio.ensure_future(woken(cluster))
    while len(cluster.ledger.nominations) == 3:
        await asyncio.sleep(0)
    cluster.gone("g-1")
    await waking
    assert cluster.claims == []
    assert cluster.gang().state is not GangState.NOMINATED
    assert audit(cluster.ledger) == []


async def test_a_gang_that_is_deleted_before_its_evictions_begin_evicts_nothing() -> None:
    cluster = GangCluster(node("n1").gpus(1), node("n2").gpus(1))
    await cluster.runs(low("a"), low("b"))
    pods = gang(2)
    cluster.refuse_all(pods)
    running = asyncio.ensure_future(preemption_loop_of(cluster.engine).run())
    found = cluster.gang()
    while found.state is not GangState.NOMINATED:
        await asyncio.sleep(0)
    for pod in pods:
        cluster.api.delete_pod(f"default/{pod.name}")
    cluster.watch()
    for _ in range(5):
        await asyncio.sleep(0)
    assert not running.done()
    assert (cluster.evictions, cluster.claims) == ([], [])
    running.cancel()


@pytest.mark.parametrize(("priority", "expected"), [(2000, ["g-0", "g-1"]), (500, ["high"])], ids=["gang", "pod"])
@in_fake_time
async def test_of_a_gang_and_a_pod_that_want_the_same_victims_the_higher_priority_gets_them(
    priority: int, expected: list[str]
) -> None:
    cluster = GangCluster(node("n1").gpus(1), node("n2").gpus(1))
    await cluster.runs(low("a"), low("b"))
    cluster.refuse_all(gang(2, priority=priority))
    cluster.refuse(high(gpu=1))
    running = asyncio.ensure_future(preemption_loop_of(cluster.engine).run())
    await asyncio.sleep(60)
    running.cancel()
    nominated = {str(each.meant_for or each.uid).removeprefix("uid-") for each in cluster.ledger.nominations.all()}
    assert sorted(nominated) == expected


async def test_members_are_nominated_for_the_places_that_were_found_in_whatever_order() -> None:
    """The small one fits on both cards, and would take the one that the large one needs."""
    cluster = GangCluster(node("n1").gpu("n1-0", memory=40_000).gpu("n1-1", memory=20_000))
    await cluster.runs(low("a", mem=40_000), low("b", mem=20_000))
    small, large = (high(f"g-{mem}", mem=mem).in_gang("g", 2) for mem in (15_000, 35_000))
    cluster.refuse_all([small, large])
    uuids = {small.name: "n1-1", large.name: "n1-0"}
    places = []
    for pod in (small, large):
        grant = Grant(uuids[pod.name], "NVIDIA", 15_000 if pod is small else 35_000, 0)
        places.append(Placed(pod.request(), Placement("n1", {"NVIDIA": ((grant,),)})))
    found = VictimSet(Cost(), ("uid-a", "uid-b"), (), tuple(places))
    assert await gangs_of(cluster.engine).nominations.nominate(
        cluster.gang(), found, changed=frozenset(), priority=1000, seconds=60.0, searched=0.0
    )
    held = {str(each.meant_for): list(each.holdings) for each in cluster.ledger.nominations.all()}
    assert held == {uid(pod): [uuids[pod.name]] for pod in (small, large)}


async def test_a_member_is_no_victim_while_another_one_is_being_bound() -> None:
    cluster = GangCluster(node("n1").gpus(1), node("n2").gpus(1))
    members = [low(f"m-{number}").in_gang("m", 2) for number in (0, 1)]
    cluster.create(*members)
    nodes = [cluster.chosen(pod) for pod in members]
    found: list[VictimSet | None] = []

    def one_is_shown() -> None:
        """Of two Bindings the first has arrived."""
        cluster.watch()
        important = high().request()
        candidates = cluster.engine.selector.candidates(["n1", "n2"])
        found.append(cluster.engine.preemption.find_for_pod(important, priority=1000, candidates=candidates))

    cluster.api.script("bind", OK, Step(meanwhile=one_is_shown))
    assert await asyncio.gather(*map(cluster.bound, members, nodes)) == ["", ""]
    assert found == [None]
    cluster.watch()
    candidates = cluster.engine.selector.candidates(["n1", "n2"])
    both = cluster.engine.preemption.find_for_pod(high().request(), priority=1000, candidates=candidates)
    assert both is not None
    assert both.victims == ("uid-m-0", "uid-m-1")
