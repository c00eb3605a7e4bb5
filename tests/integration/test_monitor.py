"""The whole monitor in one event loop: the embedded apiserver, real folders, and scrapes over HTTP."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tessera.host.cards import InventoryError
from tessera.kube.access import load_access
from tessera.kube.client import KubeClient
from tessera.kube.resources import RESOURCE_CLAIMS
from tessera.monitor import process as module
from tessera.monitor.device_usage import CardUtilization, HostUsage
from tessera.monitor.process import MonitorProcess
from tessera.monitor.settings import MonitorSettings
from tessera.services.value_types import Address
from tessera.wire.resource_api import DRIVER
from tessera_lab.sandbox.control_plane import ControlPlane
from tests.support.commands import started
from tests.support.scheduler_process import calling
from tests.unit.monitor.builders import GPU_A, Slot, good, region

NODE = "node-a"
PATIENCE_S = 60.0
"""for something that never happens"""
CARD = CardUtilization(0, GPU_A, "NVIDIA H200", 500, 70, 30)


class Cards(HostUsage):
    """A driver that answers, until it does not."""

    def __init__(self) -> None:
        self.problem = ""
        self.closed = False

    def read(self) -> tuple[CardUtilization, ...]:
        if self.problem:
            raise InventoryError(self.problem)
        return (CARD,)

    def close(self) -> None:
        self.closed = True


class Monitored:
    """A node with pods, their folders and a monitor."""

    def __init__(self, plane: ControlPlane, base: Path, process: MonitorProcess, cards: Cards) -> None:
        self.plane, self.base, self.process, self.cards = plane, base, process, cards

    async def pod(self, name: str, data: bytes, *, init: bool = False) -> Path:
        """A pod on the node, with the region of its only container, or of its init container."""
        container = {"name": "main", "image": "x"}
        first = {"initContainers": [{"name": "prepare", "image": "x"}]} if init else {}
        made = await self.plane.create_pod(
            {"metadata": {"name": name, "namespace": "default"}, "spec": {"containers": [container], **first}}
        )
        uid = made["metadata"]["uid"]
        path = self.base / "containers" / f"{uid}_{'prepare' if init else 'main'}" / "x.cache"
        path.parent.mkdir()
        path.write_bytes(data)
        await self.plane.client.bind("default", name, uid=uid, node=NODE, annotations={})
        return path

    async def get(self, path: str) -> tuple[int, str]:
        assert self.process.address is not None
        async with calling(self.process.address) as caller:
            return await caller.get(path)

    async def until(self, predicate: Callable[[str], object]) -> str:
        """The metrics, as soon as they are such."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                _, text = await self.get("/metrics")
                if predicate(text):
                    return text


@asynccontextmanager
async def monitored(folder: Path, *, base: bool = True, **more: Any) -> AsyncIterator[Monitored]:
    tree = folder / "vgpu"
    if base:
        (tree / "containers").mkdir(parents=True)
    settings = MonitorSettings(node_name=NODE, base=tree, metrics=Address("127.0.0.1", 0), **more)
    cards = Cards()
    async with ControlPlane() as plane:
        access = load_access(kubeconfig=str(plane.kubeconfig), environ={})
        async with KubeClient(access, user_agent="tessera-monitor") as client:
            began = time.time()
            process = MonitorProcess(settings, client, host=cards, now=lambda: began)
            task = asyncio.create_task(process.run())
            try:
                async with asyncio.timeout(PATIENCE_S):
                    await process.listening.wait()
                yield Monitored(plane, tree, process, cards)
            finally:
                process.stopping.set()
                assert await task == 0
    assert cards.closed


