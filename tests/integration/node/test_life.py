"""The agent's own life: what it waits for, what it outlives, and how it ends."""

from __future__ import annotations

import os
import signal
from json import dumps
from pathlib import Path
from typing import Any

import pytest

from tessera.node.health import hardware_watch as watching
from tessera_lab.sandbox.api.faults import Fail
from tests.support.agent import NODE, SPLIT, TWO_CARDS, AgentNode, agent_node
from tests.support.commands import started
from tests.support.scheduler_process import calling

ADDRESS = "--metrics-bind-address=127.0.0.1:0"


async def readiness(node: AgentNode) -> tuple[int, str]:
    await node.process.listening.wait()
    assert node.process.address is not None
    async with calling(node.process.address) as caller:
        return await caller.get("/readyz")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT], ids=lambda number: number.name)
async def test_a_signal_ends_the_command_well_and_the_socket_is_gone(tmp_path: Path, number: signal.Signals) -> None:
    async with agent_node(tmp_path, start=False) as node:
        flags = [f"--{name}={value}" for name, value in node.flags.items()]
        async with started("device-plugin", *flags, f"--kubeconfig={node.plane.kubeconfig}") as command:
            await command.until(node.kubelet.listed(lambda health: len(health) == 2 * SPLIT))
            command.send(number)
            assert await command.end() == 0
        assert not os.path.lexists(node.kubelet.socket.parent / "nvidia-gpu.sock")
        assert [event["message"] for event in command.events][-2:] == ["stopping", "stopped"]
        assert command.words == []


async def test_a_command_that_cannot_reach_any_apiserver_says_so(tmp_path: Path) -> None:
    arguments = ("--node-name=n1", "--inventory=null", ADDRESS, f"--node-config-file={tmp_path}/c.json")
    async with started("device-plugin", *arguments) as command:
        assert await command.end() == 2
    assert "no access to an apiserver" in command.events[-1]["error"]


async def test_simulated_cards_that_cannot_be_understood_are_one_message(tmp_path: Path) -> None:
    (tmp_path / "cards.yaml").write_text("cards: many")
    arguments = ("--node-name=n1", f"--simulate={tmp_path}/cards.yaml", ADDRESS)
    kubeconfig = tmp_path / "k"
    kubeconfig.write_text(
        dumps(
            {
                "current-context": "c",
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
                "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
                "users": [{"name": "u", "user": {}}],
            }
        )
    )
    async with started("device-plugin", *arguments, f"--kubeconfig={kubeconfig}") as command:
        assert await command.end() == 2
    assert "cards.yaml:1" in command.events[-1]["error"]


async def test_an_agent_without_kubelet_and_apiserver_waits_for_both(tmp_path: Path) -> None:
    async with agent_node(tmp_path, start=False) as node:
        await node.kubelet.stop()
        await node.plane.server.stop()
        await node.start(ready=False)
        status, text = await readiness(node)
        assert status == 503
        assert text.startswith(("no cards: ", "the first list of this node's pods is not complete"))
        await node.plane.server.start()
        await node.until(lambda: "kubelet is not running" in node.process.missing())
        await node.kubelet.start()
        await node.kubelet.registered()
        await node.until(lambda: not node.process.missing())


@pytest.mark.parametrize(("fails", "status"), [("true", 503), ("false", 200)])
async def test_cards_that_cannot_be_read_are_waited_for_and_never_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str, status: int
) -> None:
    monkeypatch.setattr(watching, "SOON_S", 0.05)
    broken: dict[str, Any] = {**TWO_CARDS, "problem": "no driver"}
    flags = {"fail-on-init-error": fails}
    async with agent_node(tmp_path, cards=broken, flags=flags, start=False) as node:
        await node.start(ready=False)
        await node.until(lambda: node.process.agent and "no driver" in node.process.around.watch.fleet.value.problem)
        found, text = await readiness(node)
        assert (found, "no driver" in text) == (status, fails == "true")
        assert node.kubelet.registrations == []
        (tmp_path / "cards.json").write_text(dumps(TWO_CARDS))
        await node.kubelet.listed(lambda health: len(health) == 2 * SPLIT)
        await node.until(lambda: not node.process.missing())


async def test_a_node_without_cards_is_served_as_one(tmp_path: Path) -> None:
    async with agent_node(tmp_path, cards={"cards": []}, start=False) as node:
        await node.start()
        await node.kubelet.until(lambda: node.kubelet.lists)
        assert node.kubelet.health == {}
        assert (await readiness(node))[0] == 200


async def test_the_node_that_does_not_take_its_registration_is_said_to_miss_it(tmp_path: Path) -> None:
    async with agent_node(tmp_path, start=False) as node:
        node.plane.server.faults.next(Fail(500), method="PATCH", path=f"/api/v1/nodes/{NODE}$", times=1000)
        await node.start(ready=False)
        await node.until(lambda: "not registered with the scheduler" in node.process.missing())


async def test_an_agent_need_not_listen_nor_ask_kubelet(tmp_path: Path) -> None:
    flags = {"metrics-bind-address": "none", "pod-resources-socket": ""}
    async with agent_node(tmp_path, flags=flags) as node:
        await node.bound_pod("p", [[node.slice(0, memory=1000)]])
        await node.allocate(1)
        await node.phase_is("p", "success")
        assert node.process.address is None
