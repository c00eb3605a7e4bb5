"""Pods a second with a real kube-apiserver and a stock kube-scheduler: Tessera beside an extender that does nothing.

    python -m bench.cluster --nodes 1000 --pods 500 --preload 16 --json
    python -m bench.cluster --check

In every round pods wait before the schedulers start, and the time from the first bound pod to the last one counts.
Sides take turns on one control plane, in an order that turns round, so that a busy machine slows all of them; a ratio
is made of two rounds that follow each other, and both begin with the control plane at rest. Only one side's programs
run at a time. Nodes are objects without a kubelet: nothing is measured but the way to the Binding. Everything is on
loopback and ends with this process.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from bench.measuring import HOST, progress
from tessera.kube.access import Access, load_access
from tessera.kube.client import KubeClient
from tessera.kube.reflector import Reflector
from tessera.kube.resources import NODES, PODS
from tessera.sandbox.api.kinds import Json
from tessera.sandbox.nodes.cards import VENDOR, gpu_cards
from tessera.sandbox.nodes.node import SimulatedNode
from tessera.sandbox.reading import key_of, node_of, uid_of, version_of
from tessera.scheduler.admission.identity import identity_env
from tessera.wire import keys
from tessera.wire.pod_devices import DeviceEntry, encode_pod_devices
from tests.e2e.cluster import end_tasks, make_namespace
from tests.e2e.control_plane import ControlPlane
from tests.e2e.processes import NotStarted, Program, free_ports
from tests.e2e.replica import FromFiles, Replica
from tools.kubernetes import build

ROOT = Path(__file__).resolve().parents[1]
NODE_COUNT, POD_COUNT, CARDS = 1_000, 500, 8
LOADS = (0, 16)
"""device pods on every node: the two that the budget is for"""
LEAST_RATIO = 0.95
MOST_WRITES = 1.0
"""a pod, events not counted"""
ROUNDS = 20
"""single rounds differ by a fifth and more where others use the machine"""
APISERVER = {"GOGC": "400"}
"""a collection of its heap takes as long as a hundred pods: a round begins after one, and none comes within it"""
COLLECT = "/debug/pprof/heap?gc=1"
"""the apiserver's own way to be asked for one"""
LIMIT_SECONDS = 2_700
PATIENCE_S = 120.0
"""for one round of a thing that takes seconds"""
LOOK_S = 0.1
SETTLED_S, SETTLED_PART, SETTLING_LOOKS = 1.0, 0.1, 15
"""at rest: so many seconds in which all programs together use this part of a processor; looked at so many times"""
SENDERS = 16
"""requests under way at once, while objects are made"""
MEASURED, LOADED = "measured", "loaded"
"""namespaces"""
ALLOCATED = "hami.io/vgpu-devices-allocated"
HELD = (4_000, 3)
"""MiB and per cent of each pod that is there before: 16 of them leave room on every card of a node with eight"""
SHAPES = ((2_000, 0), (4_000, 5), (3_000, 10), (8_000, 20))
"""MiB and per cent of the measured pods, in turns"""

BARE, NOOP, TESSERA = "no_extender", "noop_extender", "tessera"
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


class Failure(Exception):
    """There is no figure."""


# -- objects


def pod(name: str, namespace: str, *, memory: int, cores: int) -> Json:
    """As the webhook leaves it."""
    amounts = {"cpu": "1", "memory": "1Gi", "nvidia.com/gpu": "1"}
    if memory:
        amounts |= {"nvidia.com/gpumem": str(memory), "nvidia.com/gpucores": str(cores)}
    container = {
        "name": "main",
        "image": "image",
        "env": identity_env(VENDOR, container=0, name="main", devices=1),
        "resources": {"limits": amounts, "requests": amounts},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"schedulerName": "hami-scheduler", "containers": [container]},
    }


def waiting_pods(count: int, *, shared: bool) -> list[Json]:
    """Without an extender nobody knows what a part of a card is; then pods ask for a card alone."""
    return [
        pod(f"p{number:04}", MEASURED, memory=memory if shared else 0, cores=cores)
        for number in range(count)
        for memory, cores in (SHAPES[number % len(SHAPES)],)
    ]


def running_pods(nodes: Sequence[SimulatedNode], each: int) -> list[Json]:
    """Bound already, with their slices; those of a node go round its cards."""
    return [held_pod(node, number) for number in range(each) for node in nodes]


