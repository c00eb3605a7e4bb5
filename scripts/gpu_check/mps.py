"""The mode `mps` on a real card: the agent's own code, and torch processes that get its answers.

There is no container here, so a client gets the answer's variables with the host's paths in place of the mounts.
Needs root, NVIDIA's MPS programs, torch, and a card that is not in use. The card is left as it was.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.gpu_check.report import Report
from tessera.host.cards import CardFacts, ComputeMode
from tessera.host.nvml.hardware import NvmlHardware
from tessera.node.fleet import CardState, Fleet
from tessera.node.handover.assignments import Assignment, ObjectKey
from tessera.node.modes.base import ContainerResponse
from tessera.node.modes.device_lists import DeviceLists
from tessera.node.modes.mps.control import PIPES, MpsProgram
from tessera.node.modes.mps.mode import CONTAINER_PIPES, Mps, retire_mps
from tessera.node.settings import AgentSettings, Paths
from tessera.wire.node_config import NodeSettings
from tessera.wire.pod_devices import DeviceEntry

OVER_S = 120.0
"""for one client, torch's slow start included"""
OTHER_USER = 1000

CLIENT = """
import json, os, sys, time
ask = json.loads(sys.argv[1])
if ask["user"]:
    os.setgid(ask["user"]); os.setuid(ask["user"])
found = {}
try:
    import torch
    torch.cuda.init()
    found["free_gib"] = round(torch.cuda.mem_get_info()[0] / 2**30, 2)
    found["processors"] = torch.cuda.get_device_properties(0).multi_processor_count
    for gib in ask["gib"]:
        try:
            torch.empty(int(gib * 2**30), dtype=torch.uint8, device="cuda")
            found[f"{gib}"] = True
        except torch.OutOfMemoryError:
            found[f"{gib}"] = False
        torch.cuda.empty_cache()
    if ask["multiply"]:
        a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
        b = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
        out = torch.empty_like(a)
        def median_ms(turns):
            times = []
            for turn in range(turns):
                begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                begin.record(); torch.mm(a, b, out=out); end.record(); torch.cuda.synchronize()
                times.append(begin.elapsed_time(end))
            return round(sorted(times)[turns // 2], 3)
        median_ms(10)
        found["ms"] = median_ms(30)
        # A whole card under load is soon limited by its power: that takes some seconds to settle.
        until = time.monotonic() + 3
        while time.monotonic() < until:
            median_ms(20)
        found["steady_ms"] = median_ms(200)
except Exception as error:
    found["error"] = f"{type(error).__name__}: {error}".splitlines()[0]
print(json.dumps(found), flush=True)
if ask["stay"]:
    sys.stdin.read()
"""


@dataclass(frozen=True, slots=True)
class Client:
    """A torch process and what it saw."""

    process: asyncio.subprocess.Process
    found: Mapping[str, Any]

    async def end(self) -> None:
        await self.process.communicate()


async def client(
    env: Mapping[str, str], *, gib: tuple[float, ...] = (), multiply: bool = False, stay: bool = False, user: int = 0
) -> Client:
    ask = json.dumps({"gib": gib, "multiply": multiply, "stay": stay, "user": user})
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CLIENT, ask, env={**os.environ, **env},
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    async with asyncio.timeout(OVER_S):
        found = json.loads(await process.stdout.readline() or '{"error": "it said nothing"}')
    made = Client(process, found)
    if not stay:
        await made.end()
    return made


def claim(card: CardFacts, name: str, *, memory: int, cores: int) -> Assignment:
    return Assignment(ObjectKey("check", name, name), 0, "main", (DeviceEntry(card.uuid, "NVIDIA", memory, cores),))


def on_host(answer: ContainerResponse) -> dict[str, str]:
    """The variables as they would be in the container, with its mount of the pipes undone."""
    host = {mount.container_path: mount.host_path for mount in answer.mounts}
    return {**answer.env, PIPES: host[CONTAINER_PIPES]}


