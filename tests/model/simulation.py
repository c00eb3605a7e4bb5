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
from tessera.wire.resource_api import DRIVER, ResourceClaim
from tests.model import device_usage, machines, shapes, virtual_time
from tests.model.adversary import Adversary
from tests.model.apiserver import SimulatedApiserver
from tests.model.bindings import Bindings
from tests.model.claims import CLASSES, ClaimController, StockScheduler, template
from tests.model.faults import Faults
from tests.model.kube_scheduler import KubeScheduler
from tests.model.lease import ModelLease
from tests.model.leftovers import leftovers
from tests.model.plugins import Plugins
from tests.model.process import TICK, Process
from tests.model.profiles import OF_CLAIMS, USUAL, Profile
from tests.model.tables import Informer
from tests.model.tenants import NAMESPACES, Tenants

START = 1_700_000_000.0
"""unix time in seconds at which every simulation begins"""
FULL_EVERY = 64
"""steps between two checks of the whole ledger; what a step touched is checked after every step"""
REST_EVERY = 500
"""steps"""
REPLAYED = 50
"""records of a journal that are replayed at once"""
NUDGES = 2
"""pods that are deleted during a rest"""
BREATH_S = 20.0
QUIET_S = 400.0
"""longer than reservations, locks, turns and waiters last: at rest, nothing has happened for so long"""
REST_S = 20000.0
"""within which the cluster must come to rest"""
BACK_AGAIN = 0.1
"""probability that a crashed scheduler is back at the next step"""
RARELY = 0.1
"""probability"""
LONGEST_PAUSE = 90.0
"""seconds: several times as long as the lease"""
STEPS_TOLD = 60
"""last steps that a failure shows"""


