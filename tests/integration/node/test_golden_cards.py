"""Golden cases 1 to 7 and 29: what kubelet and the schedulers are told of the cards."""

from __future__ import annotations

from json import dumps, loads
from pathlib import Path
from typing import Any

import pytest

from tessera.host.cards import Links, TopologyLevel
from tests.support.agent import NODE, REGISTER, SCORES, TWO_CARDS, agent_node, registered
from tests.support.logs import captured

A100, H100 = "A100-SXM4-80GB", "H100"
SCORED = {"ENABLE_TOPOLOGY_SCORE": "true"}


async def test_golden_1_two_cards_split_in_three_are_six_healthy_devices_without_topology(tmp_path: Path) -> None:
    async with agent_node(tmp_path, yaml="nvidia: {deviceSplitCount: 3}") as node:
        assert list(node.kubelet.lists[-1]) == [f"{node.card(i).uuid}-{n}" for i in (0, 1) for n in (0, 1, 2)]
        assert set(node.kubelet.health.values()) == {"Healthy"}
        assert not any(device.HasField("topology") for device in node.kubelet.lists[-1].values())


async def test_golden_2_replicas_of_a_card_carry_its_numa_node_where_that_is_asked_for(tmp_path: Path) -> None:
    cards = {"cards": [{"model": A100}, {"model": A100, "numa": 1}]}
    async with agent_node(
        tmp_path, cards=cards, yaml="nvidia: {deviceSplitCount: 3, enableNumaTopology: true}"
    ) as node:
        told = {name: [each.ID for each in device.topology.nodes] for name, device in node.kubelet.lists[-1].items()}
        unknown, known = node.card(0).uuid, node.card(1).uuid
        assert told == {f"{uuid}-{n}": numa for uuid, numa in ((unknown, []), (known, [1])) for n in (0, 1, 2)}


async def test_golden_3_a_card_is_registered_with_what_it_has_and_without_zeros(tmp_path: Path) -> None:
    async with agent_node(tmp_path, cards={"cards": [{"model": A100}]}, yaml="nvidia: {deviceSplitCount: 10}") as node:
        assert node.card(0).memory_bytes == 85899345920
        (card,) = await registered(node)
        assert card == {
            "id": node.card(0).uuid,
            "count": 10,
            "devmem": 81920,
            "devcore": 100,
            "type": "NVIDIA A100-SXM4-80GB",
            "mode": "hami-core",
            "health": True,
        }


async def test_golden_4_scaled_memory_is_cut_off_and_not_rounded(tmp_path: Path) -> None:
    async with agent_node(
        tmp_path, cards={"cards": [{"model": H100}]}, yaml="nvidia: {deviceMemoryScaling: 1.1}"
    ) as node:
        assert (await registered(node))[0]["devmem"] == 89714


async def test_golden_5_a_type_begins_with_nvidia_once(tmp_path: Path) -> None:
    cards = {"cards": [{"model": "V100", "name": "Tesla V100-PCIE-32GB"}, {"model": "H200"}]}
    async with agent_node(tmp_path, cards=cards) as node:
        assert [card["type"] for card in await registered(node)] == ["NVIDIA-Tesla V100-PCIE-32GB", "NVIDIA H200"]


async def test_golden_6_a_filtered_card_is_neither_listed_nor_registered(tmp_path: Path) -> None:
    async with agent_node(tmp_path, node={"filterdevices": {"index": [0]}}) as node:
        assert {card["id"] for card in await registered(node)} == {node.card(1).uuid}
        assert {name.rpartition("-")[0] for name in node.kubelet.health} == {node.card(1).uuid}


async def test_golden_7_what_the_node_file_says_of_another_node_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(dumps({"nodeconfig": [{"name": f"{NODE}-2", "devicesplitcount": 9}]}))
    async with agent_node(tmp_path, yaml="nvidia: {deviceSplitCount: 3}") as node:
        assert [card["count"] for card in await registered(node)] == [3, 3]
        assert len(node.kubelet.health) == 6


async def test_golden_7_a_split_count_of_zero_is_what_the_node_file_says_it_is(tmp_path: Path) -> None:
    """Not as upstream, where a zero cannot be said: what is present overrides. The node then offers nothing."""
    with captured() as logs:
        async with agent_node(tmp_path, node={"devicesplitcount": 0}, start=False) as node:
            await node.start()
            await node.kubelet.until(lambda: node.kubelet.lists)
            assert node.kubelet.health == {}
            await node.plane.wait_for(lambda: "tessera.io/agent" in node.annotations())
            assert REGISTER not in node.annotations()
    assert "split count is 0" in logs.of("configuration")[0]["warning"]


def scores_of(text: str | None) -> dict[str, dict[str, int]]:
    return {each["uuid"]: each["score"] for each in loads(text or "[]")}


@pytest.mark.parametrize(
    ("links", "score"),
    [({"through": "switch"}, 1820), ({"through": "cards", "one_way": True}, 0)],
    ids=["18 links through a switch on both sides", "links that only one side sees"],
)
async def test_golden_29_the_way_between_two_cards_is_scored(tmp_path: Path, links: dict[str, Any], score: int) -> None:
    cards = {**TWO_CARDS, "links": [{"cards": [0, 1], "nvlinks": 18, "pcie": "node", **links}]}
    async with agent_node(tmp_path, cards=cards, environ=SCORED) as node:
        await node.plane.wait_for(lambda: SCORES in node.annotations())
        one, other = node.card(0).uuid, node.card(1).uuid
        assert scores_of(node.annotations()[SCORES]) == {one: {other: score}, other: {one: score}}
        if not score:
            (event,) = await node.plane.wait_for(lambda: node.plane.events("default", NODE))
            assert (event["type"], event["reason"]) == ("Warning", "AsymmetricGPUP2PLink")
            assert event["involvedObject"]["kind"] == "Node"


async def test_golden_29_the_card_with_fewer_links_to_the_switch_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with agent_node(tmp_path, environ=SCORED, start=False) as node:
        one, other = node.card(0).uuid, node.card(1).uuid
        seen = {
            (one, other): Links(TopologyLevel.NODE, switched=18),
            (other, one): Links(TopologyLevel.NODE, switched=4),
        }
        monkeypatch.setattr(node.hardware, "links", lambda uuids: seen)
        await node.start()
        await node.plane.wait_for(lambda: SCORES in node.annotations())
        assert scores_of(node.annotations()[SCORES]) == {one: {other: 420}, other: {one: 420}}
