"""Shares of a card side by side through the agent, compared with plain MPS in the same run, and a restart of the agent.

The whole agent runs, with MPS daemons in a process of their own as in a cluster (`tessera mps-daemons`). Shares are
rates of products 4096 wide in bf16, in per cent of one process alone on the card through the same daemon.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from scripts.gpu_check import load
from scripts.gpu_check.agent import on_host, restore, started
from scripts.gpu_check.report import Report
from tessera.host.nvml.hardware import NvmlHardware
from tessera.node.modes.mps.control import LOGS, PID_FILE, PIPES, PROGRAM
from tessera.node.modes.mps.launcher import SOCKET
from tessera.vendors.nvidia.downward_api import MPS_THREADS
from tessera.wire import keys
from tests.support.agent import AgentNode

MIXES = ((10, 90), (30, 70), (50, 50), (20, 30, 50))
"""per cent that is asked for"""
WITHIN = 2.0
"""points between the agent's shares and those of plain MPS"""
MEMORY_MIB = 8192
"""of each process; a product needs a few hundred"""
OVER_S = 30.0
TURN_S = 1.0
"""of the measurements while the agent is stopped and started again"""

Percentages = dict[tuple[int, ...], list[float]]
"""measured, by what was asked for"""


def in_points(rates: Sequence[float], alone: float) -> list[float]:
    return [round(100 * rate / alone, 1) for rate in rates]


def verdict(mine: Sequence[float], plain: Sequence[float]) -> tuple[bool, str]:
    """Whether the agent's shares are those of plain MPS, and both in words."""
    near = len(mine) == len(plain) and all(abs(x - y) <= WITHIN for x, y in zip(mine, plain, strict=True))
    return near, f"{_words(mine)} through the agent, {_words(plain)} by plain MPS (per cent of one alone)"


def _words(points: Sequence[float]) -> str:
    return " / ".join(f"{each:.1f}" for each in points)


@contextmanager
def plain_mps() -> Iterator[Mapping[str, str]]:
    """A control daemon as an administrator starts it; the variables of its clients."""
    with tempfile.TemporaryDirectory(prefix="plain-mps-") as folder:
        pipes, logs = Path(folder, "pipe"), Path(folder, "log")
        pipes.mkdir()
        logs.mkdir()
        own = {PIPES: str(pipes), LOGS: str(logs)}
        environ = {**os.environ, **own}
        subprocess.run([PROGRAM, "-d"], env=environ, check=True, timeout=OVER_S)
        try:
            yield own
        finally:
            subprocess.run([PROGRAM], env=environ, input=b"quit\n", check=True, timeout=OVER_S)


async def measure_plain() -> Percentages:
    with plain_mps() as own:
        (alone,) = await load.side_by_side(await load.start_all([own]))
        found: Percentages = {}
        for mix in MIXES:
            loads = await load.start_all([{**own, MPS_THREADS: str(share)} for share in mix])
            found[mix] = in_points(await load.side_by_side(loads), alone)
        return found


@asynccontextmanager
async def mps_daemons(folder: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """`tessera mps-daemons`, as its container runs it."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tessera", "mps-daemons", f"--mps-dir={folder}", "--log-level=warning"
    )
    try:
        async with asyncio.timeout(OVER_S):
            while not (folder / SOCKET).exists():
                await asyncio.sleep(0.05)
        yield process
    finally:
        process.terminate()
        await process.wait()


async def granted(node: AgentNode, name: str, cores: int) -> Mapping[str, str]:
    """The variables of a container of a new pod."""
    await node.bound_pod(name, [[node.slice(0, memory=MEMORY_MIB, cores=cores)]])
    answer = await node.allocate(1, holder=(name, "c0"))
    await node.phase_is(name, keys.PHASE_SUCCESS)
    return on_host(answer)


async def ended(node: AgentNode, name: str) -> None:
    await node.plane.client.delete(f"/api/v1/namespaces/default/pods/{name}", grace_s=0)
    node.resources.held.pop(("default", name, "c0"), None)


async def measure_agent(node: AgentNode) -> Percentages:
    async def rates(mix: Sequence[int]) -> list[float]:
        names = [f"share-{'-'.join(map(str, mix))}-{number}" for number in range(len(mix))]
        envs = [await granted(node, name, share) for name, share in zip(names, mix, strict=True)]
        try:
            return await load.side_by_side(await load.start_all(envs))
        finally:
            for name in names:
                await ended(node, name)

    (alone,) = await rates((100,))
    return {mix: in_points(await rates(mix), alone) for mix in MIXES}


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


async def _measure_until(restarted: asyncio.Event, worker: load.Load) -> list[Mapping[str, Any]]:
    """Turn after turn, and one more afterwards. Raises LoadFailed."""
    turns = []
    while not restarted.is_set():
        turns.append(await worker.measure(TURN_S))
    return [*turns, await worker.measure(TURN_S)]


async def check_restart(report: Report, node: AgentNode, *, holder: int, daemon: Callable[[], int]) -> None:
    """`holder` is the process that holds the daemons; `daemon` returns the process of the card's daemon."""
    worker = await load.start(await granted(node, "worker", 50))
    try:
        before = daemon()
        report.check("the daemon is no process of the agent", parent_of(before) == holder, f"parent {holder}")
        restarted = asyncio.Event()
        measuring = asyncio.create_task(_measure_until(restarted, worker))
        await asyncio.sleep(TURN_S)
        await node.stop()
        await node.start()
        await node.kubelet.listed()
        restarted.set()
        turns = await measuring
        rates, pause = [each["rate"] for each in turns], max(each["longest_ms"] for each in turns)
        seen = f"{min(rates):.0f} to {max(rates):.0f} products a second, longest pause {pause} ms"
        report.check("a torch process goes on through a restart of the agent", daemon() == before, seen)
        later = await load.start(await granted(node, "later", 30), gib=(2, 10))
        await later.end()
        report.check("the next agent serves on the same daemon", later.found.get("10") is False, later.found)
    finally:
        await worker.end()
        for name in ("worker", "later"):
            if node.plane.pod("default", name) is not None:
                await ended(node, name)


async def check(report: Report, hardware: NvmlHardware) -> None:
    plain = await measure_plain()
    with tempfile.TemporaryDirectory(prefix="mps-daemons-") as folder:
        Path(folder).chmod(0o755)
        async with (
            mps_daemons(Path(folder)) as holder,
            started(hardware, "mps", flags={"external-mps-daemons": "true", "mps-dir": folder}) as node,
        ):
            await check_agent(report, hardware, node, plain=plain, holder=holder.pid)


async def check_agent(
    report: Report, hardware: NvmlHardware, node: AgentNode, *, plain: Percentages, holder: int
) -> None:
    card = node.card(0).uuid
    mine = await measure_agent(node)
    for mix in MIXES:
        near, words = verdict(mine[mix], plain[mix])
        report.check(f"{'/'.join(map(str, mix))} per cent, within {WITHIN:g} points of plain MPS", near, words)
    pid_file = Path(node.flags["mps-dir"], card, "pipe", PID_FILE)
    await check_restart(report, node, holder=holder, daemon=lambda: int(pid_file.read_text()))
    await restore(node, hardware)
    report.check("the card is put back", True, hardware.compute_mode(card).name)


def run(report: Report) -> None:
    hardware = NvmlHardware()
    try:
        asyncio.run(check(report, hardware))
    finally:
        hardware.close()