def held_pod(node: SimulatedNode, number: int) -> Json:
    card = node.cards[number % len(node.cards)].uuid
    memory, cores = HELD
    made = pod(f"{node.name}-{number}", LOADED, memory=memory, cores=cores)
    made["spec"]["nodeName"] = node.name
    made["metadata"]["annotations"] = {
        keys.ASSIGNED_NODE: node.name,
        keys.ASSIGNED_TIME: "1794725250",
        keys.BIND_PHASE: keys.PHASE_SUCCESS,
        keys.BIND_TIME: "1794725250",
        ALLOCATED: encode_pod_devices([[DeviceEntry(card, VENDOR, memory, cores)]]),
        keys.visible_devices(0): card,
        keys.memory_limit(0, 0): f"{memory}m",
        keys.core_limit(0): str(cores),
    }
    return made


async def several(calls: Iterable[Awaitable[None]], *, what: str) -> None:
    """All of them, some at once; none is made before its turn."""
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


async def until(look: Callable[[], Awaitable[object]], *, what: str, within_s: float = PATIENCE_S) -> None:
    try:
        async with asyncio.timeout(within_s):
            while not await look():
                await asyncio.sleep(LOOK_S)
    except TimeoutError as error:
        raise Failure(f"waited {within_s:g} s for {what}") from error


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
        """It is ready when this returns."""
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
    """Three, none of them started: the same kube-scheduler with other extenders, or with none."""
    certificates = FromFiles(plane.folder / "webhook.pem")
    replica = Replica(plane, label="bench", certificates=certificates)
    (port,) = free_ports(1)
    account = plane.kubeconfig_of_account(certificates.account)
    noop = Program(
        "do-nothing",
        [sys.executable, "-m", "bench.do_nothing", f"--port={port}", f"--kubeconfig={account}"],
        folder=plane.logs,
        environ={"PATH": os.defpath, "PYTHONPATH": str(ROOT)},
    )
    url = f"http://{HOST}:{port}"
    extender = replica.configuration["extenders"][0]
    return {
        BARE: Side(BARE, _kube_scheduler(plane, BARE, replica.configuration | {"extenders": []})),
        NOOP: Side(
            NOOP,
            _kube_scheduler(plane, NOOP, replica.configuration | {"extenders": [extender | {"urlPrefix": url}]}),
            noop,
            f"{url}/readyz",
        ),
        TESSERA: Side(TESSERA, replica.kube_scheduler, replica.tessera, f"{replica.extender_url}/readyz"),
    }


def _kube_scheduler(plane: ControlPlane, name: str, configuration: Json) -> Program:
    file = plane.folder / f"kube-scheduler-{name}.yaml"
    file.write_text(yaml.safe_dump(configuration))
    # The arguments of the replica's own.
    arguments = (f"--config={file}", "--secure-port=0", "--v=2")
    return plane.program(f"kube-scheduler-{name}", "kube-scheduler", *arguments)


# -- rounds


class Bound:
    """When the measured pods got their nodes, as a watch shows it."""

    def __init__(self) -> None:
        self.known: set[str] = set()
        self.at: dict[str, float] = {}
        """pod -> moment; of those that are there"""
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
        """Nothing waits for it."""

    async def until(self, look: Callable[[], bool], *, what: str, watcher: asyncio.Task[None]) -> None:
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not look():
                    self.changed.clear()
                    waiting = asyncio.create_task(self.changed.wait())
                    done, _ = await asyncio.wait([waiting, watcher], return_when=asyncio.FIRST_COMPLETED)
                    if watcher in done:
                        watcher.result()
        except TimeoutError as error:
            raise Failure(f"waited {PATIENCE_S:g} s for {what}; {len(self.at)} pods are bound") from error


@dataclass(frozen=True, slots=True)
class Round:
    """What one side did with the pods of one round."""

    pods_per_s: float
    writes_per_pod: float
    """of the extender, events not counted"""
    events_per_pod: float
    work: dict[str, float]
    """program -> ms of processor time a pod"""