async def check(report: Report, hardware: NvmlHardware, root: Path) -> None:
    card = next(each for each in hardware.scan() if isinstance(each, CardFacts))
    fleet = Fleet((CardState(card),))
    whole = (card.memory_bytes or 0) // 2**20
    before = hardware.compute_mode(card.uuid)
    settings = AgentSettings(
        node_name="here", node=NodeSettings(mode="mps"), paths=Paths(mps=root), environ=dict(os.environ)
    )

    def agent() -> Mps:
        return Mps(settings, device_lists=DeviceLists(settings), modes=hardware)

    async def given(mode: Mps, name: str, *, memory: int, cores: int) -> dict[str, str]:
        return on_host(await mode.hand_over(claim(card, name, memory=memory, cores=cores), [f"{card.uuid}-0"]))

    bare = (await client({}, multiply=True)).found
    report.check("a bare process multiplies", "ms" in bare, bare)

    mode = agent()
    await mode.start(fleet)
    report.check("the daemon serves", mode.problems == {}, mode.problems)
    report.check(
        "only MPS may open the card", hardware.compute_mode(card.uuid) is ComputeMode.EXCLUSIVE_PROCESS, before
    )

    small = await given(mode, "small", memory=4096, cores=30)
    report.check("the answer has limits", small["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == f"{card.uuid}=4096M", small)
    first = await client(small, gib=(2, 6), multiply=True, stay=True)
    report.check(
        "below the limit works, above is refused",
        first.found.get("2") is True and first.found.get("6") is False,
        first.found,
    )
    dropped = {**small, "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": ""}
    bold = (await client(dropped, gib=(2, 6))).found
    report.check("who empties the variables meets the ceiling", bold.get("2") is True and bold.get("6") is False, bold)
    past = (await client({**small, PIPES: "/nowhere"})).found
    report.check("no process gets past the daemon", "error" in past, past)

    large = await given(mode, "large", memory=16384, cores=60)
    second = (await client(large, gib=(8, 20))).found
    report.check(
        "a larger one comes while the first runs", second.get("8") is True and second.get("20") is False, second
    )
    other = (await client(large, gib=(8, 20), user=OTHER_USER)).found
    report.check("so does one of another user", other.get("8") is True and other.get("20") is False, other)

    await mode.stop()
    mode = agent()
    await mode.start(fleet)
    report.check(
        "the next agent takes the daemon over", mode.started == {card.uuid: 0} and not mode.problems, mode.started
    )
    both = await asyncio.gather(
        client(await given(mode, "one", memory=8192, cores=50), gib=(6, 10), multiply=True),
        client(await given(mode, "two", memory=6144, cores=50), gib=(4, 8), multiply=True),
    )
    kept = [
        each.found.get(f"{low}") is True and each.found.get(f"{high}") is False
        for each, low, high in zip(both, (6, 4), (10, 8), strict=True)
    ]
    report.check("two share the card, each within its limit", all(kept), [each.found for each in both])
    left = await retire_mps(root, hardware, program=MpsProgram(environ=settings.environ))
    report.check("a daemon with a client is left alone", list(left) == [card.uuid], left)
    await first.end()

    alone = (await client(await given(mode, "whole", memory=whole, cores=100), multiply=True)).found
    third = first.found.get("ms", 0) / alone.get("ms", float("inf"))
    report.check("30 per cent of the threads take about 1 / 0.3 of the time", 2.4 <= third <= 3.8, f"{third:.2f}")

    pid = int((root / card.uuid / "pipe" / "nvidia-cuda-mps-control.pid").read_text())
    os.kill(pid, 9)
    async with asyncio.timeout(30):
        while mode.started != {card.uuid: 1} or mode.problems:
            await asyncio.sleep(0.05)
    again = (await client(await given(mode, "after", memory=4096, cores=30), gib=(2, 6))).found
    report.check("a killed daemon is followed by another", again.get("2") is True and again.get("6") is False, again)

    await mode.stop()
    left = await retire_mps(root, hardware, program=MpsProgram(environ=settings.environ))
    report.check("the node is cleaned up", left == {}, left)
    report.check("the compute mode is as before", hardware.compute_mode(card.uuid) is before, before)
    # A card gets slower as it gets warm: bare before and after, MPS in between.
    after = (await client({}, multiply=True)).found
    steady = [each.get("steady_ms", 0) for each in (bare, alone, after)]
    speed = (steady[0] + steady[2]) / 2 / (steady[1] or float("inf"))
    seen = f"{speed:.3f}: {steady[1]} ms, bare {steady[0]} before and {steady[2]} after"
    report.check("the whole card through MPS has 0.97 of the bare speed", speed >= 0.97, seen)


def run(report: Report) -> None:
    hardware = NvmlHardware()
    try:
        with tempfile.TemporaryDirectory(prefix="mps-") as folder:
            # Clients of other users come through here.
            Path(folder).chmod(0o755)
            asyncio.run(check(report, hardware, Path(folder)))
    finally:
        hardware.close()
