"""Faults of the API server, and objects that change during a bind: the ledger is right after each."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tessera.kube.backoff import Backoff
from tessera.kube.resources import NODES
from tessera.scheduler import versioned_write
from tessera.scheduler.pod_cycle import HOLDS_RESERVATION
from tessera_lab.sandbox.api.faults import Drop, Fail, Fault, Hold, LoseAnswer
from tessera_lab.sandbox.api.kinds import NODES as NODE_KIND
from tessera_lab.sandbox.api.kinds import PODS as POD_KIND
from tessera_lab.sandbox.api.kinds import ResourceKind
from tessera_lab.sandbox.nodes.node import SimulatedNode, gpu_cards
from tessera_lab.sandbox.scheduling.extender_client import ExtenderError
from tests.support.ledger_replay import wrong_slices
from tests.support.product import Product, gpu_pod, product

BINDING = "/pods/p/binding$"
POD = "/pods/p$"
US = "tessera-scheduler"


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the attempts of one bind."""
    monkeypatch.setattr(versioned_write, "PAUSES", Backoff(initial=0.02, cap=3.0))


def node(name: str = "n1", count: int = 1, **more: str) -> SimulatedNode:
    return SimulatedNode(name, gpu_cards(name, count), **more)


def bindings(cluster: Product) -> list[int]:
    """The answers to what was written."""
    return [seen.status for seen in cluster.writes() if seen.path.endswith("/binding")]


# -- the write


@pytest.mark.parametrize("agent", ["env", "hami"])
@pytest.mark.parametrize(
    ("fault", "answers"),
    [
        (LoseAnswer(), [0]),
        (Drop(), [0, 201]),
        (Fail(429, retry_after_s=0), [429, 201]),
        (Fail(500), [500, 201]),
        (Fail(503), [503, 201]),
    ],
    ids=["answer lost after the effect", "connection cut before it", "429", "500", "503"],
)
async def test_a_bind_survives_a_fault_of_its_write(
    tmp_path: Path, fault: Fault, answers: list[int], agent: str
) -> None:
    async with product([node(agent=agent)], tmp_path) as cluster:
        cluster.plane.server.faults.next(fault, method="POST", path=BINDING)
        await cluster.plane.create_pod(gpu_pod("p", gpu=1))
        await cluster.running_pods("p")
        await cluster.at_rest()
        assert bindings(cluster) == answers
        assert list(wrong_slices(cluster.plane)) == []


@pytest.mark.parametrize("status", [403, 409])
async def test_a_refused_write_gives_the_pod_back_to_kube_scheduler_and_keeps_its_place(
    tmp_path: Path, status: int
) -> None:
    async with product([node()], tmp_path) as cluster:
        cluster.plane.server.faults.next(Fail(status, message="not today"), method="POST", path=BINDING)
        await cluster.plane.create_pod(gpu_pod("p", gpu=1))
        assert "not today" in await cluster.refused("p")
        assert cluster.service.engine.cycles.count(*HOLDS_RESERVATION) == 1
        await cluster.running_pods("p")
        await cluster.at_rest()
        assert bindings(cluster) == [status, 201]


async def test_an_api_server_that_refuses_for_long_fails_the_bind_and_nothing_else(tmp_path: Path) -> None:
    async with product([node(count=2)], tmp_path) as cluster:
        cluster.plane.server.faults.next(Fail(500), method="POST", path=BINDING, times=4)
        await cluster.plane.create_pod(gpu_pod("p", gpu=1))
        await cluster.plane.create_pod(gpu_pod("q", gpu=1))
        await cluster.running_pods("p", "q")
        await cluster.at_rest()


@pytest.mark.parametrize("fault", [LoseAnswer(), Drop()], ids=["written", "not written"])
async def test_a_write_whose_fate_cannot_be_looked_up_is_held_until_the_watch_shows_it(
    tmp_path: Path, fault: Fault
) -> None:
    async with product([node()], tmp_path) as cluster:
        faults = cluster.plane.server.faults
        faults.next(fault, method="POST", path=BINDING)
        faults.next(Fail(500), method="GET", path=POD, agent=US, times=4)
        await cluster.plane.create_pod(gpu_pod("p", gpu=1))
        await cluster.running_pods("p")
        await cluster.at_rest()
        assert [answer for answer in bindings(cluster) if answer == 201] == ([] if fault == LoseAnswer() else [201])


