"""One random simulation of a cluster: tenants, plugins, kube-scheduler and the scheduler act independently.

A simulation is a sequence of steps, each a single event. Now and then it rests: no more faults, everything is delivered
and finished, and time passes. The seed decides everything, so that a simulation can be repeated.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from itertools import accumulate
from typing import Any

from tessera.wire.objects import Pod
from tests.model import device_usage, machines, shapes
from tests.model.apiserver import Call, SimulatedApiserver
from tests.model.bindings import Bindings
from tests.model.faults import Faults
from tests.model.kube_scheduler import KubeScheduler
from tests.model.plugins import Plugins
from tests.model.process import TICK, Process
from tests.model.profiles import USUAL, Profile
from tests.model.tables import Informer
from tests.model.tenants import Tenants

START = 1_700_000_000.0
"""unix time in seconds at which every simulation begins"""
FULL_EVERY = 64
"""steps between two checks of the whole ledger; what a step touched is checked after every step"""
REST_EVERY = 500
"""steps"""
NUDGES = 2
"""pods that are deleted during a rest"""
BREATH_SECONDS = 20.0
QUIET_SECONDS = 400.0
"""longer than reservations, locks, turns and waiters last: at rest, nothing has happened for so long"""
REST_SECONDS = 20000.0
"""within which the cluster must come to rest"""
BACK_AGAIN = 0.1
"""probability that a crashed scheduler is back at the next step"""
STEPS_TOLD = 60
"""last steps that a failure shows"""


class Simulation:
    """Runs on a virtual loop."""

    def __init__(self, seed: int, profile: Profile) -> None:
        rng = self._rng = random.Random(seed)
        self.trace: deque[str] = deque(maxlen=STEPS_TOLD)
        self.steps = 0
        self._faults = Faults(rng, profile.faults, profile.kinds_of_faults)
        api = self._api = SimulatedApiserver(rng, self._faults, on_bound=self._bound)
        self._bindings = Bindings(api, self.time)
        self._kube = KubeScheduler(api, rng)
        self._kube.on_chosen = lambda pod, node: self._process.checker.chose(pod, node) if self._process else None
        self._kube.on_success = self._bindings.succeeded
        names = [f"n{position}" for position in range(profile.nodes)]
        self._recipes = profile.recipes or shapes.recipes()
        self._tenants = Tenants(api, self._bindings, rng, self._recipes, tuple(names))
        self._plugins = Plugins(
            api,
            self._bindings,
            self._tenants,
            rng,
            {
                name: machines.build(rng, name, profile.kinds[i % len(profile.kinds)], rng.choice(profile.agents))
                for i, name in enumerate(names)
            },
            profile.agents,
            self.time,
            self.now,
        )
        self._plugins.start()
        self._process: Process | None = None
        self._start()
        self._failures: list[BaseException] = []
        asyncio.get_running_loop().set_exception_handler(self._failed)
        weights = {**USUAL, **profile.weights}
        self._names = list(weights)
        self._weights = list(accumulate(weights.values()))
        self._actions: dict[str, Callable[[], str | None]] = {name: self._action(name) for name in weights}
        self._pause = 0.0

    def time(self) -> float:
        return asyncio.get_running_loop().time()

    def now(self) -> float:
        return START + self.time()

    def _action(self, name: str) -> Callable[[], str | None]:
        owner = next(owner for owner in (self._tenants, self._plugins, self) if hasattr(owner, name))
        action: Callable[[], str | None] = getattr(owner, name)
        return action

    # -- steps

    async def run(self, steps: int) -> None:
        for _ in range(steps):
            await self._step()
            if self.steps % REST_EVERY == 0:
                await self._rest()

    async def _step(self) -> None:
        self.steps += 1
        self._pause = 0.0
        if self._process is None and self._rng.random() < BACK_AGAIN:
            self._start()
        told = None
        while told is None:
            name = self._rng.choices(self._names, cum_weights=self._weights)[0]
            told = self._actions[name]()
        self.trace.append(f"{self.steps} at {self.time():.2f}: {name}: {told}")
        await asyncio.sleep(self._pause)
        self._check()

    def _check(self) -> None:
        for failure in self._failures:
            raise failure
        if self._process is not None:
            self._process.checker.step()
            if self.steps % FULL_EVERY == 0:
                self._process.checker.full()

    def _failed(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Keeps exceptions of tasks and callbacks that are not awaited."""
        self._failures.append(context.get("exception") or RuntimeError(context["message"]))

    def _bound(self, pod: Pod, call: Call) -> None:
        self.trace.append(f"  {pod.metadata.uid} is bound to {pod.spec.node_name} at {self.time():.2f}")
        self._bindings.wrote(pod, call)

    # -- rest

    async def _rest(self) -> None:
        """Lets everything finish; sleeping pods are not retried by a timer meanwhile."""
        self.trace.append("rest")
        usual = self._faults.rate, self._kube.slow_binds
        self._faults.rate, self._kube.slow_binds, self._kube.flushes = 0.0, 0.0, False
        process = self._process or self._start()
        for machine in self._plugins.machines.values():
            self._plugins.report_of(machine)
        for _ in range(NUDGES):
            await self._calm_down(process, BREATH_SECONDS)
            self._free_unnoticed()
        await self._calm_down(process, QUIET_SECONDS)
        process.checker.rest(self._candidates)
        self._faults.rate, self._kube.slow_binds = usual
        self._kube.flushes = True

    async def _calm_down(self, process: Process, seconds: float) -> None:
        """Waits until nothing has happened for so long."""
        started = busy = self.time()
        while self.time() < busy + seconds:
            if self._settle(process):
                busy = self.time()
                assert busy < started + REST_SECONDS, "it never comes to rest"
            await asyncio.sleep(0.5 if busy == self.time() else TICK)
            self._check()

    def _settle(self, process: Process) -> bool:
        """Does everything that is due; returns whether anything was."""
        busy = bool(self._kube.tasks or self._api.in_flight)
        informers: list[Informer[Any]] = [*process.informers, self._kube.pods, self._kube.nodes]
        self._rng.shuffle(informers)
        for informer in informers:
            while informer.behind:
                informer.deliver()
                busy = True
            busy = self._schedule_all() or busy
        for key, pod in list(self._api.pods.objects.items()):
            if pod.metadata.deletion_timestamp:
                self._tenants.remove(key)
                busy = True
            elif self._plugins.in_handover(pod) and not self._plugins.is_stuck(pod):
                self._plugins.hand_over(key, failed=False)
                busy = True
        return busy or any(queued.place == "backoff" for queued in self._kube.queue.values())

    def _free_unnoticed(self) -> None:
        """Deletes a pod; kube-scheduler retries sleeping pods before the scheduler has seen the deletion."""
        found = self._tenants.some_pod(device_usage.is_live)
        if found is not None:
            self.trace.append(f"{found[0]} is deleted")
            self._tenants.remove(found[0])
            while self._kube.pods.behind:
                self._kube.pods.deliver()
            self._schedule_all()

    def _schedule_all(self) -> bool:
        due = self._kube.due()
        for queued in due:
            self.trace.append(f"{queued.key}: {self._kube.schedule(queued)}")
        return bool(due)

    def _candidates(self, pod: Pod) -> list[str]:
        queued = self._kube.queue[pod.metadata.uid]
        return [name for name in self._api.nodes.objects if queued.allowed is None or name in queued.allowed]

    # -- what happens to informers

    def _deliver(self, *informers: Informer[Any]) -> str | None:
        behind = [informer for informer in informers if informer.behind]
        if not behind:
            return None
        informer = self._rng.choice(behind)
        times = self._rng.choice((1, 1, 2, 3, 10))
        return ", ".join(informer.deliver() for _ in range(min(times, informer.behind)))

    def deliver_pods(self) -> str | None:
        return self._deliver(self._process.pods) if self._process else None

    def deliver_nodes(self) -> str | None:
        return self._deliver(self._process.nodes) if self._process else None

    def deliver_quotas(self) -> str | None:
        return self._deliver(self._process.quotas) if self._process else None

    def deliver_to_kube(self) -> str | None:
        return self._deliver(self._kube.pods, self._kube.nodes)

    def list_again(self) -> str | None:
        """A watch breaks: its informer lists, and watches from there."""
        if self._process is None:
            return None
        position = self._rng.randrange(len(self._process.informers))
        self._process.informers[position].list()
        return ("pods", "nodes", "quotas")[position]

    # -- what happens to the scheduler and kube-scheduler

    def schedule(self) -> str | None:
        due = self._kube.due()
        if not due:
            return None
        queued = due[-1] if self._rng.random() < 0.5 else self._rng.choice(due)
        return f"{queued.key} {queued.pod.metadata.uid}: {self._kube.schedule(queued)}"

    def give_up_bind(self) -> str | None:
        if not self._kube.tasks:
            return None
        task = self._rng.choice(list(self._kube.tasks))
        uid, cancel = self._kube.tasks[task], self._rng.random() < 0.5
        self._kube.give_up(task, cancel=cancel)
        return f"{uid}{' cut off' if cancel else ''}"

    def simulate(self) -> str | None:
        """An autoscaler sends a filter request, which must change nothing."""
        if self._process is None or not self._api.nodes.objects:
            return None
        recipe, engine = self._rng.choice(self._recipes), self._process.engine
        before = engine.ledger.state()
        shapes.simulate(engine.filter, shapes.template(recipe), list(self._api.nodes.objects.values()))
        assert engine.ledger.state() == before
        return recipe

    def restart(self) -> str | None:
        if self._process is None:
            return None
        self._api.crash()
        self._kube.crash()
        self._process.stop()
        self._process = None
        if self._rng.random() < 0.5:
            return "crash"
        self._start()
        return "crash and start"

    def _start(self) -> Process:
        process = self._process = Process(self._api, self._bindings, now=self.now)
        self._kube.engine = process.engine
        return process

    def pass_time(self) -> str | None:
        draw = self._rng.random()
        if draw < 0.7:
            self._pause = self._rng.expovariate(10.0)
        elif draw < 0.95:
            self._pause = self._rng.expovariate(0.5)
        else:
            self._pause = self._rng.uniform(10.0, 60.0) if draw < 0.995 else 320.0
        return f"{self._pause:.2f} s"
