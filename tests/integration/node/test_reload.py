"""Another configuration takes effect in the running agent; a bad one does not; nobody loses anything over it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tessera.core.model.devices import MigPlacement, MigSlot
from tessera.host.cards import CardEvent
from tessera.kube.backoff import Backoff
from tessera.node import process as module
from tessera.node.registration.registrar import NodeRegistrar
from tessera.services import process as service_process
from tessera.wire import keys
from tessera.wire.pod_devices import MigAllocation, encode_mig_allocations
from tessera.wire.registration import decode_registration
from tests.support.agent import SPLIT, AgentNode, agent_node
from tests.support.logs import captured

REGISTER = "hami.io/node-nvidia-register"
NOT_READ = "configuration not read again, the old one stays"


@pytest.fixture
def quick_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are looked at all the time."""
    monkeypatch.setattr(service_process, "CHECK_EVERY_S", 0.02)


def hang_up() -> None:
    os.kill(os.getpid(), signal.SIGHUP)


async def replicas(node: AgentNode, count: int) -> None:
    """Wait until each of the two cards is so many devices."""
    await node.kubelet.listed(lambda health: len(health) == 2 * count)


@pytest.mark.usefixtures("quick_look")
async def test_a_changed_node_file_takes_effect_by_itself(tmp_path: Path) -> None:
    async with agent_node(tmp_path) as node:
        await replicas(node, SPLIT)
        node.configure(devicesplitcount=7)
        await replicas(node, 7)
        node.configure(devicesplitcount=7, filterdevices={"index": [0]})
        health = await node.kubelet.listed(lambda health: len(health) == 7)
        assert all(name.startswith(node.card(1).uuid) for name in health)
        (tmp_path / "config.json").unlink()
        await replicas(node, SPLIT)


@pytest.mark.usefixtures("quick_look")
async def test_a_changed_yaml_file_takes_effect_by_itself(tmp_path: Path) -> None:
    async with agent_node(tmp_path) as node:
        (tmp_path / "device-config.yaml").write_text("nvidia: {deviceSplitCount: 3, resourceCountName: a.com/gpus}")
        await replicas(node, 3)
        assert node.kubelet.registrations[-1].resource_name == "a.com/gpus"
        assert sorted(each.name for each in node.kubelet.socket.parent.glob("nvidia-*.sock")) == ["nvidia-gpus.sock"]


async def test_what_was_handed_over_before_a_reload_is_not_handed_over_again(tmp_path: Path) -> None:
    async with agent_node(tmp_path) as node:
        await node.bound_pod("a", [[node.slice(0, memory=1000)]])
        first = await node.allocate(1, holder=("a", "c0"))
        hang_up()
        await node.kubelet.registered(times=2)
        await node.until(lambda: not node.process.missing())
        await node.bound_pod("b", [[node.slice(1, memory=2000)]])
        second = await node.allocate(1, holder=("b", "c0"))
        assert first.envs["CUDA_DEVICE_MEMORY_LIMIT_0"] == "1000m"
        assert second.envs["CUDA_DEVICE_MEMORY_LIMIT_0"] == "2000m"
        await node.phase_is("a", "success")
        await node.phase_is("b", "success")


async def test_a_sick_card_stays_sick_over_a_reload(tmp_path: Path) -> None:
    async with agent_node(tmp_path) as node:
        node.hardware.push(CardEvent(node.card(0).uuid, xid=79))
        await node.kubelet.listed(lambda health: "Unhealthy" in health.values())
        hang_up()
        await node.kubelet.registered(times=2)
        health = await node.kubelet.listed()
        assert {name.removesuffix(name[-2:]) for name, word in health.items() if word == "Unhealthy"} == {
            node.card(0).uuid
        }


@pytest.mark.usefixtures("quick_look")
async def test_a_bad_yaml_file_changes_nothing_and_is_said(tmp_path: Path) -> None:
    with captured() as logs:
        async with agent_node(tmp_path) as node:
            (tmp_path / "device-config.yaml").write_text("nvidia: {deviceSplitCount: many}")
            await logs.until(NOT_READ)
            assert not node.process.missing()
            assert len(node.kubelet.registrations) == 1
            (tmp_path / "device-config.yaml").write_text("nvidia: {deviceSplitCount: 5}")
            await replicas(node, 5)


