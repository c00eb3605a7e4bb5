"""The whole agent: cards are registered, kubelet is served, and a pod gets exactly its slice."""

from __future__ import annotations

import os
from pathlib import Path

import grpc
import pytest

from tessera.wire.registration import decode_registration
from tests.support.agent import SPLIT, TO_ALLOCATE, agent_node
from tests.support.scheduler_process import calling


async def test_a_pod_bound_to_the_node_gets_its_slice_and_its_handover_ends_well(tmp_path: Path) -> None:
    async with agent_node(tmp_path) as node:
        await node.bound_pod("p", [[node.slice(1, memory=3000, cores=30)]])
        answer = await node.allocate(1, holder=("p", "c0"))
        assert answer.envs["NVIDIA_VISIBLE_DEVICES"] == node.card(1).uuid
        assert answer.envs["CUDA_DEVICE_MEMORY_LIMIT_0"] == "3000m"
        assert answer.envs["CUDA_DEVICE_SM_LIMIT"] == "30"
        await node.phase_is("p", "success")
        assert node.annotations("p")[TO_ALLOCATE].strip(";") == ""


async def test_the_cards_are_registered_on_the_node_and_replicas_with_kubelet(tmp_path: Path) -> None:
    async with agent_node(tmp_path) as node:
        await node.plane.wait_for(lambda: "hami.io/node-nvidia-register" in node.annotations())
        text = node.annotations()["hami.io/node-nvidia-register"]
        devices = decode_registration(text, vendor="NVIDIA")
        assert [(each.uuid, each.slots) for each in devices] == [(node.card(i).uuid, SPLIT) for i in (0, 1)]
        assert set(node.kubelet.health) == {f"{node.card(i).uuid}-{n}" for i in (0, 1) for n in range(SPLIT)}


async def test_it_says_how_it_is(tmp_path: Path) -> None:
    async with agent_node(tmp_path) as node:
        await node.process.listening.wait()
        assert node.process.address is not None
        async with calling(node.process.address) as caller:
            assert await caller.get("/healthz") == (200, "")
            assert await caller.get("/readyz") == (200, "")
            _, text = await caller.get("/metrics")
        assert "tessera_agent_ready 1.0" in text
        assert "tessera_agent_kubelet_registered 1.0" in text
        assert "tessera_agent_allocations_total" in text


async def test_a_clean_stop_removes_the_socket_and_leaves_the_registration(tmp_path: Path) -> None:
    async with agent_node(tmp_path) as node:
        socket = node.kubelet.socket.parent / "nvidia-gpu.sock"
        assert socket.exists()
        await node.plane.wait_for(lambda: "hami.io/node-nvidia-register" in node.annotations())
        assert await node.stop() == 0
        assert not os.path.lexists(socket)
        await node.kubelet.until(lambda: node.kubelet.ended)
        assert node.kubelet.ended == [grpc.StatusCode.OK]
        assert "hami.io/node-nvidia-register" in node.annotations()


@pytest.mark.parametrize("mode", ["hami-core", "none", "mig", "mps"])
@pytest.mark.parametrize("strategies", ["envvar", "cdi-annotations,cdi-cri"])
async def test_in_every_mode_the_cards_are_registered_and_served(tmp_path: Path, mode: str, strategies: str) -> None:
    flags = {"device-list-strategy": strategies}
    async with agent_node(tmp_path, node={"operatingmode": mode}, flags=flags) as node:
        await node.plane.wait_for(lambda: "hami.io/node-nvidia-register" in node.annotations())
        devices = decode_registration(node.annotations()["hami.io/node-nvidia-register"], vendor="NVIDIA")
        assert [each.uuid for each in devices] == [node.card(0).uuid, node.card(1).uuid]
        travels = mode == "hami-core" and strategies == "envvar"
        assert node.annotations()["tessera.io/agent"] == f"{'env' if travels else 'answer'},{mode}"
        assert {name.rpartition("-")[0] for name in node.kubelet.health} == {each.uuid for each in devices}
