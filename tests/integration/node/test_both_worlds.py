"""The agent with `--dra-allocator=tessera`: pods without claims and ResourceClaims on the same cards.

The scheduler that allocates both is played, and so are kubelet's two sides; everything else is real, and cards are
simulated.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tessera.core.model.devices import MigPlacement, MigSlot
from tessera.host.cards import CardEvent
from tessera.kube.backoff import Backoff
from tessera.kube.errors import ApiError
from tessera.kube.resources import NODES
from tessera.node import arbiter
from tessera.node.dra.publisher import SlicePublisher
from tessera.node.fleet import Fleet
from tessera.node.registration import registrar
from tessera.node.registration.registrar import NodeRegistrar
from tessera.wire.keys import MIG_ALLOCATIONS
from tessera.wire.objects import Node
from tessera.wire.pod_devices import MigAllocation, decode_mig_allocations, encode_mig_allocations
from tessera.wire.resource_api import CORDONED, MANAGED, MANAGED_BY_TESSERA, UNHEALTHY
from tessera_lab.sandbox.api import defaults
from tests.support.agent import NODE, Json
from tests.support.dra import ClaimNode, claim_node
from tests.support.fake_mps import installed_mps

BOTH = {"dra-allocator": "tessera"}
REGISTER = "hami.io/node-nvidia-register"
LIMIT = "CUDA_DEVICE_MEMORY_LIMIT_0"
MIG_CARD = {"cards": [{"model": "A100-SXM4-80GB"}], "state": "state.json"}
CARD_MIB = 81920


@pytest.fixture(autouse=True)
def _no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refusals come at once."""
    monkeypatch.setattr(arbiter, "LEAVING_S", ())


def taints(device: Json) -> list[str]:
    return [each["key"] for each in device.get("taints", ())]


async def delete_pod(node: ClaimNode, name: str) -> None:
    await node.agent.plane.client.delete(f"/api/v1/namespaces/default/pods/{name}", grace_s=0)


async def test_cards_are_registered_and_published_for_tessera_only(tmp_path: Path) -> None:
    async with claim_node(tmp_path, flags=BOTH) as node:
        assert len(json.loads(node.agent.annotations()[REGISTER])) == 2
        assert list(Path(node.agent.flags["plugin-dir"]).glob("nvidia-*.sock"))
        for device in node.devices().values():
            assert device["taints"] == [{"key": MANAGED, "value": MANAGED_BY_TESSERA, "effect": "NoSchedule"}]


async def test_health_and_cordon_reach_both_worlds(tmp_path: Path) -> None:
    async with claim_node(tmp_path, flags=BOTH) as node:
        # That pods without claims hold a card is no reason for a taint.
        await node.agent.bound_pod("classic", [[node.agent.slice(0, memory=1000)]])
        await node.agent.until(node.agent.process.around.handover.pods.all)
        cordon = {"metadata": {"annotations": {"hami.io/device-cordon": node.agent.card(1).uuid}}}
        await node.agent.plane.client.patch(NODES.path(name=NODE), cordon)
        node.agent.hardware.push(CardEvent(node.agent.card(0).uuid, xid=79))
        await node.published(lambda devices: taints(devices[node.name(0)]) == [MANAGED, UNHEALTHY])
        await node.published(lambda devices: taints(devices[node.name(1)]) == [MANAGED, CORDONED])
        await node.agent.until(
            lambda: (
                [each.get("health", False) for each in json.loads(node.agent.annotations()[REGISTER])] == [False, True]
            )
        )


async def test_a_pod_and_a_claim_on_one_card_get_each_its_own_slice(tmp_path: Path) -> None:
    async with claim_node(tmp_path, flags=BOTH) as node:
        await node.agent.bound_pod("classic", [[node.agent.slice(0, memory=3000, cores=30)]])
        claim = await node.claim("c", node.part(0, memory=4096, cores=40))
        answer, _ = await asyncio.gather(node.agent.allocate(1, holder=("classic", "c0")), node.prepare(claim))
        await node.agent.phase_is("classic", "success")
        assert (answer.envs[LIMIT], answer.envs["CUDA_DEVICE_SM_LIMIT"]) == ("3000m", "30")
        env = node.env(claim)
        assert (env[LIMIT], env["CUDA_DEVICE_SM_LIMIT"]) == ("4096m", "40")
        assert answer.envs["NVIDIA_VISIBLE_DEVICES"] == env["NVIDIA_VISIBLE_DEVICES"] == node.agent.card(0).uuid
        await node.agent.restart()
        await node.prepare(claim)
        assert node.env(claim) == env


async def test_a_claim_waits_for_a_holder_that_is_about_to_be_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arbiter, "LEAVING_S", (60.0,))
    async with claim_node(tmp_path, flags=BOTH) as node:
        await node.agent.bound_pod("classic", [[node.agent.slice(0, memory=CARD_MIB)]])
        await node.agent.allocate(1)
        claim = await node.claim("c", node.part(0, memory=1000))
        asking = asyncio.create_task(node.prepare(claim))
        await delete_pod(node, "classic")
        await asking