async def test_events_that_cannot_be_written_delay_no_pod(tmp_path: Path) -> None:
    async with product([node()], tmp_path) as cluster:
        cluster.plane.server.faults.next(Fail(500), path="/events", agent=US, times=1000)
        await cluster.plane.create_pod(gpu_pod("p", gpu=1))
        await cluster.running_pods("p")
        await cluster.at_rest()


# -- the pod, under a bind


async def held_bind(cluster: Product) -> Hold:
    """A bind of the pod `p` that stands just before its write."""
    held = Hold(asyncio.Event(), asyncio.Event())
    cluster.plane.server.faults.next(held, method="POST", path=BINDING)
    await cluster.plane.create_pod(gpu_pod("p", gpu=1))
    await held.reached.wait()
    return held


@pytest.mark.parametrize("agent", ["env", "hami"])
async def test_a_pod_deleted_during_its_bind_frees_its_card(tmp_path: Path, agent: str) -> None:
    async with product([node(agent=agent)], tmp_path) as cluster:
        held = await held_bind(cluster)
        await cluster.plane.delete_pod("default", "p")
        held.release.set()
        await cluster.at_rest()
        assert bindings(cluster) == [404]
        await cluster.plane.create_pod(gpu_pod("q", gpu=1))
        await cluster.running_pods("q")
        await cluster.at_rest()


@pytest.mark.parametrize("agent", ["env", "hami"])
async def test_a_pod_created_again_under_its_name_is_not_given_the_old_ones_place(tmp_path: Path, agent: str) -> None:
    async with product([node(agent=agent)], tmp_path) as cluster:
        held = await held_bind(cluster)
        await cluster.plane.delete_pod("default", "p")
        again = await cluster.plane.create_pod(gpu_pod("p", gpu=1, mem=500))
        held.release.set()
        await cluster.running_pods("p")
        await cluster.at_rest()
        assert bindings(cluster) == [409, 201]
        seen = cluster.plane.nodes["n1"].containers[again["metadata"]["uid"], "main"]
        assert seen.env["CUDA_DEVICE_MEMORY_LIMIT_0"] == "500m"


async def test_a_pod_that_another_scheduler_bound_meanwhile_counts_where_it_is(tmp_path: Path) -> None:
    async with product([node("n1"), node("n2")], tmp_path, scheduling=False) as cluster:
        asking = await cluster.plane.create_pod(gpu_pod("p", gpu=1))
        async with cluster.extender() as extender:
            (chosen,) = (await extender.filter(asking, ["n1", "n2"])).nodes
            other = "n1" if chosen == "n2" else "n2"
            # Nobody plays its kubelet: the other scheduler's pod is none of this agent's business.
            card = (await cluster.plane.fleet.remove(other)).cards[0].uuid
            await cluster.plane.client.bind(
                "default",
                "p",
                uid=asking["metadata"]["uid"],
                node=other,
                annotations={"hami.io/vgpu-devices-allocated": f"{card},NVIDIA,100,10:;"},
            )
            with pytest.raises(ExtenderError, match=f"bound to {other}"):
                await extender.bind(asking, chosen)
        await cluster.at_rest()
        assert [entry.facts.node for entry in cluster.ledger.pods()] == [other]


async def test_a_pod_deleted_between_filter_and_bind_is_not_bound(tmp_path: Path) -> None:
    async with product([node()], tmp_path, scheduling=False) as cluster:
        asking = await cluster.plane.create_pod(gpu_pod("p", gpu=1))
        async with cluster.extender() as extender:
            await extender.filter(asking, ["n1"])
            await cluster.plane.delete_pod("default", "p")
            with pytest.raises(ExtenderError):
                await extender.bind(asking, "n1")
        await cluster.at_rest()
        assert cluster.ledger.pods() == []


