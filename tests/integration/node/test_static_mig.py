"""`--mig-strategy`: instances that an administrator made are handed out whole, under names of their own."""

from __future__ import annotations

from json import loads
from pathlib import Path
from typing import Any

import grpc
import pytest

from tessera.core.model.devices import MigPlacement
from tessera.host.cards import CardEvent, MigInstance
from tessera.node import static_mig as resources
from tessera.node.modes.device_lists import Capability, DeviceSpecs
from tests.support.agent import SPLIT, AgentNode, agent_node, bound, registered, writes
from tests.support.logs import captured

CUT: dict[str, Any] = {"model": "H200", "mig": True, "numa": 1}
UNCUT: dict[str, Any] = {"model": "H200"}
GPU, SMALL, HALF = "nvidia.com/gpu", "nvidia.com/mig-1g.18gb", "nvidia.com/mig-3g.71gb"
MIXED, SINGLE = {"mig-strategy": "mixed"}, {"mig-strategy": "single"}


@pytest.fixture(autouse=True)
def quick_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Instances that somebody makes or destroys are noticed at once."""
    monkeypatch.setattr(resources, "READ_EVERY_S", 0.02)


def make(node: AgentNode, card: int, name: str, start: int) -> MigInstance:
    """As an administrator does it with nvidia-smi."""
    facts = node.card(card)
    offer = next(each for each in facts.mig_profiles if each.name == name)
    size = offer.placements[0].size
    return node.hardware.create(facts.uuid, offer, MigPlacement(start, size))


async def listed(node: AgentNode, resource: str, *instances: MigInstance, health: str = "Healthy") -> None:
    """Until kubelet knows exactly these of the resource."""
    wanted = {each.mig_uuid: health for each in instances}
    latest = node.kubelet.latest
    await node.kubelet.until(lambda: {k: v.health for k, v in latest.get(resource, {}).items()} == wanted)


async def test_instances_of_every_kind_are_a_resource_of_their_own_and_need_no_waiting_pod(tmp_path: Path) -> None:
    async with agent_node(tmp_path, cards={"cards": [CUT]}, flags=MIXED, start=False) as node:
        first, second = make(node, 0, "1g.18gb", 0), make(node, 0, "1g.18gb", 1)
        half = make(node, 0, "3g.71gb", 4)
        await node.start()
        await listed(node, SMALL, first, second)
        await listed(node, HALF, half)
        assert [each.ID for each in node.kubelet.latest[HALF][str(half.mig_uuid)].topology.nodes] == [1]
        registrations = {each.resource_name: each.endpoint for each in node.kubelet.registrations}
        assert registrations[SMALL] == "nvidia-mig-1g.18gb.sock"
        ids = [str(second.mig_uuid), str(first.mig_uuid)]
        answer = await node.kubelet.allocate(ids, resource=SMALL)
        (envs,) = (dict(each.envs) for each in answer.container_responses)
        assert envs == {"NVIDIA_VISIBLE_DEVICES": f"{first.mig_uuid},{second.mig_uuid}"}
        assert not answer.container_responses[0].mounts
        assert writes(node, "/pods/") == []


async def test_cards_that_are_not_cut_are_shared_and_registered_beside_the_instances(tmp_path: Path) -> None:
    async with agent_node(tmp_path, cards={"cards": [CUT, UNCUT]}, flags=MIXED, start=False) as node:
        small = make(node, 0, "1g.18gb", 0)
        await node.start()
        await listed(node, SMALL, small)
        await node.kubelet.until(lambda: GPU in node.kubelet.latest)
        shared = node.card(1).uuid
        assert set(node.kubelet.latest[GPU]) == {f"{shared}-{number}" for number in range(SPLIT)}
        assert [card["id"] for card in await registered(node)] == [shared]
        await bound(node, "p", [[node.slice(1, memory=3000)]])
        answer = await node.kubelet.allocate([f"{shared}-0"], resource=GPU)
        assert answer.container_responses[0].envs["CUDA_DEVICE_MEMORY_LIMIT_0"] == "3000m"
        await node.phase_is("p", "success")


async def test_equal_instances_of_all_cards_are_counted_as_cards(tmp_path: Path) -> None:
    async with agent_node(tmp_path, cards={"cards": [CUT, CUT]}, flags=SINGLE, start=False) as node:
        made = [make(node, card, "1g.18gb", 0) for card in (0, 1)]
        await node.start()
        await listed(node, GPU, *made)
        assert [each.resource_name for each in node.kubelet.registrations] == [GPU]
        answer = await node.kubelet.allocate([str(made[1].mig_uuid)])
        assert answer.container_responses[0].envs["NVIDIA_VISIBLE_DEVICES"] == made[1].mig_uuid
        assert await node.kubelet.prefer([str(each.mig_uuid) for each in made], size=1) == [[]]
        with pytest.raises(grpc.aio.AioRpcError, match="unknown device: MIG-x"):
            await node.kubelet.allocate(["MIG-x"])


async def test_instances_that_cannot_be_counted_as_cards_are_not_and_that_is_said(tmp_path: Path) -> None:
    with captured() as logs:
        async with agent_node(tmp_path, cards={"cards": [CUT]}, flags=SINGLE, start=False) as node:
            small = make(node, 0, "1g.18gb", 0)
            half = make(node, 0, "3g.71gb", 4)
            await node.start()
            event = await logs.until("MIG instances are not served")
            assert "different profiles: 1g.18gb, 3g.71gb" in event["problem"]
            await listed(node, GPU)
            # As soon as they are equal they are served, in the place of cards to be shared.
            node.hardware.destroy(half)
            await listed(node, GPU, small)
            assert {each.endpoint for each in node.kubelet.registrations} == {"nvidia-gpu.sock"}


async def test_a_strategy_changes_nothing_on_a_node_without_instances(tmp_path: Path) -> None:
    async with agent_node(tmp_path, flags=SINGLE) as node:
        assert len(node.kubelet.health) == 2 * SPLIT
        assert len(await registered(node)) == 2


async def test_resources_come_and_go_with_their_instances(tmp_path: Path) -> None:
    async with agent_node(tmp_path, cards={"cards": [CUT, UNCUT]}, flags=MIXED) as node:
        folder = node.kubelet.socket.parent
        small = make(node, 0, "1g.18gb", 0)
        await listed(node, SMALL, small)
        other = make(node, 0, "1g.18gb", 1)
        await listed(node, SMALL, small, other)
        for each in (small, other):
            node.hardware.destroy(each)
        await node.until(lambda: not (folder / "nvidia-mig-1g.18gb.sock").exists())
        assert not node.process.missing()


async def test_instances_have_the_health_of_their_card(tmp_path: Path) -> None:
    async with agent_node(tmp_path, cards={"cards": [CUT]}, flags=MIXED, start=False) as node:
        small = make(node, 0, "1g.18gb", 0)
        await node.start()
        await listed(node, SMALL, small)
        node.hardware.push(CardEvent(node.card(0).uuid, xid=79))
        await listed(node, SMALL, small, health="Unhealthy")


async def test_a_card_that_does_not_answer_keeps_its_instances(tmp_path: Path) -> None:
    with captured() as logs:
        async with agent_node(tmp_path, cards={"cards": [CUT]}, flags=MIXED, start=False) as node:
            small = make(node, 0, "1g.18gb", 0)
            await node.start()
            await listed(node, SMALL, small)
            node.hardware.lose(node.card(0).uuid)
            await logs.until("MIG instances of a card cannot be read")
            assert set(node.kubelet.latest[SMALL]) == {small.mig_uuid}


async def test_instances_are_in_the_cdi_specs_before_kubelet_hears_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    minors = {Capability(0, 0): 30, Capability(0, 0, 0): 31}
    monkeypatch.setattr(DeviceSpecs, "_capabilities", lambda self: minors)
    flags = {**MIXED, "device-list-strategy": "cdi-cri"}
    async with agent_node(tmp_path, cards={"cards": [CUT, UNCUT]}, flags=flags) as node:
        small, untold = make(node, 0, "1g.18gb", 0), make(node, 0, "1g.18gb", 1)
        await listed(node, SMALL, small, untold)
        document = loads((tmp_path / "cdi" / "k8s.device-plugin.nvidia.com-gpu.json").read_text())
        assert small.mig_uuid in {device["name"] for device in document["devices"]}
        answer = await node.kubelet.allocate([str(small.mig_uuid)], resource=SMALL)
        names = [each.name for each in answer.container_responses[0].cdi_devices]
        assert names == [f"k8s.device-plugin.nvidia.com/gpu={small.mig_uuid}"]
        with pytest.raises(grpc.aio.AioRpcError, match="is in no CDI spec: it has no device node"):
            await node.kubelet.allocate([str(untold.mig_uuid)], resource=SMALL)


async def test_in_mode_mig_a_strategy_has_no_effect(tmp_path: Path) -> None:
    async with agent_node(tmp_path, cards={"cards": [UNCUT]}, flags=MIXED, node={"operatingmode": "mig"}) as node:
        await registered(node)
        assert {each.resource_name for each in node.kubelet.registrations} == {GPU}
