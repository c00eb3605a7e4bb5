"""Golden cases 25 to 28, 38 and 39: what the agent outlives, and how it ends."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tessera.host.cards import CardEvent
from tessera.kube.backoff import Backoff
from tessera.node.health import hardware_watch as watching
from tessera.node.registration import registrar
from tessera_lab.sandbox.api.faults import Fail
from tests.support.agent import NODE, SPLIT, AgentNode, agent_node, registered


def replicas(*uuids: str) -> set[str]:
    return {f"{uuid}-{number}" for uuid in uuids for number in range(SPLIT)}


async def unhealthy(node: AgentNode, *uuids: str) -> None:
    """All replicas of these cards and of no others, and the same in the annotation."""
    await node.kubelet.listed(
        lambda health: {name for name, word in health.items() if word == "Unhealthy"} == replicas(*uuids)
    )
    cards = await registered(node, lambda cards: {c["id"] for c in cards if not c.get("health")} == set(uuids))
    assert all("health" not in card for card in cards if card["id"] in uuids), "false is absent, as all zeros are"


async def test_golden_25_a_new_kubelet_and_a_sighup_are_registered_with_and_a_sigterm_ends_it_well(
    tmp_path: Path,
) -> None:
    async with agent_node(tmp_path) as node:
        own = node.kubelet.socket.parent / "nvidia-gpu.sock"
        await node.kubelet.restart()
        await node.kubelet.registered(times=2)
        os.kill(os.getpid(), signal.SIGHUP)
        await node.kubelet.registered(times=3)
        await node.until(lambda: not node.process.missing())
        assert own.exists()
        os.kill(os.getpid(), signal.SIGTERM)
        assert await node.ended() == 0
        assert not os.path.lexists(own)


async def test_golden_26_a_kubelet_that_comes_late_is_registered_with_when_it_comes(tmp_path: Path) -> None:
    """Not as upstream, which tries again after 30 s: the folder is watched, so it is at once."""
    async with agent_node(tmp_path, start=False) as node:
        await node.kubelet.stop()
        await node.start(ready=False)
        await node.until(lambda: "kubelet is not running" in node.process.missing())
        await node.kubelet.start()
        assert (await node.kubelet.registered()).resource_name == "nvidia.com/gpu"
        assert set(await node.kubelet.listed()) == replicas(node.card(0).uuid, node.card(1).uuid)


async def test_golden_27_an_xid_of_an_application_is_ignored_and_one_of_the_card_is_not(tmp_path: Path) -> None:
    async with agent_node(tmp_path) as node:
        fine, gone = node.card(0).uuid, node.card(1).uuid
        # In this order: when the second is seen, the first has been judged.
        node.hardware.push(CardEvent(fine, xid=31))
        node.hardware.push(CardEvent(gone, xid=79))
        await unhealthy(node, gone)


async def test_golden_27_when_events_cannot_be_waited_for_all_cards_are_unhealthy(tmp_path: Path) -> None:
    async with agent_node(tmp_path) as node:
        await registered(node)
        cards = [node.card(index).uuid for index in (0, 1)]
        node.hardware.break_down("GPU access blocked by the operating system")
        await unhealthy(node, *cards)


async def test_golden_28_the_two_lists_decide_which_xids_count(tmp_path: Path) -> None:
    environ = {"DP_DISABLE_HEALTHCHECKS": "79", "DP_ENABLE_HEALTHCHECKS": "31"}
    async with agent_node(tmp_path, environ=environ) as node:
        fine, sick = node.card(0).uuid, node.card(1).uuid
        node.hardware.push(CardEvent(fine, xid=79))
        node.hardware.push(CardEvent(sick, xid=31))
        await unhealthy(node, sick)


async def test_golden_38_a_card_that_cannot_be_read_takes_no_other_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LATER_S", "SOON_S", "GAP_S"):
        monkeypatch.setattr(watching, name, 0.02)
    async with agent_node(tmp_path) as node:
        lost, other = node.card(0).uuid, node.card(1).uuid
        node.hardware.lose(lost)
        await unhealthy(node, lost)
        assert {card["id"] for card in await registered(node) if card.get("health")} == {other}
        await node.restart()
        await node.kubelet.listed(lambda health: set(health) == replicas(other))
        await registered(node, lambda cards: [card["id"] for card in cards] == [other])


async def test_golden_39_a_registration_that_failed_is_made_up_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registrar, "PAUSES", Backoff(initial=0.01, cap=0.01, floor=0.01))
    async with agent_node(tmp_path, start=False) as node:
        node.plane.server.faults.next(Fail(500), method="PATCH", path=f"/api/v1/nodes/{NODE}$")
        await node.start()
        assert [card["id"] for card in await registered(node)] == [node.card(index).uuid for index in (0, 1)]
        failed = [seen for seen in node.plane.server.journal if seen.method == "PATCH" and seen.status == 500]
        assert len(failed) == 1