class Simulation:
    """Runs on a virtual loop."""

    def __init__(self, seed: int, profile: Profile) -> None:
        rng = self._rng = random.Random(seed)
        self.trace: deque[str] = deque(maxlen=STEPS_TOLD)
        self.steps = 0
        self._faults = Faults(rng, profile.faults, profile.kinds_of_faults)
        api = self.api = SimulatedApiserver(rng, self._faults, on_bound=self._bound, on_allocated=self._allocated)
        api.owns_pods = profile.moves
        self._bindings = Bindings(api, self.time)
        self._kube = KubeScheduler(api, rng)
        self._kube.on_chosen = lambda process, pod, node: process.checker.chose(pod, node)
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
            publishes=profile.claims,
        )
        self._plugins.start()
        self._reads_claims = profile.claims
        self._controller = ClaimController(api, rng, NAMESPACES, self._bindings.edited)
        self._stock = StockScheduler(api, rng)
        for name, found in CLASSES.items() if profile.claims else ():
            api.classes.put(name, found)
        self._adversary = Adversary(api, self._faults, self._tenants, rng, self.time)
        self._skews: dict[str, float] = {}
        """seconds by which the wall clocks of replicas are wrong"""
        self._lease = ModelLease(self.time)
        self._replicas: dict[str, Process | None] = dict.fromkeys("ab"[: profile.replicas])
        for name in self._replicas:
            self._start(name)
        self._move_lease()
        self._failures: list[BaseException] = []
        asyncio.get_running_loop().set_exception_handler(self._failed)
        weights = {**USUAL, **(OF_CLAIMS if profile.claims else {}), **profile.weights}
        self._names = list(weights)
        self._weights = list(accumulate(weights.values()))
        self._actions: dict[str, Callable[[], str | None]] = {name: self._action(name) for name in weights}
        self._pause = 0.0

    def time(self) -> float:
        return virtual_time.now()

    def now(self) -> float:
        return START + self.time()

    def _action(self, name: str) -> Callable[[], str | None]:
        owners = (self._tenants, self._plugins, self._controller, self._adversary, self)
        owner = next(owner for owner in owners if hasattr(owner, name))
        action: Callable[[], str | None] = getattr(owner, name)
        return action

    # -- steps

    async def run(self, steps: int) -> None:
        for _ in range(steps):
            await self._step()
            if self.steps % REST_EVERY == 0:
                await self._rest()
        await self._end()
        for process in self._running:
            process.replay()

    async def _end(self) -> None:
        """All pods and claims go: nothing is left of them."""
        self.trace.append("end")
        await self._rest()
        self._faults.rate = 0.0
        self._adversary.end_everything()
        await self._calm_down(BREATH_S)
        for key in list(self.api.claims.objects):
            self.api.claims.remove(key)
        await self._calm_down(QUIET_S)
        for process in self._running:
            assert process.engine.ledger.pods() == []
            left = leftovers(process.engine)
            assert left == {}, f"{process.name} still knows {left}"

    async def _step(self) -> None:
        self.steps += 1
        self._pause = 0.0
        for name, process in self._replicas.items():
            if process is None and self._rng.random() < BACK_AGAIN:
                self._start(name)
        told = None
        while told is None:
            name = self._rng.choices(self._names, cum_weights=self._weights)[0]
            told = self._actions[name]()
        self.trace.append(f"{self.steps} at {self.time():.2f}: {name}: {told}")
        await asyncio.sleep(self._pause)
        self._move_lease()
        self._check()

    def _check(self) -> None:
        for failure in self._failures:
            raise failure
        for process in self._running:
            process.checker.step()
            if self.steps % FULL_EVERY == 0:
                process.checker.full()
            process.replay(least=REPLAYED)

    def _failed(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Keeps exceptions of tasks and callbacks that are not awaited."""
        self._failures.append(context.get("exception") or RuntimeError(context["message"]))

    def _bound(self, pod: Pod) -> None:
        self.trace.append(f"  {pod.metadata.uid} is bound to {pod.spec.node_name} at {self.time():.2f}")
        self._bindings.wrote(pod)

    def _allocated(self, claim: ResourceClaim) -> None:
        devices = [each.device for each in claim.devices_of(DRIVER)]
        self.trace.append(f"  {claim.metadata.uid} {claim.metadata.name} gets {devices} at {self.time():.2f}")
        self._bindings.allocated(claim)

    @property
    def _running(self) -> list[Process]:
        return [process for process in self._replicas.values() if process is not None]

    @property
    def _awake(self) -> list[Process]:
        return [process for process in self._running if not process.is_paused]

    def _some_process(self) -> Process | None:
        awake = self._awake
        return self._rng.choice(awake) if awake else None

    def _victim(self) -> Process | None:
        """For an end or a pause: mostly a process with a binding on its way, and None while there is none."""
        binding = [process for process in self._awake if process.client.is_binding]
        if binding:
            return self._rng.choice(binding)
        return self._some_process() if self._rng.random() < RARELY else None

    def _move_lease(self) -> None:
        """Renewals, acquisitions, and what replicas do about them."""
        lease, awake = self._lease, self._awake
        if any(process.name == lease.holder for process in awake):
            lease.renew()
        if lease.is_free and awake:
            process = self._rng.choice(awake) if len(awake) > 1 else awake[0]
            lease.acquire(process.name)
            self._kube.follow(process)
            self.trace.append(f"  {process.name} has the lease at {self.time():.2f}")
        for process in awake:
            process.look_at_lease()

    # -- rest

    async def _rest(self) -> None:
        """Lets everything finish; sleeping pods are not retried by a timer meanwhile."""
        self.trace.append("rest")
        usual = self._faults.rate, self._kube.slow_binds
        self._faults.rate, self._kube.slow_binds, self._kube.flushes = 0.0, 0.0, False
        for name, process in self._replicas.items():
            if process is None:
                self._start(name)
            else:
                process.client.resume_at = 0.0
        for machine in self._plugins.machines.values():
            self._plugins.report_of(machine)
        self._plugins.publish_again()
        for _ in range(NUDGES):
            await self._calm_down(BREATH_S)
            self._free_unnoticed()
        await self._calm_down(QUIET_S)
        for process in self._running:
            if process.name == self._lease.holder:
                process.checker.rest(self._candidates)
            else:
                process.checker.full()
        self._faults.rate, self._kube.slow_binds = usual
        self._kube.flushes = True

    async def _calm_down(self, seconds: float) -> None:
        """Waits until nothing has happened for so long."""
        started = busy = self.time()
        while True:
            self._move_lease()
            if self._settle():
                busy = self.time()
                assert busy < started + REST_S, "it never comes to rest"
            elif self.time() >= busy + seconds:
                return
            await asyncio.sleep(0.5 if busy == self.time() else TICK)
            self._check()

    def _settle(self) -> bool:
        """Does everything that is due; returns whether anything was."""
        busy = bool(self._kube.tasks or self.api.in_flight)
        busy = self._controller.settle() or busy
        busy = self._adversary.settle() or busy
        informers: list[Informer[Any]] = [self._kube.pods, self._kube.nodes, self._stock.claims, self._stock.slices]
        for process in self._running:
            informers += process.informers
        self._rng.shuffle(informers)
        for informer in informers:
            if informer.behind:
                while informer.behind:
                    informer.deliver()
                self._schedule_all()
                busy = True
        busy = self._schedule_all() or busy
        for key, pod in list(self.api.pods.objects.items()):
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
        return [name for name in self.api.nodes.objects if queued.allowed is None or name in queued.allowed]

    # -- what happens to informers

    def _deliver(self, *informers: Informer[Any]) -> str | None:
        behind = [informer for informer in informers if informer.behind]
        if not behind:
            return None
        informer = self._rng.choice(behind)
        times = self._rng.choice((1, 1, 2, 3, 10))
        return ", ".join(informer.deliver() for _ in range(min(times, informer.behind)))

    def deliver_pods(self) -> str | None:
        return self._deliver(*(process.pods for process in self._awake))

    def deliver_nodes(self) -> str | None:
        return self._deliver(*(process.nodes for process in self._awake))

    def deliver_quotas(self) -> str | None:
        return self._deliver(*(process.quotas for process in self._awake))

    def deliver_claims(self) -> str | None:
        return self._deliver(*(process.of_claims[0] for process in self._awake))

    def deliver_slices(self) -> str | None:
        return self._deliver(*(informer for process in self._awake for informer in process.of_claims[1:]))

    def deliver_to_stock(self) -> str | None:
        return self._deliver(self._stock.claims, self._stock.slices)

    def stock_allocate(self) -> str | None:
        return self._stock.allocate()

    def deliver_to_kube(self) -> str | None:
        return self._deliver(self._kube.pods, self._kube.nodes)

    def list_again(self) -> str | None:
        """A watch breaks: its informer lists, and watches from there."""
        process = self._some_process()
        if process is None:
            return None
        position = self._rng.randrange(len(process.informers))
        process.informers[position].list()
        return ("pods", "nodes", "quotas", "claims", "slices", "classes")[position]

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
        process = self._some_process()
        if process is None or not self.api.nodes.objects:
            return None
        recipe, engine = self._rng.choice(self._recipes), process.engine
        before = engine.ledger.state()
        shapes.simulate(engine.filter, template(recipe), list(self.api.nodes.objects.values()))
        assert engine.ledger.state() == before
        return recipe

    def restart(self) -> str | None:
        """With or without its kube-scheduler; without a lease there is none to wait for."""
        process = self._victim()
        if process is None:
            return None
        name = process.name
        self._kube.crash(process)
        process.stop()
        self._replicas[name] = None
        if self._lease.holder == name:
            if len(self._replicas) == 1 or self._rng.random() < 0.3:
                self._lease.release(unseen_s=0.0)
            else:
                self._lease.stop_renewing(self.time() - self._rng.uniform(0.0, 2.0))
        if self._rng.random() < 0.5:
            return f"{name}: crash"
        self._start(name)
        return f"{name}: crash and start"

    def pause(self) -> str | None:
        """A machine stops for a while, with everything that is on its way to its processes, and their clocks do not."""
        process = self._victim()
        if process is None:
            return None
        seconds = self._rng.uniform(0.0, LONGEST_PAUSE)
        process.client.pause(seconds)
        if self._lease.holder == process.name:
            self._lease.stop_renewing(self.time() - self._rng.uniform(0.0, 2.0))
        return f"{process.name} for {seconds:.2f} s"

    def end_kube_scheduler(self) -> str | None:
        """It gives its lease back; the scheduler beside it may hear of that too late."""
        holder = self._victim()
        if holder is None or holder.name != self._lease.holder:
            return None
        self._lease.release(unseen_s=self._rng.uniform(0.0, 10.0))
        self._kube.follow(None)
        return holder.name

    def steal_lease(self) -> str | None:
        """Another program gives it to the other replica. The kube-scheduler that had it asks on until it sees that."""
        others = [process for process in self._awake if process.name != self._lease.holder]
        if not others or self._lease.holder not in (process.name for process in self._awake):
            return None
        thief, unseen = self._rng.choice(others), self._rng.choice((0.0, 1.0, 9.9))
        self._lease.steal(thief.name, unseen_s=unseen)
        asyncio.get_running_loop().call_later(unseen, self._follow_thief, thief.name)
        return f"{thief.name}, unseen for {unseen} s"

    def _follow_thief(self, name: str) -> None:
        if self._lease.holder == name:
            self._kube.follow(self._replicas[name])

    def set_clock(self) -> str | None:
        """The wall clock of a replica is set, by seconds to hours, in either direction."""
        name = self._rng.choice(list(self._replicas))
        seconds = self._rng.choice((-1, 1)) * self._rng.choice((2.0, 90.0, 600.0, 7200.0, 90000.0))
        self._skews[name] = self._skews.get(name, 0.0) + seconds
        return f"{name}: {seconds:+.0f} s"

    def _start(self, name: str) -> None:
        process = self._replicas[name] = Process(
            name,
            self.api,
            self._bindings,
            self._lease,
            now=lambda: self.now() + self._skews.get(name, 0.0),
            reads_claims=self._reads_claims,
            moves_pods=self.api.owns_pods,
        )
        if self._lease.holder == name:
            self._kube.process = process

    def pass_long(self) -> str | None:
        """So long that moves are planned."""
        self._pause = self._rng.uniform(5.0, 30.0)
        return f"{self._pause:.0f} s"

    def pass_time(self) -> str | None:
        draw = self._rng.random()
        if draw < 0.7:
            self._pause = self._rng.expovariate(10.0)
        elif draw < 0.95:
            self._pause = self._rng.expovariate(0.5)
        else:
            self._pause = self._rng.uniform(10.0, 60.0) if draw < 0.995 else 320.0
        return f"{self._pause:.2f} s"
