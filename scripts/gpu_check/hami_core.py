"""The mode `hami-core` on a real card, with HAMi's library in a container: what it enforces, and what it does not.

    python -m scripts.gpu_check.hami_core LIBRARY RESULTS

The whole agent answers Allocate; a container is a mount namespace with exactly the answer's mounts and variables
(`container`). The agent itself runs in a namespace of its own, in which the library is installed as on a node and /etc
is a copy, so the machine stays as it was. Shares of cores are measured and reported, not asserted: the library counts
blocks of kernels, and large kernels have few.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from scripts.gpu_check import container, load
from scripts.gpu_check.agent import started
from scripts.gpu_check.report import Line, Report
from tessera.host.nvml.hardware import NvmlHardware
from tessera.monitor.collector import RegionCollector, Snapshot
from tessera.monitor.container_dirs import Owner
from tessera.monitor.process import ROUND_S
from tessera.node.modes.base import HostMount
from tessera.node.modes.hami_core import LIBRARY, LIBRARY_HOME, LOCK_DIR
from tessera.vendors.nvidia.downward_api import CORE_POLICY
from tessera.wire import keys
from tessera.wire.kubelet import device_plugin_pb2 as messages
from tests.support.agent import AgentNode

PART = "hami-core"
HOME = LIBRARY_HOME / "vgpu"
LIMIT_MIB = 4096
FITS_GIB, TOO_MUCH_GIB = 3, 6
OVER_S = 240.0
"""for the whole part"""
RESYNC_S = 300.0


def run(report: Report, library: Path) -> None:
    """Runs the part in a process of its own, and takes over its results."""
    if not library.is_file():
        report.check("the library is there", False, f"{library} is no file")
        return
    with ExitStack() as stack:
        results = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hami-core-")), "results.json")
        for needed in (HOME, Path(LOCK_DIR)):
            stack.enter_context(borrowed(needed))
        part = [sys.executable, "-m", "scripts.gpu_check.hami_core", str(library.resolve()), str(results)]
        code = subprocess.run(part, check=False, timeout=OVER_S).returncode
        lines = json.loads(results.read_text()) if results.exists() else []
    report.lines.extend(Line(**{**line, "part": report.part}) for line in lines)
    if code != 0 or not lines:
        report.check("ran to its end", False, f"exit status {code}")


@contextmanager
def borrowed(directory: Path) -> Iterator[None]:
    """A directory that is there for a while, if it was not there before."""
    missing = not directory.exists()
    if missing:
        directory.mkdir(parents=True)
    try:
        yield
    finally:
        if missing:
            shutil.rmtree(directory, ignore_errors=True)


def install(library: Path, scratch: Path) -> None:
    """Puts the library where nodes have it, in this namespace only. Raises OSError and CalledProcessError."""
    container.leave_host()
    container.mount("tmpfs", str(HOME), 0, "tmpfs")
    shutil.copy(library, HOME / LIBRARY)
    (HOME / "ld.so.preload").write_text(f"{HOME / LIBRARY}\n")
    # Containers mount their ld.so.preload over a file that this machine need not have.
    subprocess.run(["cp", "-a", "/etc", str(scratch / "etc")], check=True)
    (scratch / "etc" / "ld.so.preload").touch()
    container.mount(str(scratch / "etc"), "/etc", container.MS_BIND)


def mounts_of(answer: messages.ContainerAllocateResponse) -> list[HostMount]:
    return [HostMount(each.container_path, each.host_path, each.read_only) for each in answer.mounts]


class Pod:
    """A pod with one container and its slice."""

    def __init__(self, name: str, uid: str, answer: messages.ContainerAllocateResponse) -> None:
        self.name = name
        self.owner = Owner(uid, "c0")
        self.env: Mapping[str, str] = dict(answer.envs)
        self.container = container.command(mounts_of(answer))

    async def start(self, *, gib: Sequence[float] = (), policy: str = "") -> load.Load:
        env = {**self.env, CORE_POLICY: policy} if policy else self.env
        return await load.start(env, gib=gib, container=self.container)

    def smi(self) -> str:
        """The memory that nvidia-smi shows in the container, in MiB."""
        query = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
        environ = {**os.environ, **self.env}
        done = subprocess.run(
            [*self.container, *query], env=environ, capture_output=True, text=True, check=False, timeout=load.START_S
        )
        words = [line for line in done.stdout.split() if line.isdecimal()]
        return words[-1] if words else done.stdout + done.stderr


async def bound(node: AgentNode, name: str, *, cores: int) -> Pod:
    made = await node.bound_pod(name, [[node.slice(0, memory=LIMIT_MIB, cores=cores)]])
    answer = await node.allocate(1, holder=(name, "c0"))
    await node.phase_is(name, keys.PHASE_SUCCESS)
    return Pod(name, made["metadata"]["uid"], answer)


@asynccontextmanager
async def monitor(pods: Sequence[Pod], card: str) -> AsyncIterator[list[Snapshot]]:
    """The monitor's rounds; the last snapshot is the latest."""
    collector = RegionCollector(HOME, interval=RESYNC_S)
    granted = {pod.owner: frozenset({card}) for pod in pods}
    seen: list[Snapshot] = []

    async def rounds() -> None:
        while True:
            uids = [pod.owner.uid for pod in pods]
            seen.append(await asyncio.to_thread(collector.run, granted, uids, now=time.time()))
            await asyncio.sleep(ROUND_S)

    task = asyncio.create_task(rounds())
    try:
        yield seen
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def ratio(rate: float, bare: float) -> str:
    return f"{rate / bare:.3f} of the bare speed"


