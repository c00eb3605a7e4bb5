"""What goes wrong inside the agent or around it: said, and no worse than it has to be."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from pathlib import Path

import pytest

from tessera.host.simulated.hardware import no_cards
from tessera.node import agent as wiring
from tessera.node import process as module
from tessera.node.handover.assignments import Assignment, ObjectKey
from tessera.node.health.hardware_watch import HardwareWatch
from tessera.node.modes.base import AllocationRefused
from tessera.services import process as service_process
from tessera.wire.pod_devices import DeviceEntry
from tests.support.agent import SPLIT, agent_node
from tests.support.logs import captured


async def test_a_fault_of_the_watch_over_the_cards_ends_the_process_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run(self: HardwareWatch) -> None:
        raise RuntimeError("a bug")

    with captured() as logs:
        async with agent_node(tmp_path) as node:
            socket = node.kubelet.socket.parent / "nvidia-gpu.sock"
            assert socket.exists()
            await node.stop()
            monkeypatch.setattr(HardwareWatch, "run", run)
            await node.start(ready=False)
            assert await node.ended() == 1
            assert not os.path.lexists(socket)
    (event,) = logs.of("a part of the agent failed")
    assert "a bug" in repr(event["exc_info"].exceptions)


async def test_an_agent_whose_state_folder_is_in_the_way_serves_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file")
    with captured() as logs:
        async with agent_node(tmp_path) as node:
            await logs.until("the node configuration cannot be kept for later")
            await node.bound_pod("p", [[node.slice(0, memory=1000)]])
            await node.allocate(1, holder=("p", "c0"))
            await node.phase_is("p", "success")


async def test_another_driver_root_needs_another_process_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_process, "CHECK_EVERY_S", 0.02)
    with captured() as logs:
        async with agent_node(tmp_path) as node:
            del node.flags["driver-root-ctr-path"]
            (tmp_path / "device-config.yaml").write_text(
                f"nvidia: {{deviceSplitCount: {SPLIT + 1}}}\nflags: {{plugin: {{containerDriverRoot: /x}}}}"
            )
            await logs.until("another driver root takes effect when the agent is restarted")
            await node.kubelet.listed(lambda health: len(health) == 2 * (SPLIT + 1))


async def test_a_process_that_cannot_read_again_ignores_sighup(tmp_path: Path) -> None:
    async with agent_node(tmp_path) as node:
        node.process._reload = None
        os.kill(os.getpid(), signal.SIGHUP)
        await node.bound_pod("p", [[node.slice(0, memory=1000)]])
        await node.allocate(1, holder=("p", "c0"))
        await node.phase_is("p", "success")
        assert len(node.kubelet.registrations) == 1


async def test_a_sharing_mode_that_does_not_end_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wiring, "STOP_S", 0.01)
    with captured() as logs:
        async with agent_node(tmp_path) as node:
            # A mode that was never started is not stopped.
            await node.kubelet.listed()
            assert node.process.agent is not None
            monkeypatch.setattr(node.process.agent.mode, "stop", asyncio.Event().wait)
            assert await node.stop() == 0
    assert logs.of("the sharing mode did not end in time")


async def test_while_there_is_no_sharing_mode_nobody_gets_anything() -> None:
    mode = wiring.NotStarted()
    claim = Assignment(ObjectKey("default", "p", "u"), 0, "main", (DeviceEntry("GPU-a", "NVIDIA", 1000, 10),))
    for asked in (mode.hand_over(claim, ["GPU-a-0"]), mode.hand_over_downward_api(["GPU-a-0"])):
        with pytest.raises(AllocationRefused, match="starting"):
            await asked


async def test_a_driver_that_hangs_does_not_keep_the_process_from_ending(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CLOSE_S", 0.01)
    hangs = threading.Event()
    hardware = no_cards()
    monkeypatch.setattr(hardware, "close", hangs.wait, raising=False)
    await module._close(hardware)
    hangs.set()
