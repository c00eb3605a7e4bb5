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

from msgspec.structs import replace

from tessera.scheduler.settings import Settings
from tessera.scheduler.wiring import Engine
from tessera.wire.keys import BIND_PHASE, NODE_LOCK, PHASE_ALLOCATING, PHASE_FAILED, PHASE_SUCCESS
from tessera.wire.objects import ContainerState, ContainerStatus, Metadata, Pod, PodStatus, Terminated
from tests.model import counting, machines, shapes
from tests.model.checking import MLU_LOCK, Checker
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

    # -- tenants

    def _create_pod(self) -> str | None:
        if len(self.world.pods.objects) >= PODS:
            return None
        namespace, name = self.rng.choice(NAMESPACES), f"p{self.rng.randrange(NAMES)}"
        if f"{namespace}/{name}" in self.world.pods.objects:
            return None
        recipe = self.rng.choice(self._recipes)
        if recipe in shapes.RARE and self.rng.random() < 0.8:
            return None
        pod = self.world.create_pod(shapes.template(recipe), namespace=namespace, name=name)
        return f"{namespace}/{name} {pod.metadata.uid}: {recipe}"

    def _bind_directly(self) -> str | None:
        """A pod with its node in its manifest, and annotations that nobody checked."""
        name, namespace = "direct", self.rng.choice(NAMESPACES)
        machine = self.rng.choice(list(self.machines.values()))
        if f"{namespace}/{name}" in self.world.pods.objects:
            self._remove(f"{namespace}/{name}")
            return f"{namespace}/{name} gone"
        kind = self.rng.choice(("unreadable", "unreadable", "readable", "nothing"))
        template = shapes.template("small")
        if kind != "nothing":
            card = f"{machine.name}-0"
            text = f"{card},NVIDIA,{'2000' if kind == 'readable' else 'lots'},5:;"
            annotations = {counting.ALLOCATED["NVIDIA"]: text}
            template = replace(template, metadata=Metadata(annotations=annotations, labels={kind: ""}))
        pod = self.world.create_pod(template, namespace=namespace, name=name, node=machine.name)
        if kind == "readable":
            self.checker.excuse_pod(pod, "bound by somebody else")
        return f"{namespace}/{name} on {machine.name}: {kind}"

    def _some_pod(self, wanted: Callable[[Pod], bool]) -> tuple[str, Pod] | None:
        found = [(key, pod) for key, pod in self.world.pods.objects.items() if wanted(pod)]
        return self.rng.choice(found) if found else None

    def _delete_pod(self) -> str | None:
        found = self._some_pod(lambda pod: not pod.metadata.deletion_timestamp)
        if found is None:
            return None
        key, pod = found
        at_once = self.rng.random() < (0.3 if pod.spec.node_name else 0.9)
        if at_once:
            self._remove(key)
        else:
            self.world.delete_pod(key, at_once=False)
        return f"{key} {pod.metadata.uid}{' at once' if at_once else ''}"

    def _remove_terminating(self) -> str | None:
        found = self._some_pod(lambda pod: bool(pod.metadata.deletion_timestamp))
        if found is None:
            return None
        self._remove(found[0])
        return found[0]

    def _remove(self, key: str) -> None:
        self.checker.handing.pop(self.world.pods.objects[key].metadata.uid, None)
        self.world.delete_pod(key, at_once=True)

    def _change_quota(self) -> str | None:
        namespace, name = self.rng.choice(NAMESPACES), f"q{self.rng.randrange(2)}"
        key = f"{namespace}/{name}"
        self.checker.excused_quotas[namespace] = "its quota changed"
        if key in self.world.quotas.objects and self.rng.random() < 0.5:
            self.world.quotas.remove(key)
            return f"{key} gone"
        hard = {
            shapes.MEMORY: self.rng.choice((40000, 80000, 200000)),
            shapes.CORES: self.rng.choice((150, 400)),
            shapes.MLU_MEMORY: self.rng.choice((32, 128)),
            shapes.XPU_MEMORY: self.rng.choice((98304, 200000)),
        }
        chosen = {resource: limit for resource, limit in hard.items() if self.rng.random() < 0.3}
        self.world.put_quota(shapes.quota(namespace, name, chosen))
        return f"{key} {chosen}"

    # -- kubelets and plugins

    def _bound(self, pod: Pod, call: Any) -> None:
        self.trace.append(f"  bound {pod.metadata.uid} to {pod.spec.node_name} at {self.time():.2f}")
        self.checker.wrote(pod, call)

    def _in_handover(self, pod: Pod) -> bool:
        return counting.is_live(pod) and pod.annotations.get(BIND_PHASE) == PHASE_ALLOCATING

    def _is_stuck(self, pod: Pod) -> bool:
        return int(pod.metadata.uid[1:]) % STUCK == 0

    def _end_handover(self) -> str | None:
        found = self._some_pod(lambda pod: self._in_handover(pod) and not self._is_stuck(pod))
        if found is None:
            return None
        failed = self.rng.random() < 0.1
        self._hand_over(found[0], failed=failed)
        return f"{found[0]} {found[1].metadata.uid}{' failed' if failed else ''}"

    def _hand_over(self, key: str, *, failed: bool) -> None:
        """As plugins do it: the phase first, then the lock."""
        pod = self.world.pods.objects[key]
        status = replace(pod.status, phase="Failed" if failed else "Running")
        self.checker.handing.pop(pod.metadata.uid, None)
        self.world.mark_pod(key, {BIND_PHASE: PHASE_FAILED if failed else PHASE_SUCCESS}, status)
        node = self.world.nodes.objects.get(pod.spec.node_name)
        if node is None:
            return
        mine = f",{pod.metadata.namespace},{pod.metadata.name}"
        released = [NODE_LOCK] if node.annotations.get(NODE_LOCK, "").endswith(mine) else []
        if MLU_LOCK in node.annotations and "MLU" in counting.allocation(pod):
            released.append(MLU_LOCK)
        if released:
            self.world.annotate(node.name, dict.fromkeys(released))

    def _end_init(self) -> str | None:
        found = self._some_pod(lambda pod: pod.status.phase == "Running" and bool(pod.spec.init_containers))
        if found is None:
            return None
        key, pod = found
        over = ContainerState(Terminated(0))
        init = [c for c in pod.spec.init_containers or () if c.restart_policy != "Always"]
        done = len(pod.status.init_container_statuses or ()) + 1
        statuses = [ContainerStatus(c.name, over) for c in init[:done]]
        self.world.mark_pod(key, {}, replace(pod.status, init_container_statuses=statuses))
        return f"{key}: {done}"

    def _end_pod(self) -> str | None:
        found = self._some_pod(lambda pod: pod.status.phase == "Running")
        if found is None:
            return None
        phase = self.rng.choice(("Succeeded", "Failed"))
        self.world.mark_pod(found[0], {}, PodStatus(phase=phase))
        return f"{found[0]} {phase}"

    def _some_machine(self) -> Machine | None:
        there = [machine for machine in self.machines.values() if machine.name in self.world.nodes.objects]
        return self.rng.choice(there) if there else None

    def _change_card(self) -> str | None:
        machine = self._some_machine()
        if machine is None:
            return None
        rng = self.rng
        if machine.mlus and (not machine.cards or rng.random() < 0.5):
            machine.mlu_units = rng.choice((16, 32, 64))
            for position in range(machine.mlus):
                self.checker.excuse(machine.name, f"{machine.name}-cambricon-mlu-{position}", "it shrank")
            self._show(machine)
            return f"{machine.name}: {machine.mlu_units} units"
        bad = [c for c in machine.cards if c["id"] in machine.hidden | machine.cordoned or not c["health"]]
        if bad and rng.random() < 0.8:
            card = rng.choice(bad)
            card["health"] = True
            machine.hidden.discard(card["id"])
            machine.cordoned.discard(card["id"])
            self._show(machine)
            return f"{card['id']}: repaired"
        card = rng.choice(machine.cards)
        uuid = card["id"]
        change = rng.choice(("hide", "hide", "health", "memory", "slots", "cordon", "mode"))
        if change == "hide":
            machine.hidden ^= {uuid}
        elif change == "health":
            card["health"] = not card["health"]
        elif change == "cordon":
            machine.cordoned ^= {uuid}
        else:
            self.checker.excuse(machine.name, uuid, "its registration changed")
            if change == "memory":
                card["devmem"] = rng.choice((24576, 40960, 81920))
            elif change == "slots":
                card["count"] = rng.choice((1, 4, 10))
            elif card.get("mode") == "mig":
                card["mode"] = "hami-core"
            elif card.get("migProfiles"):
                card["mode"] = "mig"
        self._show(machine)
        return f"{uuid}: {change} {card}"

    def _show(self, machine: Machine) -> None:
        """A plugin registers: what others wrote on the node stays."""
        old = self.world.nodes.objects.get(machine.name)
        node = machine.node()
        if old is not None:
            kept = {key: value for key, value in old.annotations.items() if key not in machines.OWNED}
            metadata = replace(node.metadata, annotations={**kept, **node.annotations})
            node = replace(node, metadata=metadata)
        self.world.put_node(node)

    def _lose_or_return_node(self) -> str | None:
        gone = [machine for machine in self.machines.values() if machine.name not in self.world.nodes.objects]
        machine = self.rng.choice(gone or list(self.machines.values()))
        self.checker.unsettled[machine.name] = self.time()
        if not gone:
            self.world.nodes.remove(machine.name)
            return f"{machine.name} gone"
        self._show(machine)
        return f"{machine.name} back"

    def _change_plugin(self) -> str | None:
        broken = [machine for machine in self.machines.values() if machine.garbled or machine.dead]
        if broken:
            machine = self.rng.choice(broken)
            machine.garbled = machine.dead = False
            if machine.name in self.world.nodes.objects:
                self._show(machine)
            return f"{machine.name}: repaired"
        there = self._some_machine()
        if there is None:
            return None
        machine = there
        change = self.rng.choice(("agent", "garbled", "dead"))
        if change == "agent":
            machine.agent = self.rng.choice(self.profile.agents)
            self.checker.unsettled[machine.name] = self.time()
        elif change == "garbled":
            machine.garbled = True
        else:
            machine.dead = True
        self._show(machine)
        return f"{machine.name}: {change}"

    def _report(self) -> str | None:
        machine = self._some_machine()
        return self._report_of(machine) if machine is not None else None

    def _report_of(self, machine: Machine) -> str | None:
        if not machine.handshake or machine.dead or machine.name not in self.world.nodes.objects:
            return None
        self.world.annotate(machine.name, {machine.handshake: f"Reported {self.now():.0f}"})
        return machine.name
