"""One round of the cluster benchmark: pods wait, one side schedules them, and everything comes to rest again."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from bench.cluster_pods import LOADED, MEASURED, running_pods, waiting_pods
from bench.measurement import HOST, progress
from tessera.kube.access import Access, load_access
from tessera.kube.client import KubeClient
from tessera.kube.resources import NODES, PODS
from tessera_lab.sandbox.api.kinds import Json
from tessera_lab.sandbox.nodes.node import SimulatedNode, gpu_cards
from tessera_lab.sandbox.objects import node_of
from tests.e2e.cluster import make_namespace
from tests.e2e.control_plane import ControlPlane
from tests.e2e.processes import Program
from tests.e2e.replica import FromFiles, Replica
from tests.support.network import free_ports
from tools.kubernetes import build

ROOT = Path(__file__).resolve().parents[1]
CARDS = 8
SELDOM = {"GOGC": "400"}
"""for the control plane: a garbage collection takes as long as a hundred pods, and would hit rounds at random"""
COLLECT = "/debug/pprof/heap?gc=1"
"""makes the apiserver collect its garbage, before a round"""
PATIENCE_S = 120.0
"""for one step of a round, which takes seconds"""
LOOK_S = 0.1
SETTLED_S, SETTLED_PART, SETTLING_LOOKS = 1.0, 0.1, 15
"""at rest: all programs together use less than this part of a processor for so many seconds; checks at most"""
SENDERS = 16
"""concurrent requests while objects are created"""

BARE, NOOP, STOCK, TESSERA = "no_extender", "noop_extender", "dynamic_resources", "tessera"
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


class Failure(Exception):
    """The benchmark could not run; there is no figure."""


async def several(calls: Iterable[Awaitable[None]], *, what: str) -> None:
    """Awaits all calls, `SENDERS` at a time; none is created earlier."""
    left = iter(calls)
    done = 0

    async def work() -> None:
        nonlocal done
        for call in left:
            await call
            done += 1
            if done % 4_000 == 0:
                progress(f"  {done} {what}")

    async with asyncio.TaskGroup() as workers:
        for _ in range(SENDERS):
            workers.create_task(work())


@asynccontextmanager
async def patience(what: Callable[[], str]) -> AsyncIterator[None]:
    """Limits the time of the block; the failure says what was waited for."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            yield
    except TimeoutError as error:
        raise Failure(f"waited {PATIENCE_S:g} s for {what()}") from error


async def until(look: Callable[[], Awaitable[object]], *, what: str) -> None:
    async with patience(lambda: what):
        while not await look():
            await asyncio.sleep(LOOK_S)


# -- sides


@dataclass(frozen=True, slots=True)
class Side:
    """What schedules the pods of a round."""

    name: str
    kube_scheduler: Program
    extender: Program | None = None
    ready_url: str = ""

    def programs(self) -> dict[str, Program]:
        found = {"kube-scheduler": self.kube_scheduler}
        return found | ({"extender": self.extender} if self.extender is not None else {})

    async def start_extender(self) -> None:
        """Starts the extender and waits until it is ready."""
        if self.extender is None:
            return
        self.extender.start()
        await until(self._is_ready, what=f"the extender of {self.name}")

    async def _is_ready(self) -> bool:
        assert self.extender is not None
        if not self.extender.is_running:
            raise Failure(f"{self.extender.name} ended:\n{self.extender.words()}")
        try:
            async with aiohttp.ClientSession() as session, session.get(self.ready_url) as answer:
                return answer.status == 200
        except aiohttp.ClientError:
            return False

    def stop(self) -> None:
        for program in self.programs().values():
            program.stop()


