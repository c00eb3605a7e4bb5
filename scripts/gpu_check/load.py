"""A torch process that multiplies large matrices for as long as it is told, and says how fast it was.

It is started with the variables under test, and waits for commands. So several of them can be measured in the same
seconds, and torch's slow start is in none of the figures.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

START_S = 120.0
"""torch's slow start"""
LATE_S = 30.0
"""beyond the seconds that a measurement takes"""
WARM_S = 0.5
"""before a measurement, while all processes run already"""
WINDOW_S = 4.0
"""of a measurement: two windows of one load differ by less than half a per cent"""

SCRIPT = """
import json, sys, time
found = {}
def said(error):
    return f"{type(error).__name__}: {error}".splitlines()[0]
try:
    import torch
    torch.cuda.init()
    free, total = torch.cuda.mem_get_info()
    found["free_mib"], found["total_mib"] = free // 2**20, total // 2**20
    found["processors"] = torch.cuda.get_device_properties(0).multi_processor_count
    for gib in json.loads(sys.argv[1]):
        try:
            torch.empty(int(gib * 2**30), dtype=torch.uint8, device="cuda")
            found[f"{gib}"] = True
        except torch.OutOfMemoryError:
            found[f"{gib}"] = False
        torch.cuda.empty_cache()
    a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    out = torch.empty_like(a)
    def products(seconds):
        done, longest, begin = 0, 0.0, time.monotonic()
        last = begin
        while last < begin + seconds:
            for _ in range(10):
                torch.mm(a, b, out=out)
            torch.cuda.synchronize()
            now = time.monotonic()
            done, longest, last = done + 10, max(longest, now - last), now
        return {"rate": done / (last - begin), "longest_ms": round(1000 * longest, 1)}
    products(0.3)
except Exception as error:
    found["error"] = said(error)
print(json.dumps(found), flush=True)
for line in sys.stdin:
    try:
        answer = products(float(line))
    except Exception as error:
        answer = {"error": said(error)}
    print(json.dumps(answer), flush=True)
"""


class LoadFailed(Exception):
    """A process could not start or measure; the text has its own words."""


@dataclass(frozen=True, slots=True)
class Load:
    """One process. `found` is what it saw at its start: memory in MiB, multiprocessors, and which sizes in GiB fit."""

    process: asyncio.subprocess.Process
    found: Mapping[str, Any]

    async def measure(self, seconds: float = WINDOW_S) -> Mapping[str, Any]:
        """Returns `rate` in products a second and `longest_ms` between two of its batches. Raises LoadFailed."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{seconds}\n".encode())
        async with asyncio.timeout(seconds + LATE_S):
            return await _answer(self.process)

    async def end(self) -> None:
        if self.process.returncode is None:
            assert self.process.stdin is not None
            self.process.stdin.close()
            try:
                async with asyncio.timeout(LATE_S):
                    await self.process.wait()
            except TimeoutError:
                self.process.kill()
                await self.process.wait()


async def start(env: Mapping[str, str], *, gib: Sequence[float] = (), container: Sequence[str] = ()) -> Load:
    """`container` is a command that runs another one in a container. Raises LoadFailed."""
    process = await asyncio.create_subprocess_exec(
        *container, sys.executable, "-c", SCRIPT, json.dumps(gib), env={**os.environ, **env},
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        async with asyncio.timeout(START_S):
            return Load(process, await _answer(process))
    except BaseException:
        if process.returncode is None:
            process.kill()
            await process.wait()
        raise


async def side_by_side(loads: Sequence[Load]) -> list[float]:
    """The rate of each, measured in the same seconds. Ends them. Raises LoadFailed."""
    try:
        await asyncio.gather(*(each.measure(WARM_S) for each in loads))
        return [each["rate"] for each in await asyncio.gather(*(each.measure() for each in loads))]
    finally:
        await asyncio.gather(*(each.end() for each in loads))


async def start_all(envs: Sequence[Mapping[str, str]]) -> list[Load]:
    """All of them, or none. Raises LoadFailed."""
    results = await asyncio.gather(*(start(env) for env in envs), return_exceptions=True)
    loads = [each for each in results if isinstance(each, Load)]
    for fault in results:
        if isinstance(fault, BaseException):
            await asyncio.gather(*(each.end() for each in loads))
            raise fault
    return loads


async def _answer(process: asyncio.subprocess.Process) -> Mapping[str, Any]:
    """The next line that is an answer: libraries print lines of their own."""
    assert process.stdout is not None
    while line := await process.stdout.readline():
        try:
            answer = json.loads(line)
        except ValueError:
            continue
        if isinstance(answer, dict):
            if "error" in answer:
                raise LoadFailed(answer["error"])
            return answer
    raise LoadFailed(f"it ended with {await process.wait()} and said nothing")
