"""One run: a real control plane with two machines, storms of faults with calms between, and the verdict.

storm   clients create and delete pods, nemeses break things
calm    everything is repaired, pods are only deleted: every pod that could run must be bound
rest    nothing is under way: the leader must count on every card what the API shows
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import aiohttp

from tessera.kube.access import load_access
from tessera.kube.client import KubeClient
from tessera.kube.resources import MUTATING_WEBHOOKS, NODES, PODS, Resource
from tessera_lab.sandbox.nodes.node import AgentKind, SimulatedFleet, SimulatedNode, gpu_cards
from tessera_lab.sandbox.objects import phase_of
from tests.e2e.cluster import end_tasks, make_namespace, webhook_configuration
from tests.e2e.cluster_check import Scrape, wrong_slices
from tests.e2e.control_plane import ControlPlane
from tests.e2e.replica import FromFiles, until
from tests.e2e.tcp_proxy import TcpProxy, tcp_proxy
from tests.robustness.checker import BOUND_S, Checker, Violation, fits, split_gangs, use_of
from tests.robustness.clients import PRIORITIES, Client, Namespaces
from tests.robustness.etcd_recorder import EtcdRecorder
from tests.robustness.history import CalmBegan, Card, History, PodShown, RestReached, RunEnded, StormBegan
from tests.robustness.machine import Machine
from tests.robustness.nemesis import BreakableCluster, Nemeses
from tests.support.network import free_ports

CLIENTS = 4
STORM_S = 40.0
"""of faults, before a calm"""
PROGRESS_S = 5.0
"""between two lines"""
REST_S = 30.0
"""for the leader to see the last changes"""
DRAIN_S = 0.5
"""between two deletions while pods wait for room"""
SPACES = Namespaces(admitted="admitted", dependent="dependent")
AGENTS: Mapping[str, AgentKind] = {"n1": "env", "n2": "answer", "n3": "hami", "n4": "env"}
CARDS = 2
"""per node"""
LEFT = ("tessera_nominations", "tessera_gangs_planned")
"""metrics that are 0 when nothing is under way"""
PRIORITY_CLASSES = Resource("scheduling.k8s.io", "v1", "priorityclasses", False)

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Plan:
    seed: int
    seconds: float
    kinds: Sequence[str]
    """of faults"""


@dataclass(frozen=True)
class Verdict:
    violations: list[Violation]
    summary: list[str]


async def run(tools: Mapping[str, Path], folder: Path, history: History, *, plan: Plan, tell: Tell) -> Verdict:
    plane = ControlPlane(folder, tools, apiserver_flags=("--storage-media-type=application/json",))
    try:
        plane.start()
        async with _cluster(plane, history, plan) as suite:
            return await suite.run(tell)
    finally:
        plane.stop()


@asynccontextmanager
async def _cluster(plane: ControlPlane, history: History, plan: Plan) -> AsyncIterator[Suite]:
    certificates = FromFiles(plane.folder / "webhook.pem")
    rng = random.Random(f"{plan.seed}/machines")
    machines = [
        Machine(plane, history, name=name, certificates=certificates, rng=rng) for name in ("machine-a", "machine-b")
    ]
    nodes = [SimulatedNode(name, gpu_cards(name, CARDS), agent=agent) for name, agent in AGENTS.items()]
    recorder = EtcdRecorder(plane.etcd_url, history)
    (twin_port,) = free_ports(1)

    def find_webhook() -> str:
        running = [machine for machine in machines if machine.replica.tessera.is_running]
        return f"https://127.0.0.1:{rng.choice(running or machines).replica.webhook_port}"

    async with (
        KubeClient(load_access(kubeconfig=str(plane.kubeconfig()), environ={})) as api,
        tcp_proxy(plane, find_url=lambda: plane.etcd_url) as twin_etcd,
        tcp_proxy(plane, find_url=find_webhook) as webhooks,
    ):
        twin = plane.apiserver("kube-apiserver-twin", port=twin_port, etcd_url=f"http://127.0.0.1:{twin_etcd.port}")
        fleet = SimulatedFleet(api, nodes)
        background = [asyncio.create_task(recorder.run())]
        try:
            twin.start()
            for namespace in (SPACES.admitted, SPACES.dependent):
                await make_namespace(api, namespace)
            for name, value in PRIORITIES.items():
                await api.create(PRIORITY_CLASSES.path(), {"metadata": {"name": name}, "value": value})
            await fleet.register()
            background.append(asyncio.create_task(fleet.run()))
            async with machines[0].run(), machines[1].run():
                await _wait_until_ready(api, machines, certificates=certificates, webhooks=webhooks)
                world = BreakableCluster(
                    plane=plane,
                    machines=machines,
                    twin=twin,
                    twin_url=f"https://127.0.0.1:{twin_port}",
                    twin_etcd=twin_etcd,
                    recorder=recorder,
                )
                yield Suite(world, history, plan, api=api, fleet=fleet, background=background)
        finally:
            await end_tasks(background)
            twin.kill()


async def _wait_until_ready(
    api: KubeClient, machines: Sequence[Machine], *, certificates: FromFiles, webhooks: TcpProxy
) -> None:
    client_config = certificates.client_config(webhooks.port)
    await api.create(MUTATING_WEBHOOKS.path(), webhook_configuration("robustness", SPACES.admitted, client_config))
    for machine in machines:
        await machine.replica.ready()

    async def nodes_are_open() -> bool:
        listed = (await api.list(NODES.path(), dict[str, Any])).items
        return not any(taint["key"].startswith("node.") for node in listed for taint in node["spec"].get("taints", ()))

    await until(nodes_are_open, what="nodes without taints")


class Suite:
    """A cluster that is ready."""

    def __init__(
        self,
        world: BreakableCluster,
        history: History,
        plan: Plan,
        *,
        api: KubeClient,
        fleet: SimulatedFleet,
        background: Sequence[asyncio.Task[None]],
    ) -> None:
        self._world = world
        self._plan = plan
        self._api = api
        self._fleet = fleet
        self._history = history
        self._background = background
        self._checker = Checker()
        self._checked = 0
        self._nemeses = Nemeses(world, history, seed=f"{plan.seed}/nemeses", kinds=plan.kinds)
        self._rng = random.Random(f"{plan.seed}/drain")
        self._clients = [
            Client(f"client-{i}", api, history, recorder=world.recorder, spaces=SPACES, seed=f"{plan.seed}/client-{i}")
            for i in range(CLIENTS)
        ]
        self._longest_calm_s = 0.0

    async def run(self, tell: Tell) -> Verdict:
        """Storms and calms, at least one of each; ends at the first violation."""
        began, seconds = time.monotonic(), self._plan.seconds
        progress = asyncio.create_task(self._show_progress(tell))
        try:
            while not self.violations:
                left = seconds - (time.monotonic() - began)
                await self._unless_broken(self._storm(max(min(STORM_S, left), PROGRESS_S)))
                await self._unless_broken(self._calm())
                if time.monotonic() - began >= seconds:
                    break
            self._history.add(RunEnded(at=self._history.now))
            return Verdict(self.violations, self._summary())
        finally:
            await end_tasks([progress])

    @property
    def violations(self) -> list[Violation]:
        """Of everything so far."""
        for event in self._history.events[self._checked :]:
            self._checker.take(event)
        self._checked = len(self._history.events)
        return self._checker.violations

    async def _unless_broken(self, work: Any) -> None:
        """Ends with the work, with a violation, or with a part of the suite that failed."""
        task = asyncio.create_task(work)
        try:
            while not task.done() and not self.violations:
                await asyncio.wait([task, *self._background], timeout=0.5, return_when=asyncio.FIRST_COMPLETED)
                for broken in self._background:
                    if broken.done():
                        broken.result()
            if task.done():
                task.result()
        finally:
            await end_tasks([task])

    # -- phases

    async def _storm(self, seconds: float) -> None:
        self._history.add(StormBegan(at=self._history.now))
        clients = [asyncio.create_task(client.run()) for client in self._clients]
        try:
            await self._nemeses.storm(seconds)
        finally:
            await end_tasks(clients)

    async def _calm(self) -> None:
        world = self._world
        world.heal()
        await asyncio.to_thread(world.plane.wait_until_ready)
        networks = [network for machine in world.machines for network in machine.networks]

        async def has_arrived() -> bool:
            return not any(network.holding for network in networks)

        # What is still held is the last fault.
        await until(has_arrived, what="held writes to arrive")
        self._history.add(CalmBegan(at=self._history.now))
        began = time.monotonic()
        # The checker judges when a pod is late; this only ends the wait.
        while self._waiting() and time.monotonic() - began < BOUND_S + REST_S:
            bound = sorted(key for key, pod in world.recorder.pods.items() if pod.node)
            if bound:
                await self._clients[0].delete(self._rng.choice(bound))
            await asyncio.sleep(DRAIN_S)
        self._longest_calm_s = max(self._longest_calm_s, time.monotonic() - began)
        await self._rest()

    def _waiting(self) -> list[PodShown]:
        """Pods that are not bound, and fit an idle node, together with the gang that they need."""
        idle = {str(number): Card(10, 81920, 100) for number in range(CARDS)}
        alone, gangs = split_gangs(self._world.recorder.pods.values())
        return [pod for pod in [*alone, *chain.from_iterable(gangs)] if fits(pod.asks, idle, {})]

    async def _rest(self) -> None:
        leader = self._world.leader
        deadline = time.monotonic() + REST_S
        while True:
            found = await self._scrape(leader)
            use = found.use if found is not None else {}
            left = [int(found.value(name)) for name in LEFT] if found is not None else [0, 0]
            if (use == self._shown_use(use) and not any(left)) or time.monotonic() > deadline:
                break
            await asyncio.sleep(0.2)
        listed = (await self._api.list(PODS.path(), dict[str, Any])).items
        running = [pod for pod in listed if phase_of(pod) == "Running"]
        wrong = list(wrong_slices(running, self._fleet.nodes))
        nominations, planned = left
        self._history.add(
            RestReached(
                at=self._history.now,
                replica=leader.name,
                use=use,
                wrong_slices=wrong,
                nominations=nominations,
                planned_gangs=planned,
            )
        )

    async def _scrape(self, leader: Machine) -> Scrape | None:
        try:
            return await leader.replica.scrape()
        except (aiohttp.ClientError, OSError):
            return None

    def _shown_use(self, known: Mapping[str, object]) -> dict[str, tuple[int, int, int]]:
        total: Counter[tuple[str, int]] = Counter()
        for pod in self._world.recorder.pods.values():
            if pod.node and pod.phase not in ("Succeeded", "Failed"):
                for uuid, use in use_of(pod).items():
                    for index, amount in enumerate(use):
                        total[uuid, index] += amount
        return {uuid: (total[uuid, 0], total[uuid, 1], total[uuid, 2]) for uuid in known}

    # -- words

    async def _show_progress(self, tell: Tell) -> None:
        while True:
            await asyncio.sleep(PROGRESS_S)
            pods = self._world.recorder.pods.values()
            bound = sum(bool(pod.node) for pod in pods)
            tell(
                f"{self._history.now:6.0f} s  {bound} of {len(pods)} pods bound, {self._world.leader.name} leads,"
                f" {self._nemeses.counts.total()} faults, {len(self._history.events)} events"
            )
            self._history.flush()

    def _summary(self) -> list[str]:
        kinds = Counter(type(event).__struct_config__.tag for event in self._history.events)
        pods = {event.uid: event for event in self._history.events if isinstance(event, PodShown)}
        bound = sum(bool(pod.node) for pod in pods.values())
        members = [pod for pod in pods.values() if pod.gang is not None]
        bound_members = sum(bool(pod.node) for pod in members)
        faults = ", ".join(f"{count} {kind}" for kind, count in sorted(self._nemeses.counts.items()))
        return [
            f"{len(pods)} pods, {bound} of them bound; {kinds['filter']} filter answers, {kinds['bind']} bind calls,"
            f" {kinds['write']} Bindings, {kinds['watch']} watch events, {kinds['lease']} leaders",
            f"{len(members)} of the pods in gangs, {bound_members} of them bound; {kinds['evict']} evictions",
            f"{self._nemeses.counts.total()} faults: {faults}",
            f"{kinds['calm']} calms, the longest until all pods were bound {self._longest_calm_s:.0f} s",
        ]
