"""What `kubectl describe pod` shows about decisions: HAMi's texts, each once."""

from __future__ import annotations

from pathlib import Path

from tessera_lab.sandbox.api.faults import Fail
from tessera_lab.sandbox.nodes.node import SimulatedNode, gpu_cards
from tests.support.product import Json, Product, gpu_pod, product

US = "hami-scheduler"


def node(name: str = "n1", count: int = 1) -> SimulatedNode:
    return SimulatedNode(name, gpu_cards(name, count))


def events(cluster: Product, name: str, reason: str) -> list[Json]:
    return [
        event
        for event in cluster.plane.events("default", name)
        if event["reason"] == reason and event["source"]["component"] == US
    ]


def texts(cluster: Product, name: str, reason: str) -> list[str]:
    return sorted(event["message"] for event in events(cluster, name, reason))


async def test_a_bound_pod_shows_the_choice_and_the_binding(tmp_path: Path) -> None:
    async with product([node("n1"), node("n2"), SimulatedNode("n3")], tmp_path) as cluster:
        await cluster.plane.create_pod(gpu_pod("p", gpu=1, mem=1000))
        await cluster.running_pods("p")
        found = cluster.plane.pod("default", "p")
        assert found is not None
        chosen = found["spec"]["nodeName"]
        other = "n1" if chosen == "n2" else "n2"
        await cluster.plane.wait_for(lambda: texts(cluster, "p", "BindingSucceed"))
        assert texts(cluster, "p", "BindingSucceed") == [f"Successfully binding node [{chosen}] to default/p"]
        assert texts(cluster, "p", "FilteringSucceed") == [
            f"find fit node({chosen}), 1 nodes not fit, 2 nodes fit({other}:0.00,{chosen}:0.00)"
        ]
        (event,) = events(cluster, "p", "BindingSucceed")
        assert (event["type"], event["involvedObject"]["uid"]) == ("Normal", found["metadata"]["uid"])


async def test_a_refused_pod_shows_one_sentence_with_the_numbers_and_the_reasons(tmp_path: Path) -> None:
    async with product([node("n1"), node("n2"), SimulatedNode("n3")], tmp_path) as cluster:
        await cluster.plane.create_pod(gpu_pod("p", gpu=1, mem=90000))
        await cluster.plane.wait_for(lambda: texts(cluster, "p", "FilteringFailed"))
        card = cluster.plane.nodes["n1"].cards[0].uuid
        await cluster.stop_scheduler()
        assert texts(cluster, "p", "FilteringFailed") == [
            f"needs 90000 MiB; the most free on one card is 81920 of 81920 MiB on n1 ({card});"
            " 2 of 3 nodes: not enough free memory on the card;"
            " 1 of 3 nodes: no device plugin has registered cards on the node",
        ]
        assert {event["type"] for event in events(cluster, "p", "FilteringFailed")} == {"Warning"}


async def test_a_pod_that_is_refused_again_and_again_says_so_once(tmp_path: Path) -> None:
    async with product([node()], tmp_path) as cluster:
        await cluster.plane.create_pod(gpu_pod("p", gpu=2, mem=100))
        await cluster.refused("p")
        for number in range(5):
            await cluster.patch_pod("p", {"example.org/try": str(number)})
            await cluster.plane.create_pod(gpu_pod(f"other{number}", gpu=1, mem=100))
            await cluster.running_pods(f"other{number}")
        await cluster.at_rest()
        await cluster.stop_scheduler()
        assert texts(cluster, "p", "FilteringFailed") == [
            "needs 2 cards that fit on one node; the most are 1 on n1;"
            " 1 of 1 nodes: the node has fewer cards than requested"
        ]
        assert [event["count"] for event in events(cluster, "p", "FilteringFailed")] == [1]


async def test_a_failed_bind_shows_the_error(tmp_path: Path) -> None:
    async with product([node()], tmp_path) as cluster:
        cluster.plane.server.faults.next(Fail(403, message="not today"), method="POST", path="/binding$")
        await cluster.plane.create_pod(gpu_pod("p", gpu=1))
        await cluster.running_pods("p")
        await cluster.stop_scheduler()
        (event,) = events(cluster, "p", "BindingFailed")
        assert "not today" in event["message"]
        assert (event["type"], event["count"]) == ("Warning", 1)
        assert len(texts(cluster, "p", "BindingSucceed")) == 1


async def test_events_still_waiting_are_written_when_the_scheduler_stops(tmp_path: Path) -> None:
    async with product([node(count=4)], tmp_path) as cluster:
        names = [f"p{number}" for number in range(20)]
        for name in names:
            await cluster.plane.create_pod(gpu_pod(name, gpu=1, mem=100))
        await cluster.running_pods(*names)
        assert await cluster.stop_scheduler() == 0
        for name in names:
            assert len(texts(cluster, name, "FilteringSucceed")) == 1
            assert len(texts(cluster, name, "BindingSucceed")) == 1
