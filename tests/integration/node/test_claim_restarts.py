"""Agent ends before, in or after the preparation of a claim: no wrong slice, no leak, nothing that stays.

moment      what has happened when the agent ends
asked       kubelet has asked, and nothing is made
made        the sharing mode has handed over, and nothing is recorded
recorded    the claim is recorded, and its CDI spec is not written
prepared    kubelet has its answer
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from grpc import aio

from tessera.host.atomic_file import UNREADABLE
from tessera.node import agent
from tessera.node.dra.prepared_claims import FILE, PreparedClaims
from tessera.node.kubelet.endpoint import Endpoint
from tessera.node.modes import hami_core
from tessera.node.modes.hami_core import DirRetention, HamiCore
from tessera.node.modes.mig.mode import Mig
from tessera.wire.kubelet import dra_pb2 as messages
from tests.support.dra import ClaimNode, claim_node
from tests.support.logs import captured

MOMENTS: dict[str, tuple[tuple[type[Any], str], ...]] = {
    "asked": ((HamiCore, "hand_over"), (Mig, "hand_over")),
    "made": ((PreparedClaims, "put"),),
    "recorded": ((PreparedClaims, "restore_spec"),),
    "prepared": (),
}
MODES = ("hami-core", "mig")
CARD = {"cards": [{"model": "A100-SXM4-80GB"}], "state": "state.json"}
REGISTER = "hami.io/node-nvidia-register"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders that no claim needs go at once, and calls of an agent that is killed end with it."""
    monkeypatch.setattr(Endpoint.__init__, "__kwdefaults__", {"grace": 0.0})
    monkeypatch.setattr(hami_core, "LOOK_EVERY_S", 0.05)
    monkeypatch.setattr(hami_core, "DirRetention", lambda: DirRetention(grace=0.0))


@asynccontextmanager
async def node_in(tmp_path: Path, mode: str) -> AsyncIterator[ClaimNode]:
    async with claim_node(tmp_path, cards=CARD, node={"operatingmode": mode}) as node:
        yield node


async def claim_in(node: ClaimNode, mode: str, name: str = "c") -> messages.Claim:
    if mode == "mig":
        return await node.claim(name, node.whole(f"{node.name(0)}-1g-10gb-2"))
    return await node.claim(name, node.part(0, memory=4096, cores=30))


def left(node: ClaimNode, mode: str) -> list[str]:
    """Everything on the node that belongs to a claim."""
    hook = Path(node.agent.flags["hook-path"]) / "vgpu" / "containers"
    dirs = [each.name for each in hook.glob("claim-*")]
    instances = [str(each.mig_uuid) for each in node.agent.hardware.instances(node.agent.card(0).uuid)]
    return [*node.specs(), *dirs, *(instances if mode == "mig" else ())]


def recorded(node: ClaimNode) -> list[Any]:
    """The claims in the agent's file."""
    path = Path(node.agent.flags["state-dir"]) / FILE
    return list(json.loads(path.read_text())["claims"]) if path.exists() else []