def sides(plane: ControlPlane) -> dict[str, Side]:
    """Three sides, not started: the same kube-scheduler with Tessera, with the baseline extender, and with none."""
    certificates = FromFiles(plane.folder / "webhook.pem")
    replica = Replica(plane, label="bench", certificates=certificates)
    (port,) = free_ports(1)
    account = plane.kubeconfig_of_account(certificates.account)
    noop = Program(
        "do-nothing",
        [sys.executable, "-m", "bench.baseline_extender", f"--port={port}", f"--kubeconfig={account}"],
        folder=plane.logs,
        environ={"PATH": os.defpath, "PYTHONPATH": str(ROOT)},
    )
    url = f"http://{HOST}:{port}"
    extender = replica.configuration["extenders"][0]
    return {
        BARE: Side(BARE, kube_scheduler(plane, BARE, replica.configuration | {"extenders": []})),
        NOOP: Side(
            NOOP,
            kube_scheduler(plane, NOOP, replica.configuration | {"extenders": [extender | {"urlPrefix": url}]}),
            noop,
            f"{url}/readyz",
        ),
        TESSERA: Side(TESSERA, replica.kube_scheduler, replica.tessera, f"{replica.extender_url}/readyz"),
    }


def kube_scheduler(plane: ControlPlane, name: str, configuration: Json) -> Program:
    file = plane.folder / f"kube-scheduler-{name}.yaml"
    file.write_text(yaml.safe_dump(configuration))
    # The same arguments as in `Replica`.
    arguments = (f"--config={file}", "--secure-port=0", "--v=2")
    return plane.program(f"kube-scheduler-{name}", "kube-scheduler", *arguments)


# -- rounds


class Bound:
    """When the measured pods got their nodes, as a watch shows it."""

    def __init__(self) -> None:
        self.known: set[str] = set()
        self.at: dict[str, float] = {}
        """pod -> time, of the pods that exist"""
        self.changed = asyncio.Event()

    def put(self, key: str, obj: Json) -> None:
        self.known.add(key)
        if node_of(obj):
            self.at.setdefault(key, time.perf_counter())
        self.changed.set()

    def drop(self, key: str) -> None:
        self.known.discard(key)
        self.at.pop(key, None)
        self.changed.set()

    def synced(self) -> None:
        """Nothing waits for the first list."""

    async def until(self, look: Callable[[], bool], *, what: str, watcher: asyncio.Task[None]) -> None:
        async with patience(lambda: f"{what}; {len(self.at)} pods are bound"):
            while not look():
                self.changed.clear()
                waiting = asyncio.create_task(self.changed.wait())
                done, _ = await asyncio.wait([waiting, watcher], return_when=asyncio.FIRST_COMPLETED)
                if watcher in done:
                    watcher.result()


@dataclass(frozen=True, slots=True)
class Round:
    """What one side did with the pods of one round."""

    pods_per_s: float
    writes_per_pod: float
    """of the extender, events not counted"""
    events_per_pod: float
    work: dict[str, float]
    """program -> ms of processor time per pod"""


def classic_pods(side: Side, count: int) -> list[Json]:
    return waiting_pods(count, shared=side.name != BARE)


async def nothing_else() -> None:
    """Classic pods leave nothing behind."""