async def check_memory(report: Report, pod: Pod, card: str) -> None:
    one = await pod.start(gib=(FITS_GIB, TOO_MUCH_GIB))
    try:
        found = one.found
        report.check(f"{FITS_GIB} GiB of {LIMIT_MIB} MiB can be allocated", found.get(f"{FITS_GIB}") is True, found)
        report.check(f"{TOO_MUCH_GIB} GiB cannot", found.get(f"{TOO_MUCH_GIB}") is False, found)
        report.check(f"CUDA shows {LIMIT_MIB} MiB", found.get("total_mib") == LIMIT_MIB, found.get("total_mib"))
        shown = await asyncio.to_thread(pod.smi)
        report.check(f"nvidia-smi shows {LIMIT_MIB} MiB", shown == str(LIMIT_MIB), shown)
        async with monitor([pod], card) as seen:
            while not seen:
                await asyncio.sleep(0.1)
            region = seen[-1].regions.get(pod.owner)
        device = region.devices[0] if region is not None and region.devices else None
        report.check(
            "the monitor reads the limit and the use",
            device is not None and device.limit == LIMIT_MIB * 2**20 and device.use.total > 0,
            seen[-1].problems or device,
        )
    finally:
        await one.end()


async def check_cores(report: Report, one: Pod, two: Pod, *, card: str, bare: float) -> None:
    for policy in ("", "FORCE"):
        (rate,) = await load.side_by_side([await one.start(policy=policy)])
        words = f" with {CORE_POLICY}={policy}" if policy else ""
        report.check(f"30 % of the cores alone{words}: measured, not enforced", True, ratio(rate, bare))
    async with monitor([one, two], card):
        loads = await asyncio.gather(one.start(), two.start())
        rates = await load.side_by_side(loads)
    seen = " and ".join(ratio(rate, bare) for rate in rates)
    report.check("30 % beside 60 %, monitor running: measured, not enforced", True, seen)


async def check(report: Report, hardware: NvmlHardware) -> None:
    (bare,) = await load.side_by_side([await load.start({})])
    report.check("a bare process multiplies", bare > 0, f"{bare:.0f} products a second")
    async with started(hardware, "hami-core", flags={"hook-path": str(LIBRARY_HOME), "lock-dir": LOCK_DIR}) as node:
        card = node.card(0).uuid
        one, two = await bound(node, "one", cores=30), await bound(node, "two", cores=60)
        report.check("the answer limits memory", one.env["CUDA_DEVICE_MEMORY_LIMIT_0"] == f"{LIMIT_MIB}m", one.env)
        await check_memory(report, one, card)
        await check_cores(report, one, two, card=card, bare=bare)


def main(library: Path, results: Path) -> int:
    report = Report(part=PART)
    hardware = NvmlHardware()
    try:
        with tempfile.TemporaryDirectory(prefix="hami-core-etc-") as scratch:
            install(library, Path(scratch))
            asyncio.run(check(report, hardware))
    except Exception as error:
        report.crashed(error)
    finally:
        hardware.close()
    found: list[dict[str, Any]] = [asdict(line) for line in report.lines]
    results.write_text(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
