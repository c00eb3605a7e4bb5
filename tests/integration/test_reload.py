"""A changed device configuration takes effect without a restart; a broken one does not; no pod loses a card."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tessera.cli.grouped import read_file
from tessera.core.ledger.audit import audit
from tessera.scheduler.configuration import build_settings
from tessera.scheduler.process import Process
from tessera.services import process as service_process
from tessera.wire.journal import Start
from tessera_lab.sandbox.control_plane import ControlPlane
from tessera_lab.sandbox.nodes.node import SimulatedNode, gpu_cards
from tests.support.commands import OWN_PORTS, scheduler
from tests.support.event_loops import on_uvloop
from tests.support.journals import assert_same_ledger, records_of, replayed
from tests.support.logs import Logs, captured
from tests.support.product import gpu_pod
from tests.support.scheduler_process import Caller, calling, running, until

CHANGED = "device configuration changed"
NOT_READ = "configuration not read again, the old one stays"
FLAGS = {"extender-bind": "127.0.0.1:0", "metrics-bind-address": "127.0.0.1:0"}
NODES = ["n1", "n2"]

Json = dict[str, Any]


def config(count: str = "nvidia.com/gpu") -> str:
    return f"""
nvidia:
  resourceCountName: {count}
  resourceMemoryName: nvidia.com/gpumem
  resourceMemoryPercentageName: nvidia.com/gpumem-percentage
  resourceCoreName: nvidia.com/gpucores
  resourcePriorityName: nvidia.com/priority
  defaultGPUNum: 1
