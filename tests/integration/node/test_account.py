"""The account of a node: whatever is deleted or edited in the API, nothing is handed out twice, and the room of a pod
that has ended is free at once. The scheduler and both sides of kubelet are played; the agent is real."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from grpc import aio

from tessera.core.model.devices import MigPlacement, MigSlot
from tessera.kube.resources import PODS
from tessera.node import agent, arbiter
from tessera.node.handover import allocator
from tessera.node.handover.checkpoint import Checkpoint
from tessera.wire.keys import MIG_ALLOCATIONS
from tessera.wire.kubelet import dra_pb2 as messages
from tessera.wire.pod_devices import MigAllocation, encode_mig_allocations
from tests.support.agent import ALLOCATED, Json, pod_ended
from tests.support.dra import ClaimNode, claim_node
from tests.support.fake_mps import installed_mps

CARD_MIB = 81920
MODES = ("hami-core", "mps", "none", "mig")
CARDS = {"cards": [{"model": "A100-SXM4-80GB", "count": 2}], "state": "state.json"}


@pytest.fixture(autouse=True)
def _no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refusals come at once."""
    monkeypatch.setattr(arbiter, "LEAVING_S", ())


@asynccontextmanager
async def node_in(folder: Path, mode: str, monkeypatch: pytest.MonkeyPatch, **entry: Any) -> AsyncIterator[ClaimNode]:
    own = {"operatingmode": mode, "devicesplitcount": 4, **entry}
    with installed_mps(folder, monkeypatch):
        async with claim_node(folder, cards=CARDS, node=own, flags={"dra-allocator": "tessera"}) as node:
            yield node


async def claim_of_card(node: ClaimNode, mode: str, name: str = "c") -> messages.Claim:
    """A claim that leaves nothing of card 0, or of a place of it, to others."""
    if mode == "mig":
        return await node.claim(name, node.whole(f"{node.name(0)}-1g-10gb-2"))
    if mode == "none":
        return await node.claim(name, node.whole(node.name(0)))
    return await node.claim(name, node.part(0, memory=CARD_MIB, cores=30))


async def bind(node: ClaimNode, mode: str, name: str, *, memory: int = CARD_MIB, **more: Any) -> None:
    """A pod without claims that asks for the same."""
    annotations: Mapping[str, str] = {}
    if mode == "mig":
        slot = MigSlot("1g.10gb", MigPlacement(2, 1))
        text = encode_mig_allocations([MigAllocation(0, 0, node.agent.card(0).uuid, slot)])
        annotations, memory = {MIG_ALLOCATIONS: text}, 9728
    entry = node.agent.slice(0, memory=memory, cores=100 if mode == "none" else 30)
    await node.agent.bound_pod(name, [[entry]], annotations=annotations, **more)


async def refusal(node: ClaimNode, name: str) -> str:
    """Why kubelet gets nothing for the pod, which then has failed, as with the real one."""
    with pytest.raises(aio.AioRpcError) as refused:
        await node.agent.allocate(1, holder=(name, "c0"))
    await node.agent.phase_is(name, "failed")
    await pod_ended(node.agent, name, "Failed")
    return str(refused.value.details())


async def force_delete(node: ClaimNode, name: str) -> None:
    await node.agent.plane.client.delete(PODS.path("default", name), grace_s=0)
    pods = node.agent.process.around.handover.pods
    await node.agent.until(lambda: pods.named("default", name) is None)


