"""The dashboard of a scheduler at 5000 nodes x 8 cards with 80,000 slices: what ten viewers cost it, and how soon they
see a bind.

    python -m bench.dashboard --json
    python -m bench.dashboard --check

The running `tessera scheduler` serves its page over TLS and binds 20 pods per second beside 200 that wait, first
without a viewer, then with ten. The difference of its processor time is what the page costs. A bind counts as seen when
its pod is in an answer that a viewer has read. Nothing leaves this machine.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import ssl
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import uvloop

from bench.filter_requests import FilterRequests
from bench.measurement import HOST, Budget, memory_of, percentile, processor_seconds_of, progress, table
from bench.processes import BenchmarkProcesses, Failure, Service, Size
from bench.webhook import issue

SIZE = Size(5_000, 8, 16)
VIEWERS = 10
WAITING = 200
"""pods that fit nowhere"""
RATE = 20.0
"""pods per second"""
SECONDS = 20.0
"""of each of the two times"""
SETTLE_S = 3.0
SEEN_S = 10.0
"""after which a bind that no viewer has seen is an error"""
LIMIT_S = 300
ATTEMPTS = 3
"""a busy machine may spoil one of them"""

MAX_SHARE = 5.0
"""per cent of a core"""
MAX_SEEN_MS = 1_000.0
"""the slowest viewer, for 99 of 100 binds"""
MAX_FIRST_STATE_S = 10.0
"""of the first viewer, for which all nodes are rendered in half of the event loop's time"""

Figures = dict[str, float]
HEADERS = {"Authorization": "Bearer bench"}


class Load:
    """Pods that kube-scheduler would bring: filter, then bind."""

    def __init__(self, service: Service, session: aiohttp.ClientSession, run: str) -> None:
        self._url = f"http://{HOST}:{service.extender}"
        self._session = session
        self._requests = FilterRequests(SIZE.nodes, run=run)
        self.bound_at: dict[str, float] = {}
        """by uid"""

    async def run(self, seconds: float) -> int:
        """The number of pods that were bound."""
        loop, number = asyncio.get_running_loop(), 0
        began = loop.time()
        while (due := began + number / RATE) < began + seconds:
            await asyncio.sleep(max(due - loop.time(), 0.0))
            await self._bind_one()
            number += 1
        return number

    async def refuse(self, count: int) -> None:
        """Pods that wait, and that the page says why of."""
        for shape, uid in self._requests.hopeless(count):
            answer = await self._post("filter", self._requests.request(shape, uid=uid, shuffled=False))
            if answer.get("NodeNames") or answer.get("nodenames"):
                raise Failure("a pod that fits nowhere was placed")

    async def _bind_one(self) -> None:
        uid = self._requests.uid()
        request = self._requests.request((2_000, 5), uid=uid, shuffled=False)
        answer = await self._post("filter", request)
        names: list[str] = answer.get("NodeNames") or answer.get("nodenames") or []
        if len(names) != 1:
            raise Failure(f"a pod was not placed: {json.dumps(answer)[:300]}")
        pod = {"PodName": f"training-{uid[:8]}", "PodNamespace": "team-0", "PodUID": uid, "Node": names[0]}
        error = (await self._post("bind", json.dumps(pod).encode())).get("Error")
        if error:
            raise Failure(f"a pod was not bound: {error}")
        self.bound_at[uid] = time.perf_counter()

    async def _post(self, verb: str, body: bytes) -> Any:
        headers = {"Content-Type": "application/json"}
        async with self._session.post(f"{self._url}/{verb}", data=body, headers=headers) as response:
            return json.loads(await response.read())


@dataclass
class Viewer:
    """One open page."""

    url: str
    session: aiohttp.ClientSession
    context: ssl.SSLContext
    seen_at: dict[str, float] = field(default_factory=dict)
    """by uid, when an answer first had the pod"""
    received: int = 0
    """bytes of answers"""

    async def state(self) -> tuple[int, int, float]:
        """Version, compressed bytes, and the seconds that it took."""
        began = time.perf_counter()
        data = await self._ask("state")
        took = time.perf_counter() - began
        return json.loads(gzip.decompress(data))["version"], len(data), took

    async def follow(self, version: int) -> None:
        while True:
            data = await self._ask(f"state?since={version}")
            now, news = time.perf_counter(), json.loads(gzip.decompress(data))
            version, self.received = news["version"], self.received + len(data)
            if news["since"] is None:
                raise Failure("a viewer had to start again")
            for node in news["nodes"].values():
                for uid in node["pods"] if node is not None else ():
                    self.seen_at.setdefault(uid, now)

    async def _ask(self, target: str) -> bytes:
        headers = {**HEADERS, "Accept-Encoding": "gzip"}
        async with self.session.get(f"{self.url}/api/{target}", headers=headers, ssl=self.context) as response:
            data = await response.read()
        if response.status != 200:
            raise Failure(f"no state: {data[:300]!r}")
        return data


