"""Leaving a mode, a strategy or the node: what was made goes when nobody needs it, and what was answered is written."""

from __future__ import annotations

from collections.abc import Iterator
from json import loads
from pathlib import Path
from typing import Any

import pytest

from tessera.node import process as module
from tessera.node import reconciler
from tessera.node.handover import status_writer as writing
from tessera.node.modes.mps import mode as mps
from tessera.services import process as service_process
from tessera.wire import keys
from tessera_lab.sandbox.api.faults import Fail
from tests.support.agent import NODE, REGISTER, TWO_CARDS, AgentNode, agent_node, registered
from tests.support.fake_mps import FakeMps, installed_mps
from tests.support.logs import captured

SPEC = "k8s.device-plugin.nvidia.com-gpu.json"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files and leftovers are looked at all the time."""
    monkeypatch.setattr(service_process, "CHECK_EVERY_S", 0.02)
    monkeypatch.setattr(reconciler, "RETRY_S", 0.05)


def enabled(node: AgentNode) -> list[bool]:
    return [node.hardware.mig_enabled(node.card(index).uuid) for index in (0, 1)]


def reservation(node: AgentNode) -> dict[str, str]:
    return {
        keys.MIG_ALLOCATIONS: f'[{{"containerIndex":0,"deviceIndex":0,"gpuUUID":"{node.card(0).uuid}",'
        '"profile":"1g.10gb","placement":{"start":0,"size":1}}]'
    }


async def test_a_node_that_leaves_mode_mig_gives_its_cards_back_when_their_pods_are_gone(tmp_path: Path) -> None:
    async with agent_node(tmp_path, node={"operatingmode": "mig"}) as node:
        await node.until(lambda: enabled(node) == [True, True])
        await node.bound_pod("p", [[node.slice(0, memory=9728)]], annotations=reservation(node))
        await node.allocate(1, holder=("p", "c0"))
        await node.phase_is("p", "success")
        (made,) = node.hardware.instances(node.card(0).uuid)
        node.configure(operatingmode="hami-core")
        await node.until(lambda: enabled(node) == [True, False], what="the card without pods to be given back")
        assert node.hardware.instances(node.card(0).uuid) == [made]
        await node.plane.delete_pod("default", "p", grace_s=0)
        await node.until(lambda: enabled(node) == [False, False], what="the other card to be given back")


async def test_specs_of_a_strategy_that_is_left_go_with_the_last_pod_that_began_with_them(tmp_path: Path) -> None:
    flags = {"device-list-strategy": "cdi-cri", "dev-root": str(tmp_path / "driver")}
    (tmp_path / "driver" / "dev").mkdir(parents=True)
    for name in ("nvidiactl", "nvidia0", "nvidia1"):
        (tmp_path / "driver" / "dev" / name).touch()
    with captured() as logs:
        async with agent_node(tmp_path, flags=flags) as node:
            spec = tmp_path / "cdi" / SPEC
            await node.until(spec.exists)
            await node.bound_pod("p", [[node.slice(0, memory=1000)]])
            await node.allocate(1, holder=("p", "c0"))
            await node.phase_is("p", "success")
            await node.stop()
            node.flags["device-list-strategy"] = "envvar"
            await node.start()
            await logs.until("CDI specs of an earlier strategy stay for now")
            assert spec.exists()
            await node.plane.delete_pod("default", "p", grace_s=0)
            await node.until(lambda: not spec.exists(), what="the spec to be gone")


@pytest.fixture
def daemons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeMps]:
    with installed_mps(tmp_path, monkeypatch) as daemons:
        yield daemons


def healthy(cards: list[dict[str, Any]]) -> list[bool]:
    return [each.get("health", False) for each in cards]


async def test_a_card_whose_mps_daemon_does_not_begin_is_ill_until_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, daemons: FakeMps
) -> None:
    monkeypatch.setattr(mps.RETRY.__class__, "ceiling", lambda _self, _failures: 0.05)
    monkeypatch.setattr("tessera.node.reconciler.EVERY_S", 0.05)
    daemons.script("no-start")
    async with agent_node(tmp_path, node={"operatingmode": "mps"}) as node:
        await registered(node, lambda cards: healthy(cards) == [False, False])
        await node.kubelet.listed(lambda health: set(health.values()) == {"Unhealthy"})
        daemons.heal("no-start")
        await registered(node, lambda cards: healthy(cards) == [True, True])
        await node.kubelet.listed(lambda health: set(health.values()) == {"Healthy"})


async def test_what_was_answered_is_written_before_the_agent_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing.RETRIES.__class__, "delay", lambda _self, _failures: 0.01)
    async with agent_node(tmp_path) as node:
        node.plane.server.faults.next(Fail(503), method="PATCH", path="/pods/p$", times=5)
        await node.bound_pod("p", [[node.slice(0, memory=1000)]])
        await node.allocate(1, holder=("p", "c0"))
        assert await node.stop() == 0
        assert node.annotations("p")[keys.BIND_PHASE] == "success"


async def test_what_cannot_be_written_does_not_keep_the_agent_from_ending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FLUSH_S", 0.1)
    with captured() as logs:
        async with agent_node(tmp_path) as node:
            node.plane.server.faults.next(Fail(503), method="PATCH", path="/pods/p$", times=1000)
            await node.bound_pod("p", [[node.slice(0, memory=1000)]])
            await node.allocate(1, holder=("p", "c0"))
            assert await node.stop() == 0
            assert logs.of("handovers are not written")[0]["pods"] == 1
            node.plane.server.faults.clear()
            await node.start()
            await node.phase_is("p", "success")


async def test_before_its_first_registration_the_agent_is_not_ready(tmp_path: Path) -> None:
    async with agent_node(tmp_path, start=False) as node:
        node.plane.server.faults.next(Fail(500), method="GET", path=f"/api/v1/nodes/{NODE}$", times=1)
        await node.start()
        assert loads(node.annotations()[REGISTER])


async def test_links_that_only_one_card_sees_are_an_event_as_hamis_plugin_reports_it(tmp_path: Path) -> None:
    links = {"cards": [0, 1], "nvlinks": 4, "through": "cards", "one_way": True}
    environ = {"ENABLE_TOPOLOGY_SCORE": "true"}
    async with agent_node(tmp_path, cards={**TWO_CARDS, "links": [links]}, environ=environ) as node:
        (event,) = await node.plane.wait_for(lambda: node.plane.events("default", NODE))
        assert (event["source"]["component"], event["reason"]) == ("hami-device-plugin", "AsymmetricGPUP2PLink")
        assert event["involvedObject"]["uid"] == (node.plane.node(NODE) or {})["metadata"]["uid"]
        assert node.process.around.link_events._window == 3600.0
