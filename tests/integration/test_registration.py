"""Registered cards: plugins of every generation that stop and return, and nodes that come, change and go."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tessera.kube.resources import NODES
from tessera.wire.registration import encode_requesting
from tessera_lab.sandbox.nodes.allocation import ALLOCATED
from tessera_lab.sandbox.nodes.node import HANDSHAKE, REGISTER, SimulatedNode, gpu_cards
from tessera_lab.sandbox.objects import annotations_of
from tests.support.product import Json, Product, gpu_pod, product

SHARED = {"gpu": 1, "mem": 1000}


def node(name: str = "n1", count: int = 1, **more: Any) -> SimulatedNode:
    return SimulatedNode(name, gpu_cards(name, count), **more)


def old_plugin(name: str = "n1", **more: Any) -> SimulatedNode:
    """As plugins up to v2.7: the text form, and a handshake."""
    return node(name, text_registration=True, handshake=True, agent="hami", **more)


async def run(cluster: Product, name: str, **amounts: Any) -> None:
    await cluster.plane.create_pod(gpu_pod(name, **(amounts or SHARED)))
    await cluster.running_pods(name)


async def refuse(cluster: Product, name: str, **amounts: Any) -> str:
    await cluster.plane.create_pod(gpu_pod(name, **(amounts or SHARED)))
    return await cluster.refused(name)


async def change_node(cluster: Product, name: str, **metadata: Any) -> None:
    await cluster.plane.client.patch(NODES.path(name=name), {"metadata": metadata})


def patched(cluster: Product) -> list[str]:
    """Nodes that the scheduler wrote to."""
    return [seen.path.rpartition("/")[2] for seen in cluster.writes() if "/nodes/" in seen.path]


def handshake(cluster: Product, name: str = "n1") -> str:
    found = cluster.plane.node(name)
    assert found is not None
    return annotations_of(found).get(HANDSHAKE, "")


def asked(seconds_ago: float) -> str:
    zone = datetime.now().astimezone().tzinfo
    assert zone is not None
    return encode_requesting(datetime.now(UTC) - timedelta(seconds=seconds_ago), zone=zone)


# -- plugins


@pytest.mark.parametrize("text", [True, False], ids=["text", "json"])
async def test_cards_are_read_in_both_forms(tmp_path: Path, text: bool) -> None:
    async with product([node(count=2, text_registration=text)], tmp_path) as cluster:
        await run(cluster, "p", gpu=2)
        await cluster.at_rest()
        view = cluster.ledger.node("n1")
        assert view is not None
        assert [(card.device.model, card.device.memory) for card in view.cards] == [
            ("NVIDIA A100-SXM4-80GB", 81920)
        ] * 2


async def test_a_plugin_that_reports_is_answered_once(tmp_path: Path) -> None:
    async with product([old_plugin()], tmp_path) as cluster:
        await cluster.plane.wait_for(lambda: handshake(cluster).startswith("Requesting_"), what="the answer")
        await cluster.at_rest()
        assert patched(cluster) == ["n1"]
        await change_node(cluster, "n1", annotations={HANDSHAKE: "Reported 2026-01-01 00:00:00"})
        await cluster.plane.wait_for(lambda: handshake(cluster).startswith("Requesting_"), what="the second answer")
        await run(cluster, "p")
        await cluster.at_rest()


async def test_nodes_without_devices_and_plugins_without_handshake_cost_no_api_call(tmp_path: Path) -> None:
    plain = [SimulatedNode(f"cpu{number}") for number in range(10)]
    async with product([*plain, node("n1"), node("n2", agent="hami"), old_plugin("n3")], tmp_path) as cluster:
        await cluster.plane.wait_for(lambda: handshake(cluster, "n3").startswith("Requesting_"))
        for simulated in plain:
            await change_node(cluster, simulated.name, labels={"touched": "yes"})
        await cluster.at_rest()
        cluster.time_passes()
        await cluster.at_rest()
        assert patched(cluster) == ["n3"]
        assert [seen.path for seen in cluster.requests() if "/nodes/" in seen.path] == [NODES.path(name="n3")]


async def test_cards_of_a_plugin_that_stops_leave_at_once_and_return_with_it(tmp_path: Path) -> None:
    async with product([node()], tmp_path) as cluster:
        simulated = cluster.plane.nodes["n1"]
        await run(cluster, "p", gpu=1, mem=80000)
        await simulated.stop_plugin()
        await cluster.at_rest(without=["n1"])
        assert "node unregistered" in await refuse(cluster, "q", gpu=1, mem=2000)
        await simulated.start_plugin()
        await cluster.at_rest()
        view = cluster.ledger.node("n1")
        assert view is not None
        assert [card.used_memory for card in view.cards] == [80000]
        assert "CardInsufficientMemory" in await refuse(cluster, "r", gpu=1, mem=2000)
        await cluster.plane.delete_pod("default", "p")
        await cluster.running_pods("q", "r")
        await cluster.at_rest()


async def test_a_plugin_that_does_not_answer_the_handshake_has_a_minute(tmp_path: Path) -> None:
    async with product([old_plugin()], tmp_path) as cluster:
        simulated = cluster.plane.nodes["n1"]
        await cluster.plane.wait_for(lambda: handshake(cluster).startswith("Requesting_"))
        await simulated.stop_plugin()
        await change_node(cluster, "n1", annotations={HANDSHAKE: asked(50)})
        await cluster.at_rest()
        await change_node(cluster, "n1", annotations={HANDSHAKE: asked(61)})
        await cluster.at_rest(without=["n1"])
        assert "node unregistered" in await refuse(cluster, "p")
        await simulated.start_plugin()
        await cluster.running_pods("p")
        await cluster.at_rest()


async def test_a_plugin_whose_devices_kubelet_offers_is_alive_without_an_answer(tmp_path: Path) -> None:
    async with product([old_plugin()], tmp_path) as cluster:
        await cluster.plane.wait_for(lambda: handshake(cluster).startswith("Requesting_"))
        await change_node(cluster, "n1", annotations={HANDSHAKE: asked(3600)})
        await run(cluster, "p")
        await cluster.at_rest()


# -- registrations


@pytest.mark.parametrize("text", ["nonsense", "[{]", "GPU-1,x,y:"])
async def test_a_registration_that_cannot_be_read_holds_its_node_only(tmp_path: Path, text: str) -> None:
    async with product([node("n1"), node("n2")], tmp_path) as cluster:
        await run(cluster, "first")
        await cluster.at_rest()
        good = annotations_of(cluster.plane.node("n1") or {})[REGISTER]
        await change_node(cluster, "n1", annotations={REGISTER: text})
        await cluster.at_rest()
        await run(cluster, "second", gpu=1)
        assert on(cluster, "second") == "n2"
        assert "node usage unavailable" in await refuse(cluster, "third", gpu=1)
        await change_node(cluster, "n1", annotations={REGISTER: good})
        await cluster.plane.delete_pod("default", "first")
        await cluster.running_pods("third")
        await cluster.at_rest()


async def test_an_allocation_that_cannot_be_read_holds_its_node_until_the_pod_is_gone(tmp_path: Path) -> None:
    async with product([node("n1"), node("n2")], tmp_path) as cluster:
        await run(cluster, "first")
        held = on(cluster, "first")
        await cluster.patch_pod("first", {ALLOCATED: "GPU-1,NVIDIA,lots:;"})
        await cluster.at_rest()
        await run(cluster, "second", gpu=1)
        assert on(cluster, "second") != held
        assert "node usage unavailable" in await refuse(cluster, "third", gpu=1)
        await cluster.plane.delete_pod("default", "first")
        await cluster.running_pods("third")
        await cluster.at_rest()


async def test_cards_that_shrink_below_what_is_granted_take_nothing_until_it_fits_again(tmp_path: Path) -> None:
    async with product([node()], tmp_path) as cluster:
        simulated = cluster.plane.nodes["n1"]
        await run(cluster, "p", gpu=1, mem=50000)
        await run(cluster, "q", gpu=1, mem=20000)
        await simulated.set_cards([replace(card, memory=40000, slots=1) for card in simulated.cards])
        await cluster.at_rest(overcommitted=True)
        assert "CardTimeSlicingExhausted" in await refuse(cluster, "r", gpu=1, mem=100)
        await cluster.plane.delete_pod("default", "p")
        await cluster.plane.delete_pod("default", "q")
        await cluster.running_pods("r")
        await cluster.at_rest()


async def test_a_granted_card_that_goes_and_comes_back_is_still_granted(tmp_path: Path) -> None:
    async with product([node(count=2)], tmp_path) as cluster:
        simulated = cluster.plane.nodes["n1"]
        cards = simulated.cards
        await run(cluster, "p", gpu=2)
        await simulated.set_cards(cards[:1])
        await cluster.at_rest()
        assert "NodeInsufficientDevice" in await refuse(cluster, "q", gpu=2, mem=100)
        await simulated.set_cards(cards)
        await cluster.at_rest()
        view = cluster.ledger.node("n1")
        assert view is not None
        assert [card.used for card in view.cards] == [1, 1]
        assert "2/2" in await refuse(cluster, "r", gpu=2, mem=100)


# -- nodes


async def test_only_nodes_of_the_selector_are_used_and_one_that_leaves_it_is_not(tmp_path: Path) -> None:
    """Row Q27 of docs/protocol.md: HAMi does otherwise."""
    ours = {"gpu": "on"}
    nodes = [node("n1", labels=ours), node("n2")]
    async with product(nodes, tmp_path, node_selector=ours) as cluster:
        assert cluster.ledger.node_names() == ("n1",)
        await run(cluster, "p")
        assert on(cluster, "p") == "n1"
        await change_node(cluster, "n1", labels={"gpu": "off"})
        await cluster.at_rest()
        assert cluster.ledger.node_names() == ()
        assert "2 node unregistered" in await refuse(cluster, "q")
        await change_node(cluster, "n2", labels=ours)
        await cluster.running_pods("q")
        assert on(cluster, "q") == "n2"
        await change_node(cluster, "n1", labels=ours)
        await cluster.at_rest()
        view = cluster.ledger.node("n1")
        assert view is not None
        assert [card.used_memory for card in view.cards] == [1000]


async def test_a_node_deleted_with_its_pods_and_back_again_has_its_pods(tmp_path: Path) -> None:
    async with product([node("n1")], tmp_path) as cluster:
        plane = cluster.plane
        await run(cluster, "p", gpu=1, mem=80000)
        gone = await plane.fleet.remove("n1")
        await plane.client.delete(NODES.path(name="n1"))
        await cluster.at_rest()
        assert cluster.ledger.node("n1") is None
        assert "no nodes available" in await refuse(cluster, "q", gpu=1, mem=5000)
        await plane.fleet.add(gone)
        await cluster.at_rest()
        assert "CardInsufficientMemory" in await refuse(cluster, "r", gpu=1, mem=5000)
        await plane.delete_pod("default", "p", grace_s=0)
        await cluster.running_pods("q", "r")
        await cluster.at_rest()


async def test_a_new_node_under_an_old_name_starts_with_what_its_pods_hold(tmp_path: Path) -> None:
    async with product([node("n1")], tmp_path) as cluster:
        plane = cluster.plane
        await run(cluster, "p", gpu=1)
        await plane.fleet.remove("n1")
        await plane.client.delete(NODES.path(name="n1"))
        await plane.fleet.add(SimulatedNode("n1", gpu_cards("another", 1)))
        await cluster.at_rest()
        # The pod's card is not there any more; the new one is free.
        await run(cluster, "q", gpu=1)
        await cluster.at_rest()


def on(cluster: Product, name: str) -> str:
    found: Json | None = cluster.plane.pod("default", name)
    assert found is not None
    return str(found["spec"].get("nodeName", ""))
