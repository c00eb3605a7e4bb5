"""Gangs and nominations on the page: rows of gangs that wait, places that are held, claims, and their records."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tessera.core.ledger.holders import held_gang, owner_of
from tessera.inspect.dashboard.scheduler_page import EngineSource, SchedulerPage
from tessera.inspect.dashboard.source import FixedSource, RecordedSource
from tessera.inspect.dashboard.steps import pause_for
from tessera.inspect.dashboard.waiting import WaitingPods
from tessera.inspect.offline_cluster import OfflineCluster
from tessera.kube.resources import PODS
from tessera.scheduler.engine_view import EngineView
from tessera.scheduler.service import Service
from tessera.wire import journal
from tessera.wire.objects import Metadata, Pod
from tests.support.builders import NOW, PodBuilder, cluster, gpu_pod, node
from tests.support.cluster_states import state_of
from tests.support.event_loops import in_fake_time
from tests.support.gangs import gang, machine
from tests.support.journals import RecordedCluster
from tests.support.page import Page, decoded, pods_of
from tests.support.preemption import GangCluster, low
from tests.support.preemption import important_gang as important
from tests.support.stepwise_scheduler import World, serving_downward_api, using_downward_api

PLAN_ENDS = NOW + 20
"""of a plan that is made when fake time begins"""


def of_snapshot(*pods: PodBuilder, cards: int = 2) -> Page:
    return Page(FixedSource(OfflineCluster(state_of([node("n1").gpus(cards, slots=1)], list(pods)))))


def of_scheduler(world: World, page: SchedulerPage | None = None) -> Page:
    service = SimpleNamespace(
        view=EngineView(world.engine),
        journal=SimpleNamespace(begin=0.0),
        settings=SimpleNamespace(scheduler_name="hami-scheduler"),
        unsynced=lambda: "",
        is_leader=True,
    )
    return Page(EngineSource(cast("Service", service), page or SchedulerPage()))


def members(count: int, size: int, **asks: int) -> list[PodBuilder]:
    return [gpu_pod(f"train-{number}", **asks).in_gang("train", size) for number in range(count)]


async def judged(page: Page) -> list[Any]:
    """What waits, once every answer is known."""
    viewer = await page.follow()
    state = await viewer.until(lambda state: all(one["why"] != "not judged yet" for one in state["waiting"].values()))
    return list(state["waiting"].values())


# -- rows


@in_fake_time
async def test_a_gang_that_does_not_fit_is_one_row_with_the_whole_reason() -> None:
    page = of_snapshot(*members(3, 3, gpu=1), gpu_pod("alone", gpu=4))
    rows = await judged(page)
    assert [one["name"] for one in rows] == ["train", "alone"], "members have no rows of their own"
    row = rows[0]
    assert {key: row["gang"][key] for key in ("size", "required", "exist", "fit", "gated", "bound")} == {
        "size": 3,
        "required": 3,
        "exist": 3,
        "fit": 2,
        "gated": 0,
        "bound": 0,
    }
    assert "2 of 3 members fit" in row["why"]
    assert row["gang"]["members"] == [[f"train-{number}", "waits", ""] for number in range(3)]


@in_fake_time
async def test_a_gang_whose_members_do_not_exist_or_are_gated_says_so() -> None:
    gated = gpu_pod("train-9", gpu=1).in_gang("train", 3).gated()
    page = of_snapshot(*members(1, 3, gpu=1), gated)
    (row,) = await judged(page)
    assert (row["gang"]["exist"], row["gang"]["gated"], row["gang"]["fit"]) == (1, 1, None)
    assert "1 of 3 members exist" in row["why"]


@in_fake_time
async def test_a_gang_is_judged_by_the_members_that_are_left() -> None:
    here = OfflineCluster(state_of([node("n1").gpus(2, slots=1)], members(3, 3, gpu=1)))
    source = FixedSource(here)
    waiting = WaitingPods(source)
    for gone, left in (((), ["2 of 3 members fit"]), ((0,), ["2 of 3 members exist"]), ((1, 2), [])):
        waiting.refresh()
        for number in gone:
            here.drop(PODS, f"default/train-{number}")
            source.pending.drop(f"default/train-{number}")
        await waiting.judge(pause_for(1.0))
        waiting.refresh()
        assert [part for part, row in zip(left, waiting.rows.values(), strict=True) if part not in row.why] == []


@in_fake_time
async def test_a_gang_waits_no_shorter_when_the_member_that_waited_longest_is_gone() -> None:
    state = state_of([node("n1").gpus(2, slots=1)], members(3, 3, gpu=1))
    for number, pod in enumerate(state.pods):
        pod["metadata"]["creationTimestamp"] = f"2025-11-16T20:00:{number:02}Z"
    source = FixedSource(OfflineCluster(state))
    waiting, created = WaitingPods(source), datetime(2025, 11, 16, 20, tzinfo=UTC).timestamp()
    for _ in range(2):
        waiting.refresh()
        assert [row.since for row in waiting.rows.values()] == [created]
        source.cluster.drop(PODS, "default/train-0")
        source.pending.drop("default/train-0")
    waiting.clear()
    waiting.refresh()
    assert [row.since for row in waiting.rows.values()] == [created + 1]


@in_fake_time
async def test_a_gang_that_is_bound_has_no_row_and_its_pods_name_it() -> None:
    here = cluster(node("n1").gpus(2, slots=1))
    pods = [here.start(one) for one in members(2, 2, gpu=1)]
    page = of_snapshot(*pods)
    state = await page.get("/api/state")
    assert state["waiting"] == {}
    assert [pod[6] for pod in pods_of(state).values()] == ["train", "train"]


@in_fake_time
async def test_waiting_members_count_as_demand() -> None:
    page = of_snapshot(*members(3, 3, gpu=1, mem=7_000))
    await judged(page)
    assert sum(page.state.waiting.asked.values()) == 3


# -- the scheduler's own page


@in_fake_time
async def test_the_scheduler_tells_its_own_reason_and_how_many_fit() -> None:
    world = World(machine("n1", cards=2))
    pods = gang(3)
    world.create(*pods)
    for pod in pods:
        world.filtered(pod)
    page = of_scheduler(world)
    (row,) = await judged(page)
    assert "2 of 3 members fit" in row["why"]
    assert (row["gang"]["fit"], row["gang"]["until"]) == (2, None)
    assert row["since"] == NOW


@in_fake_time
async def test_a_gang_waits_since_its_members_were_created_whichever_process_decides() -> None:
    world, page = World(machine("n1", cards=2)), SchedulerPage()
    pods = gang(3)
    world.create(*pods)
    for number, pod in enumerate(pods):
        world.filtered(pod)
        metadata = Metadata(name=pod.name, creation_timestamp=f"1970-01-01T00:0{number + 1}:00Z")
        page.refusals.add(f"uid-{pod.name}", Pod(metadata=metadata), NOW)
    shown = of_scheduler(world, page)
    (row,) = await judged(shown)
    assert row["since"] == 60.0


@in_fake_time
async def test_places_that_are_held_name_their_gang_and_their_end() -> None:
    world = World(machine("n1", cards=2))
    first, _ = gang(2)
    world.create(first)
    world.chosen(first)
    page = of_scheduler(world)
    state = await page.get("/api/state")
    (held,) = [pod for uid, pod in pods_of(state).items() if owner_of(uid) != uid]
    assert held == ["default", "g (held)", "Gang", "g", "held", None, "g", PLAN_ENDS]
    (row,) = await judged(page)
    assert row["gang"]["until"] == PLAN_ENDS
    assert row["gang"]["members"] == [["g-0", "reserved", "n1"]]
    assert "0 of 2 members have come to be bound" in row["why"]


@in_fake_time
async def test_a_nominated_pod_still_waits_and_its_claim_is_on_the_card() -> None:
    world = World(serving_downward_api(node("n1").gpus(1, slots=1)))
    low, high = using_downward_api(gpu_pod("low", gpu=1)), using_downward_api(gpu_pod("high", gpu=1))
    await world.run(low)
    world.create(high)
    world.filtered(high)
    cycle, victim = world.engine.cycles.get("uid-high"), world.ledger.pod("uid-low")
    assert cycle is not None
    assert victim is not None
    facts = victim.facts._replace(uid="uid-high", name="high")
    world.engine.cycles.nominate(cycle, facts, frozenset({"uid-low"}), deadline=300.0)
    page = of_scheduler(world)
    (row,) = await judged(page)
    assert row["why"] == "nominated for n1: it waits until default/low has left"
    ((card,),) = [one["cards"] for one in (await page.get("/api/state"))["nodes"].values()]
    (claim,) = card[13]
    assert (claim["name"], claim["leaving"]) == ("high", ["uid-low"])
    assert claim["until"] == NOW + 300


@in_fake_time
async def test_a_gang_that_others_leave_for_waits_and_claims_in_its_own_name() -> None:
    world = GangCluster(node("n1").gpus(1), node("n2").gpus(1))
    await world.runs(low("a"), low("b"))
    await world.preempts_for(important(2))
    page = of_scheduler(world)
    (row,) = await judged(page)
    assert (row["name"], row["why"]) == ("g", "waits for 2 pods to leave; then all members fit")
    assert row["gang"]["until"] is not None
    nodes = (await page.get("/api/state"))["nodes"]
    claims = [claim for one in nodes.values() for card in one["cards"] for claim in card[13]]
    assert [(claim["name"], claim["isGang"], claim["until"]) for claim in claims] == [
        ("g", True, row["gang"]["until"])
    ] * 2
    assert sorted(uid for claim in claims for uid in claim["leaving"]) == ["uid-a", "uid-b"]


def test_the_gang_of_a_hold_is_read_from_its_uid() -> None:
    pod = gpu_pod().on("n1", "G,NVIDIA,100,0:;").facts()
    held = pod._replace(uid="gang/default/a/b/7")
    assert held_gang(held) == "a/b", "a name may have a slash, where it is an annotation"
    assert held_gang(pod) == ""


# -- time


async def test_the_past_shows_claims_and_tells_of_gangs_and_nominations() -> None:
    here = RecordedCluster().add(node("n1").gpus(1, slots=1))
    here.decide(gpu_pod("low", gpu=1))
    victim = here.ledger.pod("uid-low")
    assert victim is not None
    here.ledger.nominate(victim.facts._replace(uid="uid-high", name="high"), frozenset({"uid-low"}))
    here.note(journal.Gang, namespace="default", name="train", state="waiting", text="2 of 3 members fit")
    page = Page(RecordedSource(here.records, name="j"))
    records = (await page.get("/api/journal"))["records"]
    told = {one["kind"]: (one["pod"], one["node"], one["text"]) for one in records}
    assert told["gang"] == ("", "", "default/train is waiting: 2 of 3 members fit")
    assert told["nominated"][:2] == ("default/high", "n1")
    assert told["nominated"][2].startswith("for it 1 pod must leave: card 0")
    ((card,),) = [one["cards"] for one in (await page.get(f"/api/state?time={NOW + 99}"))["nodes"].values()]
    assert [claim["name"] for claim in card[13]] == ["high"]


# -- what if


def job(parallelism: int, cards: int, **more: str) -> str:
    annotations = {"tessera.io/gang": "train", "tessera.io/gang-size": str(parallelism), **more}
    containers = [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": cards}}}]
    template = {"metadata": {"annotations": annotations}, "spec": {"containers": containers}}
    spec = {"parallelism": parallelism, "completions": parallelism, "template": template}
    return json.dumps({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "train"}, "spec": spec})


@pytest.mark.parametrize(("parallelism", "placed"), [(2, 2), (3, 0)])
async def test_a_job_that_is_a_gang_is_tried_as_a_whole(parallelism: int, placed: int) -> None:
    page = of_snapshot(cards=2)
    found = decoded(await page.ask("/api/whatif", method="POST", body=job(parallelism, 1).encode()))
    (gang_found,) = found["gangs"]
    assert (gang_found["name"], gang_found["size"], gang_found["fits"]) == ("train", parallelism, placed > 0)
    assert f"{min(parallelism, 2)} " in gang_found["why"]
    assert len(found["pods"]) == placed, "of a gang that does not fit no member is placed"


async def test_the_topology_of_a_gang_that_does_not_exist_yet_is_that_of_the_nodes() -> None:
    nodes = [node(f"n{number}").gpus(1, slots=1).label("zone", f"z{number % 2}") for number in range(4)]
    page = Page(FixedSource(OfflineCluster(state_of(nodes, []))))
    body = job(2, 1, **{"tessera.io/gang-topology": "zone"}).encode()
    found = decoded(await page.ask("/api/whatif", method="POST", body=body))
    assert "all 2 members fit together, in 1 of zone: z" in found["gangs"][0]["why"]