@dataclass(slots=True)
class Bench:
    """A control plane with nodes, and all that measures on it."""

    plane: ControlPlane
    access: Access
    api: KubeClient
    sides: dict[str, Side]
    nodes: list[SimulatedNode]
    bound: Bound = field(default_factory=Bound)
    loaded: int = 0
    """device pods on every node"""

    async def load(self, each: int) -> None:
        """Nodes hold this many device pods from now on; there is no way back."""
        more = running_pods(self.nodes, each)[self.loaded * len(self.nodes) :]
        if more:
            progress(f"making {len(more)} running pods")
            await several((self.api.create(PODS.path(LOADED), each) for each in more), what="running pods")
        self.loaded = max(self.loaded, each)

    async def round(self, side: Side, count: int, watcher: asyncio.Task[None]) -> Round:
        manifests = waiting_pods(count, shared=side.name != BARE)
        await several((self.api.create(PODS.path(MEASURED), each) for each in manifests), what="pods")
        await self.bound.until(lambda: len(self.bound.known) == count, what="pods to be there", watcher=watcher)
        audited = sum(1 for _ in self.plane.audited())
        try:
            await side.start_extender()
            await self._collect()
            await self._settle(side)
            side.kube_scheduler.start()
            await self.bound.until(lambda: bool(self.bound.at), what="the first bound pod", watcher=watcher)
            programs = {**self.plane.programs, **side.programs()}
            before = {name: processor_seconds(program.pid) for name, program in programs.items()}
            already = len(self.bound.at)
            await self.bound.until(lambda: len(self.bound.at) == count, what="all pods to be bound", watcher=watcher)
            after = {name: processor_seconds(program.pid) for name, program in programs.items()}
        finally:
            # In order: events that wait are written, and counted.
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
        """What was listed and written before must not be paid for by the side whose turn it is."""
        headers = await self.access.headers()
        async with (
            aiohttp.ClientSession(self.access.server, headers=headers) as session,
            session.get(COLLECT, ssl=self.access.ssl or True) as answer,
        ):
            answer.raise_for_status()

    async def _settle(self, side: Side) -> None:
        """Until what was done before this round no longer costs anything: lists of thousands of pods, above all."""
        programs = [*self.plane.programs.values(), *([side.extender] if side.extender is not None else [])]
        spent = sum(processor_seconds(program.pid) for program in programs)
        for _ in range(SETTLING_LOOKS):
            await asyncio.sleep(SETTLED_S)
            before, spent = spent, sum(processor_seconds(program.pid) for program in programs)
            if spent - before < SETTLED_PART * SETTLED_S:
                return

    async def _clear(self, watcher: asyncio.Task[None]) -> None:
        await self.api.delete(PODS.path(MEASURED), grace_seconds=0)
        await self.bound.until(lambda: not self.bound.known, what="the end of the pods", watcher=watcher)