@pytest.mark.usefixtures("quick_look")
async def test_a_broken_node_file_leaves_the_last_good_one_in_force_over_a_restart_too(tmp_path: Path) -> None:
    with captured() as logs:
        async with agent_node(tmp_path, node={"devicesplitcount": 7}) as node:
            await replicas(node, 7)
            (tmp_path / "config.json").write_text("{")
            await logs.until("configuration fault")
            assert len(node.kubelet.registrations) == 1
            await node.kill()
            await node.start()
            await replicas(node, 7)
            assert node.process.configuration.settings.node.split_count == 7


@pytest.mark.usefixtures("quick_look")
async def test_an_unchanged_configuration_disturbs_nobody(tmp_path: Path) -> None:
    async with agent_node(tmp_path) as node:
        node.configure()
        # The first of them is at the start.
        text = 'tessera_agent_reloads_total{result="unchanged"} 2.0'
        await node.until(lambda: text in node.process.metrics.render().decode())
        assert len(node.kubelet.registrations) == 1


async def test_a_fault_of_one_part_makes_all_parts_start_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    works = NodeRegistrar.run
    faults = [RuntimeError("a bug"), RuntimeError("another")]

    async def run(self: NodeRegistrar) -> None:
        if faults:
            raise faults.pop()
        await works(self)

    monkeypatch.setattr(NodeRegistrar, "run", run)
    monkeypatch.setattr(module, "PAUSES", Backoff(initial=0.01, cap=0.01, floor=0.01))
    with captured() as logs:
        async with agent_node(tmp_path) as node:
            assert len(logs.of("a part of the agent failed; restarting all parts")) == 2
            await node.bound_pod("p", [[node.slice(0, memory=1000)]])
            await node.allocate(1, holder=("p", "c0"))
            await node.phase_is("p", "success")


@pytest.mark.usefixtures("quick_look")
async def test_one_card_changes_its_mode_and_back_while_the_other_serves_on(tmp_path: Path) -> None:
    async with agent_node(tmp_path, cards={"cards": [{"model": "H200", "count": 2}]}) as node:
        shared, divided = node.card(0).uuid, node.card(1).uuid

        async def modes_are(*modes: str) -> None:
            def registered() -> bool:
                found = decode_registration(node.annotations().get(REGISTER, ""), vendor="NVIDIA")
                return tuple(each.mode for each in found) == modes

            await node.plane.wait_for(registered, what=f"cards in {modes}")
            await node.until(lambda: not node.process.missing())

        await modes_are("hami-core", "hami-core")
        with captured() as logs:
            node.configure(cardmodes=[{"operatingmode": "mig", "uuid": [divided, "GPU-none"]}])
            await modes_are("hami-core", "mig")
            assert node.annotations()[keys.AGENT] == "answer,hami-core,mig"
            (warned,) = logs.of("cardmodes of the node configuration names cards that are not there")
            assert warned["cards"] == ("GPU-none",)
        place = MigAllocation(0, 0, divided, MigSlot("1g.18gb", MigPlacement(6, 1)))
        records = {keys.MIG_ALLOCATIONS: encode_mig_allocations([place])}
        await node.bound_pod("instance", [[node.slice(1, memory=16384, cores=14)]], annotations=records)
        answer = await node.allocate(1, holder=("instance", "c0"))
        (made,) = node.hardware.instances(divided)
        assert answer.envs["NVIDIA_VISIBLE_DEVICES"] == made.mig_uuid
        await node.phase_is("instance", "success")
        await node.bound_pod("share", [[node.slice(0, memory=1000)]])
        answer = await node.allocate(1, holder=("share", "c0"))
        assert (answer.envs["NVIDIA_VISIBLE_DEVICES"], answer.envs["CUDA_DEVICE_MEMORY_LIMIT_0"]) == (shared, "1000m")
        await node.phase_is("share", "success")

        # Back, and the agent restarts meanwhile: the instance stays until its pod is gone.
        node.configure()
        await node.restart()
        await modes_are("hami-core", "hami-core")
        assert node.hardware.instances(divided) == [made]
        assert not node.hardware.mig_enabled(shared)