@asynccontextmanager
async def viewers(service: Service, context: ssl.SSLContext) -> AsyncIterator[tuple[list[Viewer], Figures]]:
    """Ten pages, each with connections of its own, as browsers have."""
    async with AsyncExitStack() as stack:
        opened = []
        figures: Figures = {}
        for number in range(VIEWERS):
            session = await stack.enter_async_context(
                aiohttp.ClientSession(auto_decompress=False, timeout=aiohttp.ClientTimeout(None), read_bufsize=2**24)
            )
            opened.append(viewer := Viewer(f"https://{HOST}:{service.dashboard}", session, context))
            version, size, took = await viewer.state()
            if number == 0:
                figures = {"first_state_s": round(took, 2), "state_mb": round(size / 2**20, 2)}
            elif number == 1:
                figures["next_state_s"] = round(took, 2)
            task = asyncio.create_task(viewer.follow(version))
            stack.callback(task.cancel)
        yield opened, figures


async def share_of(service: Service, load: Load, seconds: float) -> float:
    """Per cent of a core that the scheduler takes under the load."""
    before, began = processor_seconds_of(service.pid), time.perf_counter()
    await load.run(seconds)
    return 100.0 * (processor_seconds_of(service.pid) - before) / (time.perf_counter() - began)


async def measure(service: Service, context: ssl.SSLContext, run: str) -> Figures:
    async with aiohttp.ClientSession() as session:
        load = Load(service, session, run)
        await load.refuse(WAITING)
        await load.run(SETTLE_S)
        progress(f"{RATE:g} pods/s without a viewer")
        alone = await share_of(service, load, SECONDS)
        memory = memory_of(service.pid).now
        progress(f"opening {VIEWERS} pages")
        async with viewers(service, context) as (opened, figures):
            await load.run(SETTLE_S)
            load.bound_at.clear()
            before = sum(viewer.received for viewer in opened)
            progress(f"{RATE:g} pods/s with {VIEWERS} viewers")
            watched = await share_of(service, load, SECONDS)
            received = sum(viewer.received for viewer in opened) - before
            await wait_until_seen(load, opened)
            grown = memory_of(service.pid).now - memory
    delays = [max(viewer.seen_at[uid] for viewer in opened) - at for uid, at in load.bound_at.items()]
    return {
        **figures,
        "share_without_viewers": round(alone, 2),
        "share_with_viewers": round(watched, 2),
        "page_share": round(watched - alone, 2),
        "seen_p50_ms": percentile(delays, 50),
        "seen_p99_ms": percentile(delays, 99),
        "answers_kib_per_s": round(received / VIEWERS / SECONDS / 1024, 1),
        "memory_growth_mb": round(grown, 1),
    }


async def wait_until_seen(load: Load, opened: list[Viewer]) -> None:
    try:
        async with asyncio.timeout(SEEN_S):
            while not all(load.bound_at.keys() <= viewer.seen_at.keys() for viewer in opened):
                await asyncio.sleep(0.05)
    except TimeoutError as error:
        raise Failure("a bind reached no viewer") from error


def measure_server(limit: int = LIMIT_S) -> Figures:
    """The figures of one fresh scheduler."""
    with tempfile.TemporaryDirectory(prefix="tessera-bench-") as folder, BenchmarkProcesses(limit=limit) as processes:
        certificates, context = issue(Path(folder))
        service = processes.service(processes.canned_api(SIZE), certificates=certificates, dashboard_on=True)
        return uvloop.run(measure(service, context, "d"))


def budgets(figures: Figures) -> list[Budget]:
    return [
        Budget("ten viewers, per cent of a core", figures["page_share"], MAX_SHARE),
        Budget("a bind on the wire, slowest viewer, p99 ms", figures["seen_p99_ms"], MAX_SEEN_MS),
        Budget("the first state, seconds", figures["first_state_s"], MAX_FIRST_STATE_S),
    ]


def check() -> list[Budget]:
    """The best of some attempts, each with a fresh scheduler."""
    found: list[Figures] = []
    while len(found) < ATTEMPTS and not (found and all(budget.kept for budget in budgets(found[-1]))):
        found.append(measure_server())
    return budgets(min(found, key=lambda figures: figures["page_share"]))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.dashboard", description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="fail if a budget is broken")
    parser.add_argument("--json", action="store_true", help="print figures as JSON")
    options = parser.parse_args(arguments)
    try:
        if options.check:
            results = check()
            print(table(results))
            return 0 if all(result.kept for result in results) else 1
        figures = measure_server()
    except Failure as error:
        print(f"the benchmark could not run: {error}", file=sys.stderr)
        return 2
    print(json.dumps(figures) if options.json else "\n".join(f"{k:24} {v:>10}" for k, v in figures.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