def processor_seconds(pid: int) -> float:
    """Of all threads of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS


@asynccontextmanager
async def bench(node_count: int) -> AsyncIterator[Bench]:
    """Nodes that are open for pods."""
    tools = build.ensure(tell=progress)
    with tempfile.TemporaryDirectory(prefix="tessera-bench-") as name:
        plane = ControlPlane(Path(name), tools, apiserver_environ=APISERVER)
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
            yield Bench(plane, access, api, sides(plane), nodes)


# -- figures


async def compare(found: Bench, *, pods: int, rounds: int, bare: int) -> dict[str, Any]:
    """Every figure of one load; the names say the unit."""
    watch = Reflector(
        found.api, PODS.path(MEASURED), dict[str, Any], found.bound, key=key_of, uid=uid_of, version=version_of
    )
    watcher = asyncio.create_task(watch.run())
    seen: dict[str, list[Round]] = {BARE: [], NOOP: [], TESSERA: []}
    try:
        for number in range(rounds):
            order = [NOOP, TESSERA] if number % 2 == 0 else [TESSERA, NOOP]
            for name in [*([BARE] if number < bare else []), *order]:
                done = await found.round(found.sides[name], pods, watcher)
                seen[name].append(done)
                progress(f"  {found.loaded} pods a node, round {number + 1}: {name} {done.pods_per_s:.1f} pods/s")
    finally:
        await end_tasks([watcher])
    return figures(found.loaded, seen)


def figures(load: int, seen: dict[str, list[Round]]) -> dict[str, Any]:
    pairs = [mine.pods_per_s / other.pods_per_s for mine, other in zip(seen[TESSERA], seen[NOOP], strict=True)]
    result: dict[str, Any] = {"preload": load}
    for name, rounds in seen.items():
        if rounds:
            result[f"{name}_pods_per_s"] = round(statistics.median(each.pods_per_s for each in rounds), 1)
    result["ratio"] = round(middle_mean(pairs), 3)
    result["ratios"] = [round(pair, 3) for pair in pairs]
    result["writes_per_pod"] = round(max(each.writes_per_pod for each in seen[TESSERA]), 3)
    result["events_per_pod"] = round(statistics.median(each.events_per_pod for each in seen[TESSERA]), 2)
    work = {
        name: {
            program: round(statistics.median(each.work[program] for each in rounds), 2) for program in rounds[0].work
        }
        for name, rounds in seen.items()
        if rounds
    }
    result["work_ms_per_pod"] = work
    # What the ratio comes to where all processors are busy: then processor time is all that counts.
    result["work_ratio"] = round(sum(work[NOOP].values()) / sum(work[TESSERA].values()), 3)
    return result


def middle_mean(values: Sequence[float]) -> float:
    """Of the middle half: as deaf to single bad rounds as the median, and half as much moved by chance."""
    ordered = sorted(values)
    aside = len(ordered) // 4
    return statistics.fmean(ordered[aside : len(ordered) - aside])


async def measure(options: argparse.Namespace, loads: Sequence[int]) -> list[dict[str, Any]]:
    """One set of figures for each load, smallest first."""
    results = []
    async with bench(options.nodes) as found:
        for load in sorted(loads):
            await found.load(load)
            results.append(await compare(found, pods=options.pods, rounds=options.rounds, bare=options.bare_rounds))
    return results


async def bounded(options: argparse.Namespace, loads: Sequence[int]) -> list[dict[str, Any]]:
    """Within the time limit, and in order when somebody ends it."""
    task = asyncio.ensure_future(measure(options, loads))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        async with asyncio.timeout(options.limit):
            return await task
    except TimeoutError as error:
        raise Failure(f"not done after {options.limit} s") from error
    except asyncio.CancelledError as error:
        raise Failure("ended by a signal") from error


# -- the command


def judged(results: Sequence[dict[str, Any]]) -> tuple[bool, str]:
    lines = [f"{'what':<52} {'value':>8} {'budget':>10}"]
    kept = True
    for found in results:
        load = f"{found['preload']} device pods a node"
        for name, value, text, well in (
            ("ratio", found["ratio"], f">= {LEAST_RATIO}", found["ratio"] >= LEAST_RATIO),
            ("writes", found["writes_per_pod"], f"<= {MOST_WRITES:g}", found["writes_per_pod"] <= MOST_WRITES),
        ):
            said = {"ratio": "pods/s of Tessera / of a do-nothing extender", "writes": "API writes a pod"}[name]
            lines.append(f"{said + ', ' + load:<52} {value:>8.4g} {text:>10}  {'ok' if well else 'BROKEN'}")
            kept = kept and well
    return kept, "\n".join(lines)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.cluster", description=__doc__.split("\n")[0])
    parser.add_argument("--nodes", type=int, default=NODE_COUNT, help="default %(default)s")
    parser.add_argument("--pods", type=int, default=POD_COUNT, help="a round, default %(default)s")
    parser.add_argument("--preload", type=int, default=0, help="device pods on every node, default %(default)s")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of each side, default %(default)s")
    parser.add_argument(
        "--bare-rounds", type=int, default=1, help="without any extender, to compare; default %(default)s"
    )
    parser.add_argument("--limit", type=int, default=LIMIT_SECONDS, help="longest seconds, default %(default)s")
    parser.add_argument("--json", action="store_true", help="JSON instead of a list")
    parser.add_argument("--check", action="store_true", help="both loads of the budget; exit 1 where it is broken")
    options = parser.parse_args(arguments)
    if options.nodes < 1 or options.pods < 2 or options.rounds < 1:
        parser.error("needs at least one node, two pods and one round")
    return options


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    results: list[dict[str, Any]] = []
    try:
        results = asyncio.run(bounded(options, LOADS if options.check else (options.preload,)))
    except* (Failure, NotStarted, OSError, build.Missing) as failures:
        for failure in failures.exceptions:
            progress(f"not measured: {failure}")
    if not results:
        return 2
    kept, judgement = judged(results)
    if options.json:
        print(json.dumps(results if options.check else results[0]))
    elif options.check:
        print(judgement)
    else:
        print("\n".join(f"{name:<28} {value}" for name, value in results[0].items()))
    return 0 if kept or not options.check else 1


if __name__ == "__main__":
    sys.exit(main())