@dataclass(slots=True)
class Bench:
    """A control plane with nodes, and the sides that are measured on it."""

    plane: ControlPlane
    access: Access
    api: KubeClient
    sides: dict[str, Side]
    nodes: list[SimulatedNode]
    bound: Bound = field(default_factory=Bound)
    loaded: int = 0
    """device pods on every node"""
    make_pods: Callable[[Side, int], list[Json]] = classic_pods
    is_clear: Callable[[], Awaitable[None]] = nothing_else
    """waits until nothing is left of pods that are gone"""

    async def load(self, each: int) -> None:
        """Fills every node up to this many device pods; they are never removed."""
        more = running_pods(self.nodes, each)[self.loaded * len(self.nodes) :]
        if more:
            progress(f"making {len(more)} running pods")
            await several((self.api.create(PODS.path(LOADED), each) for each in more), what="running pods")
        self.loaded = max(self.loaded, each)

    async def round(self, side: Side, count: int, watcher: asyncio.Task[None]) -> Round:
        manifests = self.make_pods(side, count)
        try:
            # Before the pods: what a take-over does to pods that wait already is measured by bench.takeover.
            await side.start_extender()
            await several((self.api.create(PODS.path(MEASURED), each) for each in manifests), what="pods")
            await self.bound.until(lambda: len(self.bound.known) == count, what="pods to be there", watcher=watcher)
            await self._collect()
            await self.settle(side)
            audited = sum(1 for _ in self.plane.audited())
            side.kube_scheduler.start()
            await self.bound.until(lambda: bool(self.bound.at), what="the first bound pod", watcher=watcher)
            programs = {**self.plane.programs, **side.programs()}
            before = {name: processor_seconds(program.pid) for name, program in programs.items()}
            already = len(self.bound.at)
            await self.bound.until(lambda: len(self.bound.at) == count, what="all pods to be bound", watcher=watcher)
            after = {name: processor_seconds(program.pid) for name, program in programs.items()}
        finally:
            # A clean stop: waiting events are written, and counted.
            side.stop()
        moments = sorted(self.bound.at.values())
        asked = list(self.plane.audited())[audited:]
        writes = [each for each in asked if each.writes]
        events = sum(each.resource == "events" for each in writes)
        await self._clear(watcher)
        return Round(
            pods_per_s=(count - 1) / (moments[-1] - moments[0]),
            writes_per_pod=(len(writes) - events) / count,
            events_per_pod=events / count,
            work={name: (after[name] - then) / max(count - already, 1) * 1_000 for name, then in before.items()},
        )

    async def _collect(self) -> None:
        """No side pays for the garbage of what happened before its round."""
        headers = await self.access.headers()
        async with (
            aiohttp.ClientSession(self.access.server, headers=headers) as session,
            session.get(COLLECT, ssl=self.access.ssl or True) as answer,
        ):
            answer.raise_for_status()

    async def settle(self, side: Side) -> None:
        """Waits until earlier work, above all lists of thousands of pods, no longer uses the processor."""
        programs = [*self.plane.programs.values(), *([side.extender] if side.extender is not None else [])]
        spent = sum(processor_seconds(program.pid) for program in programs)
        for _ in range(SETTLING_LOOKS):
            await asyncio.sleep(SETTLED_S)
            before, spent = spent, sum(processor_seconds(program.pid) for program in programs)
            if spent - before < SETTLED_PART * SETTLED_S:
                return

    async def _clear(self, watcher: asyncio.Task[None]) -> None:
        await self.api.delete(PODS.path(MEASURED), grace_s=0)
        await self.bound.until(lambda: not self.bound.known, what="the end of the pods", watcher=watcher)
        await self.is_clear()


def processor_seconds(pid: int) -> float:
    """Of all threads of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS


@asynccontextmanager
async def bench(
    node_count: int, *, make_sides: Callable[[ControlPlane], dict[str, Side]] = sides
) -> AsyncIterator[Bench]:
    """A control plane with nodes that are open for pods."""
    tools = build.ensure(tell=progress)
    with tempfile.TemporaryDirectory(prefix="tessera-bench-") as name:
        plane = ControlPlane(Path(name), tools, environ=SELDOM)
        async with AsyncExitStack() as stack:
            stack.callback(plane.stop)
            plane.start()
            access = load_access(kubeconfig=str(plane.kubeconfig()), environ={})
            api = await stack.enter_async_context(KubeClient(access))
            for namespace in (MEASURED, LOADED):
                await make_namespace(api, namespace)
            nodes = [SimulatedNode(f"node-{number:04}", gpu_cards(f"{number}", CARDS)) for number in range(node_count)]
            progress(f"making {node_count} nodes with {CARDS} cards each")
            for node in nodes:
                node.connect(api)
            await several((node.register() for node in nodes), what="nodes")

            async def are_open() -> bool:
                found = (await api.list(NODES.path(), dict[str, Any])).items
                return not any(node["spec"].get("taints") for node in found)

            await until(are_open, what="nodes without taints")
            yield Bench(plane, access, api, make_sides(plane), nodes)
