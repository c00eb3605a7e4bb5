"""One random life of a cluster: people, plugins, kube-scheduler and the scheduler, all at their own pace.

A life is a number of steps, each a single thing that happens, and a rest now and then: no more faults, everything
delivered and finished, time passes. The seed decides everything. `Checker` says what must hold.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from datetime import UTC
from itertools import accumulate
from typing import Any

from tessera.scheduler.settings import Settings
from tessera.scheduler.wiring import Engine
from tessera.wire.objects import Pod
from tests.model import counting, machines, shapes
from tests.model.checking import Checker
from tests.model.faults import Fault, Faults
from tests.model.kube_scheduler import KubeScheduler
from tests.model.machines import Machine
from tests.model.tables import Informer
from tests.model.world import World

START = 1_700_000_000.0
"""unix time in seconds at which every life begins"""
TICK = 15.0
FULL_EVERY = 64
"""steps between looks at the whole ledger; what a step touched is checked after every step"""
REST_EVERY = 500
"""steps"""
NUDGES = 2
"""pods that go while everybody else is at rest"""
BREATH_SECONDS = 20.0
QUIET_SECONDS = 400.0
"""longer than reservations, locks and turns last: at rest nothing has happened for so long"""
REST_SECONDS = 20000.0
"""in which rest must have come"""
PODS = 36
NAMES = 24
"""of pods in a namespace: few, so that names come again"""
NAMESPACES = ("blue", "red")
STUCK = 13
"""one pod in so many is never reported by its plugin"""


@dataclass(frozen=True)
class Profile:
    """What a life has much of."""

    faults: float = 0.1
    """share of calls that go wrong"""
    kinds_of_faults: tuple[Fault, ...] = tuple(Fault)
    weights: dict[str, float] = field(default_factory=dict)
    """over the usual ones"""
    nodes: int = 5
    recipes: tuple[str, ...] = ()
    """all, where none is named"""
    kinds: tuple[str, ...] = machines.KINDS
    agents: tuple[str | None, ...] = machines.AGENTS


USUAL = {
    "deliver_pods": 14.0,
    "deliver_nodes": 6.0,
    "deliver_quotas": 1.0,
    "deliver_to_kube": 14.0,
    "list_again": 0.4,
    "schedule": 22.0,
    "pass_time": 9.0,
    "create_pod": 9.0,
    "bind_directly": 0.25,
    "delete_pod": 3.0,
    "remove_terminating": 4.0,
    "end_handover": 8.0,
    "end_init": 1.5,
    "end_pod": 2.0,
    "change_card": 0.8,
    "lose_or_return_node": 0.3,
    "change_plugin": 0.3,
    "report": 0.8,
    "change_quota": 0.4,
    "restart": 0.12,
    "give_up_bind": 0.6,
    "simulate": 0.3,
}


class Process:
    """One run of the scheduler."""

    def __init__(self, life: Life) -> None:
        self.tasks: set[asyncio.Task[None]] = set()
        settings = Settings()
        self.engine = Engine(settings, life.world, now=life.now, zone=UTC, spawn=self.spawn)
        life.kube.engine = self.engine
        checker, world = life.checker, life.world
        checker.attach(self.engine, lambda: self.pods.behind + self.quotas.behind)
        self.pods = Informer(world.pods, self.engine.pods, after=checker.saw_pod)
        self.nodes = Informer(world.nodes, self.engine.nodes, after=checker.saw_node)
        self.quotas = Informer(world.quotas, self.engine.quotas, after=checker.saw_quota)
        self.spawn(self.engine.wake())
        self.spawn(self._tick(checker))

    @property
    def informers(self) -> tuple[Informer[Any], ...]:
        return (self.pods, self.nodes, self.quotas)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        if not task.cancelled():
            task.result()

    async def _tick(self, checker: Checker) -> None:
        while True:
            await asyncio.sleep(TICK)
            self.engine.tick()
            checker.ticked()

    def stop(self) -> None:
        for task in self.tasks:
            task.cancel()
        for informer in self.informers:
            informer.close()


class Life:
    """Make it on a virtual loop."""

    def __init__(self, seed: int, profile: Profile) -> None:
        self.rng = random.Random(seed)
        self.profile = profile
        self.trace: deque[str] = deque(maxlen=400)
        self.steps = 0
        self.faults = Faults(self.rng, profile.faults, profile.kinds_of_faults)
        self.world = World(self.rng, self.faults)
        self.checker = Checker(self.world, time=self.time, now=self.now)
        self.world.on_bound = self._bound
        self.kube = KubeScheduler(self.world, self.rng)
        self.kube.on_chosen = self.checker.chose
        self.kube.on_success = self.checker.succeeded
        self.machines: dict[str, Machine] = {}
        for position in range(profile.nodes):
            kind, agent = profile.kinds[position % len(profile.kinds)], self.rng.choice(profile.agents)
            machine = machines.build(self.rng, f"n{position}", kind, agent)
            self.machines[machine.name] = machine
            self._show(machine)
        self.process: Process | None = Process(self)
        self._failures: list[BaseException] = []
        asyncio.get_running_loop().set_exception_handler(self._failed)
        weights = USUAL | profile.weights
        self._names = list(weights)
        self._weights = list(accumulate(weights.values()))
        self._actions: dict[str, Callable[[], str | None]] = {name: getattr(self, f"_{name}") for name in weights}
        self._recipes = profile.recipes or shapes.recipes()

    def time(self) -> float:
        return asyncio.get_running_loop().time()

    def now(self) -> float:
        return START + self.time()

    # -- living

    async def run(self, steps: int) -> None:
        for _ in range(steps):
            await self.step()
            if self.steps % REST_EVERY == 0:
                await self.rest()

    async def step(self) -> None:
        self.steps += 1
        told = None
        while told is None:
            name = self.rng.choices(self._names, cum_weights=self._weights)[0]
            told = self._actions[name]()
        self.trace.append(f"{self.steps} at {self.time():.2f}: {name}: {told}")
        pause = self._pause if name == "pass_time" else 0.0
        await asyncio.sleep(pause)
        self._check()

    def _failed(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """What is raised where nobody awaits it."""
        self._failures.append(context.get("exception") or RuntimeError(context["message"]))

    def _check(self) -> None:
        for failure in self._failures:
            raise failure
        self.checker.step()
        if self.steps % FULL_EVERY == 0:
            self.checker.full()

    async def rest(self) -> None:
        """Let everything come to its end, without any help for pods that sleep."""
        self.trace.append("rest")
        usual, self.faults.rate, self.kube.slow_binds = (self.faults.rate, self.kube.slow_binds), 0.0, 0.0
        self.kube.flushes = False
        if self.process is None:
            self._start()
        for machine in self.machines.values():
            self._report_of(machine)
        for _ in range(NUDGES):
            await self._calm_down(BREATH_SECONDS)
            self._free_unnoticed()
        await self._calm_down(QUIET_SECONDS)
        self.checker.rest(self._candidates)
        self.kube.flushes = True
        self.faults.rate, self.kube.slow_binds = usual

    async def _calm_down(self, seconds: float) -> None:
        """Until nothing has happened for so long."""
        started = busy = self.time()
        while self.time() < busy + seconds:
            if self._settle():
                busy = self.time()
                assert busy < started + REST_SECONDS, "it never comes to rest"
            await asyncio.sleep(0.5 if busy == self.time() else TICK)
            self._check()

    def _free_unnoticed(self) -> None:
        """A pod goes, and kube-scheduler asks for those that sleep before the scheduler has heard of it."""
        found = self._some_pod(lambda pod: counting.is_live(pod))
        if found is not None:
            self.trace.append(f"{found[0]} goes")
            self._remove(found[0])
            while self.kube.pods.behind:
                self.kube.pods.deliver()
            self._schedule_all()

    def _settle(self) -> bool:
        """One round of everything that is due; whether anything was."""
        busy = bool(self.kube.tasks or self.world.in_flight)
        assert self.process is not None
        informers = [*self.process.informers, self.kube.pods, self.kube.nodes]
        self.rng.shuffle(informers)
        for informer in informers:
            while informer.behind:
                informer.deliver()
                busy = True
            busy = self._schedule_all() or busy
        for key, pod in list(self.world.pods.objects.items()):
            if pod.metadata.deletion_timestamp:
                self._remove(key)
                busy = True
            elif self._in_handover(pod) and not self._is_stuck(pod):
                self._hand_over(key, failed=False)
                busy = True
        return busy or any(queued.place == "backoff" for queued in self.kube.queue.values())

    def _schedule_all(self) -> bool:
        due = self.kube.due()
        for queued in due:
            self.trace.append(f"{queued.key}: {self.kube.schedule(queued)}")
        return bool(due)

    def _candidates(self, pod: Pod) -> list[str]:
        queued = self.kube.queue[pod.metadata.uid]
        return [name for name in self.world.nodes.objects if queued.allowed is None or name in queued.allowed]

    # -- informers

    def _deliver(self, *informers: Informer[Any]) -> str | None:
        behind = [informer for informer in informers if informer.behind]
        if not behind:
            return None
        informer = self.rng.choice(behind)
        times = self.rng.choice((1, 1, 2, 3, 10))
        return ", ".join(informer.deliver() for _ in range(min(times, informer.behind)))

    def _deliver_pods(self) -> str | None:
        return self._deliver(self.process.pods) if self.process else None

    def _deliver_nodes(self) -> str | None:
        return self._deliver(self.process.nodes) if self.process else None

    def _deliver_quotas(self) -> str | None:
        return self._deliver(self.process.quotas) if self.process else None

    def _deliver_to_kube(self) -> str | None:
        return self._deliver(self.kube.pods, self.kube.nodes)

    def _list_again(self) -> str | None:
        if self.process is None:
            return None
        informer = self.rng.choice(self.process.informers)
        informer.list()
        return type(informer._sink).__name__

    # -- the scheduler and kube-scheduler

    def _schedule(self) -> str | None:
        due = self.kube.due()
        if not due:
            return None
        queued = due[0] if self.rng.random() < 0.8 else self.rng.choice(due)
        return f"{queued.key} {queued.pod.metadata.uid}: {self.kube.schedule(queued)}"

    def _give_up_bind(self) -> str | None:
        if not self.kube.tasks:
            return None
        task = self.rng.choice(list(self.kube.tasks))
        cancel = self.rng.random() < 0.5
        uid = self.kube.tasks[task]
        self.kube.give_up(task, cancel=cancel)
        return f"{uid}{' cut off' if cancel else ''}"

    def _simulate(self) -> str | None:
        """An autoscaler asks: that must change nothing."""
        if self.process is None or not self.world.nodes.objects:
            return None
        pod = shapes.template(self.rng.choice(self._recipes))
        before = self.process.engine.ledger.state()
        shapes.simulate(self.process.engine.filter, pod, list(self.world.nodes.objects.values()))
        assert self.process.engine.ledger.state() == before
        return pod.metadata.name

    def _restart(self) -> str | None:
        if self.process is None:
            self._start()
            return "start"
        self.world.crash()
        self.process.stop()
        self.process = None
        self.checker.attach(None)
        self.kube.crash()
        if self.rng.random() < 0.5:
            self._start()
        return "crash" if self.process is None else "crash and start"

    def _start(self) -> None:
        self.process = Process(self)

    def _pass_time(self) -> str | None:
        draw = self.rng.random()
        if draw < 0.7:
            self._pause = self.rng.expovariate(10.0)
        elif draw < 0.95:
            self._pause = self.rng.expovariate(0.5)
        else:
            self._pause = self.rng.uniform(10.0, 60.0) if draw < 0.995 else 320.0
        return f"{self._pause:.2f} s"