"""


def asking(resource: str) -> Json:
    """A pod for one card under this name, as a filter request has it."""
    limits = {resource: "1", "nvidia.com/gpumem": "1000"}
    containers = [{"name": "main", "resources": {"limits": limits, "requests": limits}}]
    return {
        "metadata": {"name": "q", "namespace": "default", "uid": f"uid-{resource}"},
        "spec": {"containers": containers},
    }


@dataclass
class World:
    """A scheduler with a configuration file, on two nodes with one card each."""

    plane: ControlPlane
    process: Process
    caller: Caller
    file: Path
    logs: Logs
    reads: list[str]
    """the texts that were read again"""

    async def place(self, name: str) -> Json:
        """A pod that is bound."""
        pod = await self.plane.create_pod(gpu_pod(name, gpu=1, mem=3000, cores=30))
        [node] = (await self.caller.filter(pod, NODES))["NodeNames"]
        assert await self.caller.bind(pod, node) == {"Error": ""}
        await self.plane.wait_for(lambda: self.plane.phase("default", name) == "Running", what=f"{name} to run")
        return pod

    async def manages(self, resource: str) -> bool:
        """Whether pods that ask for it are placed; other pods get all nodes back."""
        answer = await self.caller.filter(asking(resource), NODES)
        assert answer["Error"] == ""
        return len(answer["NodeNames"]) == 1

    async def changed(self, times: int = 1) -> None:
        """Wait until the file has taken effect and everything has been read again."""
        await self.logs.until(CHANGED, times=times)
        await until(lambda: not self.process.service.engine.missing())

    def cards(self) -> Json:
        nodes = self.process.service.ledger.state()["nodes"]
        return {name: node["cards"] for name, node in nodes.items()}


@asynccontextmanager
async def started(folder: Path) -> AsyncIterator[World]:
    file = folder / "device-config.yaml"
    file.write_text(config())
    flags = FLAGS | {"device-config-file": str(file)}
    reads: list[str] = []

    def read(path: str) -> str:
        reads.append(read_file(path))
        return reads[-1]

    settings = build_settings(flags, {}, read_file)
    with captured() as logs:
        async with (
            ControlPlane(nodes=[SimulatedNode(name, gpu_cards(name, 1)) for name in NODES]) as plane,
            running(plane, settings, reload=lambda: build_settings(flags, {}, read)) as process,
            calling(process.listeners["extender"].address) as caller,
        ):
            yield World(plane, process, caller, file, logs, reads)


def hang_up() -> None:
    os.kill(os.getpid(), signal.SIGHUP)


def linked_anew(file: Path, text: str) -> None:
    """As kubelet brings a changed ConfigMap into a pod."""
    (file.parent / "data").mkdir()
    (file.parent / "data" / "file").write_text(text)
    (file.parent / "link").symlink_to(file.parent / "data" / "file")
    (file.parent / "link").rename(file)


@on_uvloop
async def test_a_changed_file_takes_effect_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_process, "CHECK_EVERY_S", 0.01)
    async with started(tmp_path) as world:
        linked_anew(world.file, config("nvidia.com/vgpu"))
        await world.changed()
        assert await world.manages("nvidia.com/vgpu")
        assert not await world.manages("nvidia.com/gpu")


@on_uvloop
async def test_a_change_before_the_first_look_takes_effect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begin = service_process.FileWatch.start

    async def begin_late(notice: service_process.FileWatch) -> None:
        (tmp_path / "device-config.yaml").write_text(config("nvidia.com/vgpu"))
        await begin(notice)

    monkeypatch.setattr(service_process.FileWatch, "start", begin_late)
    async with started(tmp_path) as world:
        await world.changed()
        assert await world.manages("nvidia.com/vgpu")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nvidia:\n  resourceCountNam: x\n", "device-config.yaml:2"),
        (None, "No such file or directory"),
    ],
    ids=["unknown key", "gone"],
)
@on_uvloop
async def test_a_broken_file_is_reported_and_the_old_configuration_stays(
    tmp_path: Path, text: str | None, said: str
) -> None:
    async with started(tmp_path) as world:
        if text is None:
            world.file.unlink()
        else:
            world.file.write_text(text)
        hang_up()
        fault = await world.logs.until(NOT_READ)
        assert fault["level"] == "error"
        assert said in fault["error"]
        assert not world.process.service.engine.missing()
        assert await world.manages("nvidia.com/gpu")
        world.file.write_text(config("nvidia.com/vgpu"))
        hang_up()
        await world.changed()
        assert await world.manages("nvidia.com/vgpu")


@on_uvloop
async def test_a_broken_file_is_reported_once_not_at_every_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_process, "CHECK_EVERY_S", 0.001)
    async with started(tmp_path) as world:
        world.file.write_text("nvidia: [")
        await world.logs.until(NOT_READ)
        world.file.write_text(config("nvidia.com/vgpu"))
        await world.changed()
        assert len(world.logs.of(NOT_READ)) == 1


@on_uvloop
async def test_running_pods_keep_their_cards_in_the_accounts(tmp_path: Path) -> None:
    async with started(tmp_path) as world:
        await world.place("a")
        await world.place("b")
        before = world.process.service.ledger.state()
        assert sorted(use[:3] for cards in world.cards().values() for use in cards.values()) == [
            (0, 0, 0),
            (2, 6000, 60),
        ]
        world.file.write_text(config("nvidia.com/vgpu"))
        hang_up()
        await world.changed()
        assert world.process.service.ledger.state() == before
        assert audit(world.process.service.ledger) == []


@on_uvloop
async def test_a_vendor_that_was_left_out_and_comes_back_finds_its_pods_again(tmp_path: Path) -> None:
    async with started(tmp_path) as world:
        await world.place("a")
        before = world.process.service.ledger.state()
        world.file.write_text("hygon: {resourceCountName: hygon.com/dcunum}\n")
        hang_up()
        await world.changed()
        assert not await world.manages("nvidia.com/gpu")
        world.file.write_text(config())
        hang_up()
        await world.changed(times=2)
        assert world.process.service.ledger.state() == before
        assert audit(world.process.service.ledger) == []


@on_uvloop
async def test_a_pod_between_filter_and_bind_keeps_its_card(tmp_path: Path) -> None:
    async with started(tmp_path) as world:
        pod = await world.plane.create_pod(gpu_pod("p", gpu=1, mem=3000))
        [node] = (await world.caller.filter(pod, NODES))["NodeNames"]
        held = world.cards()
        world.file.write_text(config("nvidia.com/vgpu"))
        hang_up()
        await world.changed()
        assert world.cards() == held
        assert await world.caller.bind(pod, node) == {"Error": ""}
        assert audit(world.process.service.ledger) == []


@on_uvloop
async def test_a_signal_without_a_change_changes_nothing(tmp_path: Path) -> None:
    async with started(tmp_path) as world:
        world.plane.server.journal.clear()
        world.file.write_text("# The same in other words.\n" + config())
        hang_up()
        await until(lambda: world.reads)
        assert await world.manages("nvidia.com/gpu")
        assert world.logs.of(CHANGED) == []
        assert not any(seen.path.endswith(("/pods", "/nodes")) for seen in world.plane.server.journal)


async def test_the_command_reads_its_file_again_on_sighup(tmp_path: Path) -> None:
    file = tmp_path / "device-config.yaml"
    file.write_text(config())
    async with ControlPlane(nodes=[SimulatedNode("n1", gpu_cards("n1", 1))]) as plane:
        arguments = (f"--kubeconfig={plane.kubeconfig}", f"--device-config-file={file}", *OWN_PORTS)
        async with scheduler(*arguments) as command, calling(await command.address("extender")) as caller:
            file.write_text("nvidia: [")
            command.send(signal.SIGHUP)
            assert str(file) in (await command.said(NOT_READ))["error"]
            file.write_text(config("nvidia.com/vgpu"))
            command.send(signal.SIGHUP)
            await command.said(CHANGED)
            for _ in range(1000):
                answer = await caller.filter(asking("nvidia.com/vgpu"), ["n1", "n2"])
                if not answer["Error"]:
                    break
            assert answer["NodeNames"] == ["n1"]
            command.send(signal.SIGTERM)
            assert await command.end() == 0


@on_uvloop
async def test_the_journal_goes_on_with_the_new_configuration_and_replays(tmp_path: Path) -> None:
    async with started(tmp_path) as world:
        await world.place("p")
        world.file.write_text(config("nvidia.com/vgpu"))
        hang_up()
        await world.changed()
        assert await world.manages("nvidia.com/vgpu")
        records = records_of(world.process.service.journal)
        starts = [record for record in records if isinstance(record, Start)]
        names = [(start.device_sections or {})["nvidia"]["resourceCountName"] for start in starts]
        assert names == ["nvidia.com/gpu", "nvidia.com/vgpu"]
        assert_same_ledger(replayed(records), world.process.service.ledger)