async def test_instances_of_pods_and_claims_are_released_each_with_its_own_holder(tmp_path: Path) -> None:
    async with claim_node(tmp_path, cards=MIG_CARD, node={"operatingmode": "mig"}, flags=BOTH) as node:
        uuid, hardware = node.agent.card(0).uuid, node.agent.hardware

        def places() -> list[int]:
            return sorted(each.placement.start for each in hardware.instances(uuid))

        def reserved(start: int) -> dict[str, str]:
            slot = MigSlot("1g.10gb", MigPlacement(start, 1))
            return {MIG_ALLOCATIONS: encode_mig_allocations([MigAllocation(0, 0, uuid, slot)])}

        async def bound(name: str, start: int) -> None:
            entry = node.agent.slice(0, memory=9728, cores=15)
            await node.agent.bound_pod(name, [[entry]], annotations=reserved(start))
            await node.agent.allocate(1, holder=(name, "c0"))
            await node.agent.phase_is(name, "success")

        await bound("first", 0)
        claims = [await node.claim(f"c{start}", node.whole(f"{uuid.lower()}-1g-10gb-{start}")) for start in (0, 1, 2)]
        assert "pod default/first holds the place" in await node.refusal(claims[0])
        for each in claims[1:]:
            await node.prepare(each)
        await bound("second", 3)
        assert places() == [0, 1, 2, 3]
        # Only what the agent completes is the pod's; the claims have no annotation.
        (completed,) = decode_mig_allocations(node.agent.annotations("second")[MIG_ALLOCATIONS])
        assert completed.mig_uuid in [each.mig_uuid for each in hardware.instances(uuid)]
        await node.agent.restart()
        await delete_pod(node, "first")
        await node.agent.until(lambda: places() == [1, 2, 3], what="the first pod's instance to be destroyed")
        await node.unprepare(claims[1])
        await node.agent.until(lambda: places() == [2, 3], what="the claim's instance to be destroyed")
        await delete_pod(node, "second")
        await node.agent.until(lambda: places() == [2], what="the second pod's instance to be destroyed")


async def test_in_mode_mps_the_ceiling_of_a_card_is_the_largest_of_both_worlds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with installed_mps(tmp_path, monkeypatch) as daemons:
        async with claim_node(tmp_path, node={"operatingmode": "mps"}, flags=BOTH) as node:
            card = node.agent.card(0).uuid
            claim = await node.claim("small", node.part(0, memory=4096, cores=30))
            await node.prepare(claim)
            await node.agent.bound_pod("classic", [[node.agent.slice(0, memory=8192, cores=60)]])
            answer = await node.agent.allocate(1, holder=("classic", "c0"))
            assert answer.envs["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == f"{card}=8192M"
            assert node.env(claim)["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == f"{card}=4096M"
            await node.agent.until(lambda: daemons.default(card) == ("8192M", 60), what="the pod's ceiling")
            await delete_pod(node, "classic")
            await node.agent.until(lambda: daemons.default(card) == ("4096M", 30), what="the claim's ceiling")


# -- the taint


async def test_a_node_is_not_registered_while_other_schedulers_may_be_offered_its_cards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, tried, go_on = SlicePublisher._write, asyncio.Event(), asyncio.Event()

    async def failing(self: SlicePublisher, contents: Any) -> None:
        if not go_on.is_set():
            tried.set()
            raise ApiError(status=500, message="no")
        await write(self, contents)

    monkeypatch.setattr(SlicePublisher, "_write", failing)
    async with claim_node(tmp_path, flags=BOTH, start=False) as node:
        await node.agent.start(ready=False)
        await tried.wait()
        assert REGISTER not in node.agent.annotations()
        go_on.set()
        await node.agent.until(lambda: REGISTER in node.agent.annotations())
        assert all(taints(each) == [MANAGED] for each in node.devices().values())


async def test_a_server_that_drops_taints_is_offered_no_devices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def drop(content: Json) -> None:
        for device in content["spec"].get("devices", ()):
            device.pop("taints", None)

    async with claim_node(tmp_path) as node:
        # What kube-scheduler may have until now.
        assert node.slices()
        await node.agent.kill()
        monkeypatch.setitem(defaults._DEFAULTS, "ResourceSlice", drop)
        node.agent.flags |= BOTH
        await node.agent.start(ready=False)
        await node.agent.until(lambda: REGISTER in node.agent.annotations())
        assert not node.slices()
        await node.agent.until(lambda: "enable DRADeviceTaints" in node.agent.process.missing())


async def test_cards_are_left_to_kube_scheduler_only_after_their_registration_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted, tries, go_on = NodeRegistrar._wanted, 0, asyncio.Event()

    async def failing(self: NodeRegistrar, node: Node, fleet: Fleet) -> dict[str, str | None]:
        nonlocal tries
        if not go_on.is_set():
            tries += 1
            raise ApiError(status=500, message="no")
        return await wanted(self, node, fleet)

    async with claim_node(tmp_path, flags=BOTH) as node:
        await node.agent.kill()
        monkeypatch.setattr(NodeRegistrar, "_wanted", failing)
        monkeypatch.setattr(registrar, "PAUSES", Backoff(initial=0.1, cap=0.1))
        node.agent.flags["dra-allocator"] = "kube-scheduler"
        await node.agent.start(ready=False)
        await node.agent.until(lambda: tries == 3)
        assert REGISTER in node.agent.annotations()
        assert all(taints(each) == [MANAGED] for each in node.devices().values())
        go_on.set()
        await node.published(lambda devices: not any(taints(each) for each in devices.values()))
        assert REGISTER not in node.agent.annotations()
