"""Golden cases 36 and 37: MIG instances made for pods, and reservations that nobody can read."""

from __future__ import annotations

from dataclasses import replace
from json import dumps, loads
from pathlib import Path
from typing import Any

import grpc
import pytest

from tessera.core.model.devices import MigPlacement, MigSlot
from tessera.node.handover import allocator
from tessera.wire.keys import BIND_PHASE, MIG_ALLOCATIONS
from tessera.wire.pod_devices import MigAllocation, encode_mig_allocations
from tests.support.agent import AgentNode, agent_node, bound, lock, pod_ended

MODE = {"operatingmode": "mig"}
CARDS = {"cards": [{"model": "H200", "count": 2}]}
SLOT = MigSlot("1g.18gb", MigPlacement(6, 1))


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The watch of pods is never behind, so nobody needs to wait for it."""
    monkeypatch.setattr(allocator, "WATCH_LAG_S", 0.02)


async def reserved(node: AgentNode, name: str, *, records: str | None = None, slot: MigSlot = SLOT) -> None:
    """A pod with one instance of card 0, or with other records of it."""
    text = encode_mig_allocations([MigAllocation(0, 0, node.card(0).uuid, slot)]) if records is None else records
    await bound(node, name, [[node.slice(0, memory=16384, cores=14)]], annotations={MIG_ALLOCATIONS: text})


async def test_golden_37_a_reservation_becomes_that_instance_is_used_again_and_goes_with_its_pod(
    tmp_path: Path,
) -> None:
    async with agent_node(tmp_path, cards=CARDS, node=MODE) as node:
        uuid = node.card(0).uuid
        await reserved(node, "p")
        first = await node.allocate(1)
        (made,) = node.hardware.instances(uuid)
        assert (made.profile_id, made.placement) == (19, SLOT.placement)
        assert first.envs["NVIDIA_VISIBLE_DEVICES"] == made.mig_uuid
        (written,) = loads(node.annotations("p")[MIG_ALLOCATIONS])
        identity = (written["migUUID"], written["gpuInstanceID"], written["computeInstanceID"])
        assert identity == (made.mig_uuid, made.gpu_instance, made.compute_instance)
        # kubelet lost what it had been given in a restart and asks again.
        await node.kubelet.restart()
        await node.kubelet.registered(2)
        await node.kubelet.listed()
        again = await node.allocate(1)
        assert again.envs["NVIDIA_VISIBLE_DEVICES"] == made.mig_uuid
        assert node.hardware.instances(uuid) == [made]
        await pod_ended(node, "p", "Failed")
        await node.until(lambda: not node.hardware.instances(uuid), what="the instance to be gone")


def record(node: AgentNode, **more: Any) -> dict[str, Any]:
    return {
        "containerIndex": 0,
        "deviceIndex": 0,
        "gpuUUID": node.card(0).uuid,
        "profile": "1g.18gb",
        "placement": {"start": 0, "size": 1},
        **more,
    }


@pytest.mark.parametrize("case", ["partial", "duplicate"])
async def test_golden_36_a_pod_whose_records_cannot_be_read_is_refused_and_nobody_else_is_touched(
    tmp_path: Path, case: str
) -> None:
    async with agent_node(tmp_path, cards=CARDS, node=MODE) as node:
        await reserved(node, "good")
        await node.allocate(1, holder=("good", "c0"))
        await node.phase_is("good", "success")
        before, instances = node.annotations("good"), node.hardware.instances(node.card(0).uuid)
        assert len(instances) == 1
        records, problem = {
            "partial": ([record(node, migUUID="MIG-x")], "partial runtime identity"),
            "duplicate": ([record(node), record(node)], "duplicate MIG allocation for container 0 device 0"),
        }[case]
        await reserved(node, "bad", records=dumps(records))
        await lock(node, "bad")
        with pytest.raises(grpc.aio.AioRpcError, match=problem):
            await node.allocate(1)
        assert node.annotations("bad")[BIND_PHASE] == "failed"
        assert node.annotations("good") == before
        assert node.hardware.instances(node.card(0).uuid) == instances
        await pod_ended(node, "bad", "Failed")
        # Once the unreadable pod has ended, others are served as ever.
        await reserved(node, "next", slot=replace(SLOT, placement=MigPlacement(5, 1)))
        await node.allocate(1, holder=("next", "c0"))
        await node.phase_is("next", "success")