async def end_agent_at(node: ClaimNode, claim: messages.Claim, moment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills the agent at a moment of the claim's preparation, and starts no other."""
    reached = asyncio.Event()

    async def stay(*_args: object, **_more: object) -> None:
        reached.set()
        await asyncio.Event().wait()

    with monkeypatch.context() as patch:
        for owner, name in MOMENTS[moment]:
            patch.setattr(owner, name, stay)
        asking = asyncio.create_task(node.prepare(claim))
        waiting = asyncio.create_task(reached.wait())
        await asyncio.wait([asking, waiting], return_when=asyncio.FIRST_COMPLETED)
        await node.agent.kill()
        waiting.cancel()
        with suppress(aio.AioRpcError):
            await asking


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("moment", MOMENTS)
async def test_the_next_agent_prepares_the_same_claim_once(
    tmp_path: Path, moment: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with node_in(tmp_path, mode) as node:
        claim = await claim_in(node, mode)
        await end_agent_at(node, claim, moment, monkeypatch)
        await node.agent.start()
        (device,) = await node.prepare(claim)
        assert list(device.cdi_device_ids) == [f"gpu.tessera.io/claim={claim.uid}-gpu"]
        if mode == "mig":
            (instance,) = node.agent.hardware.instances(node.agent.card(0).uuid)
            assert node.env(claim)["NVIDIA_VISIBLE_DEVICES"] == instance.mig_uuid
        else:
            assert node.env(claim)["CUDA_DEVICE_MEMORY_LIMIT_0"] == "4096m"
        await node.unprepare(claim)
        await node.agent.until(lambda: not left(node, mode), what="everything of the claim to go")


@pytest.mark.parametrize("moment", MOMENTS)
async def test_nothing_stays_of_a_claim_that_went_while_no_agent_ran(
    tmp_path: Path, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with node_in(tmp_path, "mig") as node:
        claim = await claim_in(node, "mig")
        await end_agent_at(node, claim, moment, monkeypatch)
        await node.delete_claim("c")
        await node.agent.start()
        # kubelet asks until it is answered. Until then containers may use what was prepared.
        assert len(recorded(node)) == (moment in ("recorded", "prepared"))
        await node.unprepare(claim)
        await node.agent.until(lambda: not left(node, "mig"), what="everything of the claim to go")
        assert not recorded(node)


@pytest.mark.parametrize("text", ["", "{", '{"claims": [{"key": 1}]}', "[]"], ids=["empty", "cut off", "other", "list"])
async def test_claims_are_found_again_without_the_record(tmp_path: Path, text: str) -> None:
    async with node_in(tmp_path, "mig") as node:
        kept, gone = (
            await claim_in(node, "mig", "kept"),
            await node.claim("gone", node.whole(f"{node.name(0)}-1g-10gb-5")),
        )
        answer = await node.prepare(kept)
        await node.prepare(gone)
        env = node.env(kept)
        await node.agent.kill()
        (tmp_path / "state" / FILE).write_text(text)
        await node.delete_claim("gone")
        with captured() as logged:
            await node.agent.start()
        assert any("unreadable" in str(each) for each in logged.events)
        assert (tmp_path / "state" / f"{FILE}{UNREADABLE}").read_text() == text
        # The instance of the claim that is still there was never touched; kubelet gets the same answer.
        await node.agent.until(lambda: len(node.agent.hardware.instances(node.agent.card(0).uuid)) == 1)
        assert node.specs() == [kept.uid]
        assert (await node.prepare(kept), node.env(kept)) == (answer, env)
        await node.unprepare(kept)
        await node.agent.until(lambda: not left(node, "mig"), what="everything of the claim to go")


async def test_a_spec_that_was_lost_is_written_again(tmp_path: Path) -> None:
    async with node_in(tmp_path, "hami-core") as node:
        claim = await claim_in(node, "hami-core")
        await node.prepare(claim)
        spec = node.spec(claim)
        path = node.cdi / f"gpu.tessera.io-claim-{claim.uid}.json"
        path.unlink()
        await node.agent.restart()
        assert node.spec(claim) == spec
        path.write_text("{}")
        await node.prepare(claim)
        assert node.spec(claim) == spec


async def test_after_a_boot_a_claim_is_prepared_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with node_in(tmp_path, "hami-core") as node:
        claim = await claim_in(node, "hami-core")
        await node.prepare(claim)
        cache = node.env(claim)["CUDA_DEVICE_MEMORY_SHARED_CACHE"]
        await node.agent.kill()
        monkeypatch.setattr(agent, "boot_id", lambda: "another")
        await node.agent.start()
        await node.prepare(claim)
        assert node.env(claim)["CUDA_DEVICE_MEMORY_SHARED_CACHE"] != cache


# -- back to the classic path


def registered(node: ClaimNode) -> list[bool]:
    """The health of each card on the node."""
    return [each.get("health", False) for each in json.loads(node.agent.annotations()[REGISTER])]


async def test_an_agent_without_dra_offers_no_card_that_a_claim_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with claim_node(tmp_path) as node:
        await node.prepare(await node.claim("c", node.part(0, memory=1000)))
        await node.agent.kill()
        node.agent.flags["dra"] = "false"
        await node.agent.start()
        assert registered(node) == [False, True]
        # After a boot no container has anything of it.
        await node.agent.kill()
        monkeypatch.setattr(agent, "boot_id", lambda: "another")
        await node.agent.start()
        await node.agent.until(lambda: registered(node) == [True, True], what="both cards to be registered")


async def test_an_agent_without_dra_serves_nothing_while_it_is_unknown_which_cards_claims_hold(tmp_path: Path) -> None:
    async with claim_node(tmp_path, start=False) as node:
        (tmp_path / "state").mkdir()
        (tmp_path / "state" / FILE).write_text("{")
        node.agent.flags["dra"] = "false"
        with captured() as logged:
            await node.agent.start(ready=False)
            await node.agent.until(lambda: any("it is unknown which cards" in str(each) for each in logged.events))
        assert REGISTER not in node.agent.annotations()
        assert (tmp_path / "state" / FILE).read_text() == "{"