# -- the node, under a bind


async def test_a_node_that_goes_between_filter_and_bind_gets_nothing(tmp_path: Path) -> None:
    async with product([node("n1"), node("n2")], tmp_path, scheduling=False) as cluster:
        plane = cluster.plane
        asking = await plane.create_pod(gpu_pod("p", gpu=1))
        async with cluster.extender() as extender:
            (chosen,) = (await extender.filter(asking, ["n1", "n2"])).nodes
            await plane.fleet.remove(chosen)
            await plane.client.delete(NODES.path(name=chosen))
            await cluster.until(lambda: cluster.ledger.node(chosen) is None)
            with pytest.raises(ExtenderError, match=f"node {chosen} "):
                await extender.bind(asking, chosen)
            (other,) = (await extender.filter(asking, ["n1", "n2"])).nodes
            await extender.bind(asking, other)
        await cluster.running_pods("p")
        await cluster.at_rest()
        assert bindings(cluster) == [201]


async def test_a_card_that_goes_between_filter_and_bind_is_not_handed_out(tmp_path: Path) -> None:
    async with product([node(count=2)], tmp_path) as cluster:
        simulated = cluster.plane.nodes["n1"]
        await cluster.plane.create_pod(gpu_pod("first", gpu=1))
        await cluster.running_pods("first")
        await cluster.plane.start_scheduling("http://127.0.0.1:1")  # no extender is asked from here on
        asking = await cluster.plane.create_pod(gpu_pod("p", gpu=1))
        async with cluster.extender() as extender:
            assert (await extender.filter(asking, ["n1"])).nodes == ("n1",)
            entry = cluster.ledger.pod(asking["metadata"]["uid"])
            assert entry is not None
            gone = entry.facts.grants["NVIDIA"][0][0].uuid
            await simulated.set_cards([card for card in simulated.cards if card.uuid != gone])
            await cluster.until(lambda: len(view.cards) == 1 if (view := cluster.ledger.node("n1")) else False)
            with pytest.raises(ExtenderError, match="node n1 lost its devices"):
                await extender.bind(asking, "n1")
        await cluster.at_rest()


# -- watches


@pytest.mark.parametrize("kind", [POD_KIND, NODE_KIND], ids=["pods", "nodes"])
@pytest.mark.parametrize("compacted", [False, True], ids=["resumed", "too old"])
@pytest.mark.parametrize("how", ["cut", "ended"])
async def test_what_happens_while_a_watch_is_down_is_known_afterwards(
    tmp_path: Path, how: str, compacted: bool, kind: ResourceKind
) -> None:
    async with product([node("n1"), node("n2")], tmp_path) as cluster:
        plane, faults = cluster.plane, cluster.plane.server.faults
        for name in ("goes", "stays"):
            await plane.create_pod(gpu_pod(name, gpu=1))
        await cluster.running_pods("goes", "stays")
        await cluster.at_rest()
        stop = faults.cut_watches if how == "cut" else faults.end_watches
        assert stop(kind, agent=US) == 1
        await plane.delete_pod("default", "goes", grace_s=0)
        await plane.nodes["n1"].set_cards(gpu_cards("n1", 3))
        if compacted:
            faults.compact()
        await cluster.at_rest()
        assert [entry.facts.name for entry in cluster.ledger.pods()] == ["stays"]


async def test_a_scheduler_starts_although_its_first_lists_fail(tmp_path: Path) -> None:
    async with product([node()], tmp_path) as cluster:
        await cluster.kill_scheduler()
        faults = cluster.plane.server.faults
        faults.next(Fail(500), method="GET", path="/pods$", agent=US)
        faults.next(Fail(429, retry_after_s=0), method="GET", path="/nodes$", agent=US)
        faults.next(Drop(), method="GET", path="/resourcequotas$", agent=US)
        await cluster.start_scheduler()
        await cluster.plane.create_pod(gpu_pod("p", gpu=1))
        await cluster.running_pods("p")
        await cluster.at_rest()