@pytest.mark.parametrize("mode", MODES)
async def test_no_pod_gets_what_a_deleted_claim_still_holds(
    tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with node_in(tmp_path, mode, monkeypatch) as node:
        claim = await claim_of_card(node, mode)
        await node.prepare(claim)
        await node.delete_claim("c")
        await bind(node, mode, "first")
        assert "pod default/first does not fit" in await refusal(node, "first")
        # Another claim of the same name is another claim.
        assert "ResourceClaim default/c does not fit" in await node.refusal(await claim_of_card(node, mode))
        await node.agent.restart()
        await bind(node, mode, "second")
        assert "pod default/second does not fit" in await refusal(node, "second")
        assert claim.uid in node.specs() or mode == "none"
        await node.unprepare(claim)
        await bind(node, mode, "third")
        await node.agent.allocate(1, holder=("third", "c0"))


@pytest.mark.parametrize("mode", MODES)
async def test_no_claim_gets_what_a_pod_still_holds(tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with node_in(tmp_path, mode, monkeypatch) as node:
        await bind(node, mode, "p")
        await node.agent.allocate(1, holder=("p", "c0"))
        claim = await claim_of_card(node, mode)
        assert "does not fit" in await node.refusal(claim)
        await node.agent.restart()
        assert "does not fit" in await node.refusal(claim)
        # The pod is gone from the API, and kubelet has not stopped it yet.
        await force_delete(node, "p")
        assert "does not fit" in await node.refusal(claim)
        await node.agent.restart()
        assert "does not fit" in await node.refusal(claim)
        del node.agent.resources.held["default", "p", "c0"]
        await node.prepare(claim)


EDITS: dict[str, Callable[[ClaimNode], list[Json]]] = {
    "another card": lambda node: [node.part(1, memory=1000)],
    "more": lambda node: [node.part(0, memory=2000)],
    "nothing": lambda _node: [],
}


@pytest.mark.parametrize("edit", EDITS)
async def test_an_edited_claim_gets_nothing_else_and_keeps_what_it_has(
    tmp_path: Path, edit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with node_in(tmp_path, "hami-core", monkeypatch) as node:
        claim = await node.claim("c", node.part(0, memory=CARD_MIB // 2))
        await node.prepare(claim)
        env = node.env(claim)
        await node.allocate("c", *EDITS[edit](node))
        for _ in range(2):
            assert "before kubelet has unprepared it" in await node.refusal(claim)
            assert node.env(claim) == env
            await bind(node, "hami-core", "stray", memory=CARD_MIB // 2 + 1)
            assert "other claims 40960, and 40961 more" in await refusal(node, "stray")
            await force_delete(node, "stray")
            await node.agent.restart()


async def test_what_a_claim_had_before_a_boot_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with node_in(tmp_path, "hami-core", monkeypatch) as node:
        await node.prepare(await claim_of_card(node, "hami-core"))
        await node.delete_claim("c")
        await node.agent.kill()
        monkeypatch.setattr(agent, "boot_id", lambda: "another")
        await node.agent.start()
        await bind(node, "hami-core", "p")
        await node.agent.allocate(1, holder=("p", "c0"))


async def test_an_edited_annotation_frees_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with node_in(tmp_path, "hami-core", monkeypatch) as node:
        await bind(node, "hami-core", "p")
        await node.agent.allocate(1, holder=("p", "c0"))
        await node.agent.phase_is("p", "success")
        for name, text in {"empty": ";", "unreadable": "x,NVIDIA,x,1:;", "missing": None}.items():
            await node.agent.plane.client.patch(
                PODS.path("default", "p"), {"metadata": {"annotations": {ALLOCATED: text}}}
            )
            claim = await node.claim(name, node.part(0, memory=1))
            assert f"pods without claims hold {CARD_MIB} of it" in await node.refusal(claim)
            await node.agent.restart()
            assert f"pods without claims hold {CARD_MIB} of it" in await node.refusal(claim)
        await pod_ended(node.agent, "p", "Succeeded")
        await node.agent.until(lambda: not node.agent.process.around.handover.holdings.all())
        await node.prepare(claim)


async def test_the_room_of_a_pod_that_has_ended_is_free_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether or not the watch has shown it: before it refuses, the agent asks the API."""
    async with node_in(tmp_path, "hami-core", monkeypatch) as node:
        for number in range(4):
            await bind(node, "hami-core", f"p{number}")
            await node.agent.allocate(1, holder=(f"p{number}", "c0"))
            await pod_ended(node.agent, f"p{number}", ("Succeeded", "Failed")[number % 2])
            # kubelet gives its devices on, and lists the pod until it is deleted.


async def test_memory_and_shares_are_those_that_the_node_registers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with node_in(tmp_path, "hami-core", monkeypatch, devicememoryscaling=2) as node:
        for name in ("a", "b"):
            await bind(node, "hami-core", name, memory=CARD_MIB - 1)
            await node.agent.allocate(1, holder=(name, "c0"))
        await bind(node, "hami-core", "c", memory=3)
        assert f"has {2 * CARD_MIB} MiB" in await refusal(node, "c")
        claims = [await node.claim(f"c{number}", node.part(0, memory=1)) for number in range(2)]
        for each in claims:
            await node.prepare(each)
        await node.unprepare(claims[0])
        await bind(node, "hami-core", "d", memory=1)
        await node.agent.allocate(1, holder=("d", "c0"))
        assert "has 4 shares" in await node.refusal(claims[0])


async def test_of_pods_and_claims_that_ask_at_once_as_many_get_room_as_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with node_in(tmp_path, "hami-core", monkeypatch) as node:
        part = CARD_MIB // 3
        claims = [await node.claim(f"c{number}", node.part(0, memory=part)) for number in range(4)]
        await bind(node, "hami-core", "p", memory=part)
        answers = await asyncio.gather(
            node.agent.allocate(1, holder=("p", "c0")),
            *(node.prepare(each) for each in claims),
            return_exceptions=True,
        )
        assert sum(not isinstance(each, BaseException) for each in answers) == 3
        # Claims that come and go at once take nothing twice, and leave nothing in the end.
        mixed = [node.prepare_all(each) for each in claims], [node.unprepare(each) for each in claims]
        await asyncio.gather(*(call for pair in zip(*mixed, strict=True) for call in pair))
        assert len(node.specs()) <= 3
        await asyncio.gather(*(node.unprepare(each) for each in claims), node.unprepare(*claims))
        assert node.specs() == []


async def test_of_eight_allocates_for_one_pod_at_once_one_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(allocator, "WATCH_LAG_S", 0.05)
    async with node_in(tmp_path, "mig", monkeypatch) as node:
        await bind(node, "mig", "p")
        ids = [each for each in node.agent.kubelet.health if node.agent.card(0).uuid in each]
        answers = await asyncio.gather(
            *(node.agent.kubelet.allocate([ids[number % len(ids)]]) for number in range(8)), return_exceptions=True
        )
        assert sum(not isinstance(each, BaseException) for each in answers) == 1
        assert all("no binding pod" in str(each) for each in answers if isinstance(each, BaseException))
        assert len(node.agent.hardware.instances(node.agent.card(0).uuid)) == 1
        await node.agent.phase_is("p", "success")


async def test_an_answer_that_kubelet_never_got_counts_until_its_pod_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent ends after the answer is recorded and before kubelet has it."""
    async with node_in(tmp_path, "hami-core", monkeypatch) as node:
        written, add = asyncio.Event(), Checkpoint.add

        async def stay(self: Checkpoint, record: Any) -> None:
            await add(self, record)
            written.set()
            await asyncio.Event().wait()

        await bind(node, "hami-core", "p")
        with monkeypatch.context() as patch:
            patch.setattr(Checkpoint, "add", stay)
            asking = asyncio.create_task(node.agent.allocate(1))
            await written.wait()
            await node.agent.kill()
            with pytest.raises(aio.AioRpcError):
                await asking
        await node.agent.start()
        claim = await claim_of_card(node, "hami-core")
        assert "does not fit" in await node.refusal(claim)
        await pod_ended(node.agent, "p", "Failed")
        await node.prepare(claim)
