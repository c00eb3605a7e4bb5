"""The scheduler, kube-scheduler and the API server end at any moment: nothing is lost or granted twice."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp
import pytest

from tessera_lab.sandbox.api.faults import Fail, Hold
from tessera_lab.sandbox.api.kinds import PODS
from tessera_lab.sandbox.nodes.allocation import ALLOCATED
from tessera_lab.sandbox.nodes.node import SimulatedNode, gpu_cards
from tessera_lab.sandbox.objects import annotations_of
from tessera_lab.sandbox.scheduling.extender_client import ExtenderError
from tests.support.ledger_replay import wrong_slices
from tests.support.product import Product, gpu_pod, product

BINDING = "/binding$"


def node(name: str = "n1", count: int = 1, **more: str) -> SimulatedNode:
    return SimulatedNode(name, gpu_cards(name, count), **more)


def hold(*, after_effect: bool = False) -> Hold:
    return Hold(asyncio.Event(), asyncio.Event(), after_effect=after_effect)


async def test_a_restart_between_filter_and_bind_places_the_pod_again_on_its_node(tmp_path: Path) -> None:
    async with product([node("n1"), node("n2")], tmp_path, scheduling=False) as cluster:
        asking = await cluster.plane.create_pod(gpu_pod("p", gpu=1))
        async with cluster.extender() as extender:
            (chosen,) = (await extender.filter(asking, ["n1", "n2"])).nodes
        await cluster.restart_scheduler()
        async with cluster.extender() as extender:
            await extender.bind(asking, chosen)
        await cluster.running_pods("p")
        await cluster.at_rest()
        assert list(wrong_slices(cluster.plane)) == []


async def test_a_bind_whose_room_went_to_another_in_a_restart_is_refused(tmp_path: Path) -> None:
    async with product([node()], tmp_path, scheduling=False) as cluster:
        first, second = [await cluster.plane.create_pod(gpu_pod(name, gpu=1)) for name in ("p", "q")]
        async with cluster.extender() as extender:
            assert (await extender.filter(first, ["n1"])).nodes == ("n1",)
        await cluster.restart_scheduler()
        async with cluster.extender() as extender:
            assert (await extender.filter(second, ["n1"])).nodes == ("n1",)
            with pytest.raises(ExtenderError, match="no longer fits node n1"):
                await extender.bind(first, "n1")
            await extender.bind(second, "n1")
        await cluster.running_pods("q")
        await cluster.at_rest()


@pytest.mark.parametrize("after_effect", [False, True], ids=["before the write", "after the write"])
async def test_a_scheduler_killed_in_the_middle_of_a_bind_loses_nothing(tmp_path: Path, after_effect: bool) -> None:
    held = hold(after_effect=after_effect)
    async with product([node()], tmp_path) as cluster:
        cluster.plane.server.faults.next(held, method="POST", path=BINDING)
        await cluster.plane.create_pod(gpu_pod("p", gpu=1))
        await held.reached.wait()
        await cluster.kill_scheduler()
        held.release.set()
        await cluster.start_scheduler()
        await cluster.running_pods("p")
        await cluster.at_rest()
        # A request whose caller is gone is not in the server's journal.
        assert len(bindings(cluster)) == (0 if after_effect else 1)


async def test_a_scheduler_that_cannot_touch_a_pending_pod_decides_nothing_and_says_why(tmp_path: Path) -> None:
    async with product([node()], tmp_path, scheduling=False) as cluster:
        await cluster.plane.create_pod(gpu_pod("p", gpu=1))
        await cluster.kill_scheduler()
        cluster.plane.server.faults.next(Fail(403), method="PATCH", path="/pods/p$", times=1000)
        starting = asyncio.create_task(cluster.start_scheduler())
        await cluster.until(lambda: cluster.scheduler.is_running)
        takeover = cluster.service.engine.takeover
        await cluster.until(lambda: takeover.problem and not cluster.service.unsynced(), what="a take-over held up")
        why = "1 pods cannot be touched, such as default/p: 403"
        assert cluster.service.engine.missing().startswith(f"this replica is taking over, but {why}")
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://{cluster.running.listeners['metrics'].address}/readyz") as answer:
                assert (answer.status, (await answer.text())[: len(why)]) == (503, why)
            async with session.get(f"http://{cluster.running.listeners['metrics'].address}/metrics") as answer:
                assert "\ntessera_pods_unfenced 1.0\n" in await answer.text()
        cluster.plane.server.faults.clear()
        await starting
        await cluster.start_scheduling()
        await cluster.running_pods("p")
        await cluster.at_rest()


async def test_a_scheduler_killed_under_load_loses_nothing_and_grants_nothing_twice(tmp_path: Path) -> None:
    nodes = [node("n1", 2), node("n2", 2, agent="answer"), node("n3", 2, agent="hami")]
    names = [f"p{number:02}" for number in range(30)]
    async with product(nodes, tmp_path) as cluster:
        plane = cluster.plane
        held = [hold(after_effect=number % 2 == 0) for number in range(4)]
        for number, each in enumerate(held):
            plane.server.faults.next(each, method="POST", path=f"/p{number + 5:02}/binding")
        for number, name in enumerate(names):
            await plane.create_pod(gpu_pod(name, gpu=1, mem=4000 + number, cores=5))
        await held[0].reached.wait()
        await cluster.kill_scheduler()
        for each in held:
            each.release.set()
        await cluster.start_scheduler()
        await cluster.running_pods(*names)
        await cluster.at_rest()
        assert list(wrong_slices(plane)) == []


async def test_a_handover_goes_on_over_a_restart(tmp_path: Path) -> None:
    """Who was bound keeps the turn: a pod that could be mixed up with it waits for it in the new process too."""
    mixed = node(agent="answer")
    async with product([mixed], tmp_path) as cluster:
        mixed.kubelet.pause()
        await cluster.plane.create_pod(gpu_pod("p", gpu=1, mem=100))
        await cluster.until(lambda: cluster.service.engine.queue.active == 1)
        await cluster.plane.wait_for(lambda: bound(cluster, "p"))
        await cluster.restart_scheduler()
        assert cluster.service.engine.queue.active == 1
        await cluster.plane.create_pod(gpu_pod("q", gpu=1, mem=200))
        await cluster.until(lambda: cluster.service.engine.queue.waiting == 1)
        assert not bound(cluster, "q")
        mixed.kubelet.resume()
        await cluster.running_pods("p", "q")
        await cluster.at_rest()
        assert list(wrong_slices(cluster.plane)) == []


async def test_a_pod_whose_lock_outlived_the_scheduler_is_not_kept_waiting_by_those_who_wait_for_that_lock(
    tmp_path: Path,
) -> None:
    held = hold()
    async with product([node(agent="hami")], tmp_path) as cluster:
        cluster.plane.server.faults.next(held, method="POST", path=BINDING)
        await cluster.plane.create_pod(gpu_pod("p", gpu=1, mem=100))
        await held.reached.wait()
        await cluster.kill_scheduler()
        await cluster.start_scheduler()
        urgent = gpu_pod("urgent", gpu=1, mem=200)
        urgent["spec"]["priority"] = 1000
        await cluster.plane.create_pod(urgent)
        await cluster.until(lambda: cluster.service.engine.queue.active == 1, what="the urgent pod's turn")
        await cluster.running_pods("p", "urgent")
        await cluster.at_rest()
        assert list(wrong_slices(cluster.plane)) == []


async def test_pods_that_ended_or_went_while_the_scheduler_was_away_hold_nothing(tmp_path: Path) -> None:
    async with product([node("n1"), node("n2")], tmp_path) as cluster:
        plane = cluster.plane
        await plane.create_pod(gpu_pod("ends", gpu=1, annotations={"sandbox.tessera.io/run-seconds": "0.2"}))
        await plane.create_pod(gpu_pod("goes", gpu=1))
        await plane.wait_for(lambda: bound(cluster, "ends") and bound(cluster, "goes"))
        await cluster.kill_scheduler()
        await plane.delete_pod("default", "goes")
        await plane.wait_for(lambda: plane.phase("default", "ends") == "Succeeded" and not plane.pod("default", "goes"))
        await cluster.start_scheduler()
        await cluster.at_rest()
        assert cluster.ledger.pods() == []


async def test_a_new_kube_scheduler_finds_everything_as_it_was(tmp_path: Path) -> None:
    held = hold()
    async with product([node()], tmp_path) as cluster:
        cluster.plane.server.faults.next(held, method="POST", path=BINDING)
        await cluster.plane.create_pod(gpu_pod("p", gpu=1))
        await held.reached.wait()
        again = asyncio.create_task(cluster.start_scheduling())
        await again
        held.release.set()
        await cluster.running_pods("p")
        await cluster.at_rest()


async def test_the_api_server_may_restart(tmp_path: Path) -> None:
    async with product([node("n1", 2)], tmp_path) as cluster:
        plane = cluster.plane
        await plane.create_pod(gpu_pod("before", gpu=1))
        await cluster.running_pods("before")
        await plane.server.stop()
        await plane.server.start()
        await plane.create_pod(gpu_pod("after", gpu=1))
        await cluster.running_pods("after")
        await cluster.at_rest()


async def test_what_happened_while_connections_were_refused_is_known_afterwards(tmp_path: Path) -> None:
    """A delete that no watch ever showed: the API server was away, and has forgotten the past when it is back."""
    async with product([node()], tmp_path) as cluster:
        plane = cluster.plane
        await plane.create_pod(gpu_pod("p", gpu=1))
        await cluster.running_pods("p")
        await cluster.at_rest()
        await plane.server.stop()
        store = plane.server.cluster.store
        stored = store.get(PODS, "default", "p")
        assert stored is not None
        store.remove(stored)
        store.compact()
        await plane.server.start()
        await plane.create_pod(gpu_pod("q", gpu=1))
        await cluster.running_pods("q")
        await cluster.at_rest()
        assert [entry.facts.name for entry in cluster.ledger.pods()] == ["q"]


def bound(cluster: Product, name: str) -> bool:
    found = cluster.plane.pod("default", name)
    return found is not None and ALLOCATED in annotations_of(found)


def bindings(cluster: Product) -> list[str]:
    return [seen.path for seen in cluster.writes() if seen.path.endswith("/binding")]