@pytest.fixture(autouse=True)
def _quick_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds one after the other: what is tested here is what they do, not when."""
    monkeypatch.setattr(module, "ROUND_S", 0.01)


async def test_what_containers_use_that_got_their_cards_through_a_claim_is_shown(tmp_path: Path) -> None:
    async with monitored(tmp_path) as node:
        client = node.plane.client
        spec = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": DRIVER}}]}}
        made = await client.create(
            RESOURCE_CLAIMS.path("default"), {"metadata": {"name": "c"}, "spec": spec}, dict[str, Any]
        )
        container = {"name": "main", "image": "x", "resources": {"claims": [{"name": "own"}]}}
        own = [{"name": "own", "resourceClaimName": "c"}]
        pod = await node.plane.create_pod(
            {"metadata": {"name": "p"}, "spec": {"containers": [container], "resourceClaims": own}}
        )
        uid = pod["metadata"]["uid"]
        result = {"request": "gpu", "driver": DRIVER, "pool": NODE, "device": GPU_A.lower()}
        status = {
            "allocation": {"devices": {"results": [result]}},
            "reservedFor": [{"resource": "pods", "name": "p", "uid": uid}],
        }
        await client.replace(f"{RESOURCE_CLAIMS.path('default', 'c')}/status", {**made, "status": status})
        path = node.base / "containers" / f"claim-{made['metadata']['uid']}-gpu" / "x.cache"
        path.parent.mkdir()
        path.write_bytes(region(slots=[Slot({0: (1, 2, 3, 1234, 40)})]))
        await client.bind("default", "p", uid=uid, node=NODE, annotations={})
        text = await node.until(lambda text: 'pod="p"' in text)
        assert (
            f'hami_vgpu_memory_used_bytes{{container="main",device_uuid="{GPU_A}",namespace="default",pod="p",'
            'vdevice_index="0",zone="vGPU"} 1234.0'
        ) in text


async def test_a_pods_use_is_shown_and_its_priority_steered(tmp_path: Path) -> None:
    async with monitored(tmp_path) as node:
        now = int(node.process._now())
        used = Slot({0: (1, 2, 3, 1234, 40)})
        high = await node.pod("high", region(priority=0, slots=[used], last_kernel_time=now))
        low = await node.pod("low", region(priority=1, last_kernel_time=now), init=True)
        text = await node.until(lambda text: 'pod="high"' in text and 'pod="low"' in text)
        line = (
            f'hami_vgpu_memory_used_bytes{{container="main",device_uuid="{GPU_A}",namespace="default",pod="high",'
            'vdevice_index="0",zone="vGPU"} 1234.0'
        )
        assert line in text
        assert 'container="prepare"' in text
        assert "hami_host_gpu_memory_used_bytes" in text
        await node.until(lambda _text: good(low.read_bytes()).recent_kernel == -1)
        assert good(low.read_bytes()).utilization_switch == 1
        await node.until(lambda _text: good(high.read_bytes()).utilization_switch == 0)
        assert await node.get("/healthz") == (200, "")
        assert await node.get("/readyz") == (200, "")


async def test_folders_of_pods_that_are_gone_go_and_others_stay(tmp_path: Path) -> None:
    async with monitored(tmp_path) as node:
        kept = await node.pod("p", region())
        await node.until(lambda text: 'pod="p"' in text)
        os.utime(kept.parent, (0, 0))
        old, young = (node.base / "containers" / f"uid-{name}_main" for name in ("old", "young"))
        for folder in (young, old):
            folder.mkdir()
        os.utime(old, (0, 0))
        await node.until(lambda text: not old.exists() and 'pod="p"' in text)
        assert young.exists()
        assert kept.exists()


async def test_a_pod_that_is_gone_is_shown_no_more(tmp_path: Path) -> None:
    async with monitored(tmp_path) as node:
        await node.pod("p", region())
        await node.until(lambda text: 'pod="p"' in text)
        await node.plane.delete_pod("default", "p", grace_s=0)
        await node.until(lambda text: 'pod="p"' not in text)


async def test_bug_13_without_its_folder_it_lives_says_why_and_recovers(tmp_path: Path) -> None:
    async with monitored(tmp_path, base=False) as node:
        async with asyncio.timeout(PATIENCE_S):
            while "regions cannot be read" not in (await node.get("/healthz"))[1]:
                pass
        assert (await node.get("/readyz"))[0] == 503
        (node.base / "containers").mkdir(parents=True)
        await node.pod("p", region())
        await node.until(lambda text: 'pod="p"' in text)
        assert await node.get("/healthz") == (200, "")


async def test_bug_13_a_driver_that_goes_away_costs_the_series_of_cards_only(tmp_path: Path) -> None:
    async with monitored(tmp_path, legacy_metrics=True) as node:
        await node.pod("p", region())
        await node.until(lambda text: "HostGPUMemoryUsage{" in text and 'pod="p"' in text)
        node.cards.problem = "no driver"
        text = await node.until(lambda text: "hami_host_gpu_memory_used_bytes{" not in text)
        assert 'pod="p"' in text
        assert await node.get("/healthz") == (200, "")


async def test_bug_13_an_address_that_is_taken_ends_it_with_an_error(tmp_path: Path) -> None:
    async with monitored(tmp_path) as node:
        assert node.process.address is not None
        taken = MonitorSettings(node_name=NODE, base=tmp_path, metrics=node.process.address)
        assert await MonitorProcess(taken, node.plane.client, host=Cards()).run() == 1


async def test_bug_13_an_unexpected_fault_ends_it_with_an_error(tmp_path: Path) -> None:
    class Broken(Cards):
        def read(self) -> tuple[CardUtilization, ...]:
            raise RuntimeError("unexpected")

    async with monitored(tmp_path) as node:
        settings = MonitorSettings(node_name=NODE, base=tmp_path, metrics=Address("127.0.0.1", 0))
        assert await MonitorProcess(settings, node.plane.client, host=Broken()).run() == 1


def test_without_access_it_ends_with_code_2(tmp_path: Path) -> None:
    missing = MonitorSettings(node_name=NODE, base=tmp_path, kubeconfig=str(tmp_path / "missing"), warnings=("w",))
    assert module.run(missing) == 2


async def test_the_command_serves_until_it_is_told_to_stop(tmp_path: Path) -> None:
    async with ControlPlane() as plane:
        arguments = ("--node-name", NODE, "--hook-path", str(tmp_path), "--metrics-bind-address=127.0.0.1:0")
        async with started("monitor", *arguments, "--kubeconfig", str(plane.kubeconfig)) as command:
            address = (await command.said("listening"))["address"]
            async with calling(address) as caller:
                status, text = await caller.get("/metrics")
            assert status == 200
            assert "hami_build_info" in text
            command.send(signal.SIGTERM)
            assert await command.end() == 0
