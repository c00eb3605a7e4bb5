"""Faults of machines, networks, apiservers, etcd and clocks: which one happens when follows from the seed.

Each nemesis is one function that breaks something, waits, and repairs it. Its target is mostly the machine that leads.
Several may be at work at once; `Nemeses.storm` ends when all have repaired what they broke.
"""

from __future__ import annotations

import asyncio
import random
import signal
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass

from tessera.services.failpoints import VARIABLE, Failpoint
from tests.e2e.control_plane import ControlPlane
from tests.e2e.processes import LOOK_S, Program
from tests.e2e.tcp_proxy import TcpProxy
from tests.robustness.api_proxy import ApiProxy
from tests.robustness.etcd_recorder import EtcdRecorder
from tests.robustness.history import FaultBegan, FaultEnded, History
from tests.robustness.machine import Machine

LEASE_S = 4.0
"""leaseDuration in `Replica`"""
AT_ONCE = 2
"""faults"""
FAILPOINTS = (
    Failpoint.AFTER_RESERVE,
    *(Failpoint.BEFORE_WRITE,) * 3,
    Failpoint.AFTER_WRITE,
    Failpoint.BEFORE_SETTLE,
    Failpoint.BEFORE_EVICT,
    Failpoint.AFTER_EVICT,
)
"""of the scheduler; the worst one most often"""
HELD_WITHIN_S = 6.0
"""for a Binding to come that can be held"""


@dataclass(frozen=True)
class BreakableCluster:
    """Everything that can break."""

    plane: ControlPlane
    machines: Sequence[Machine]
    twin: Program
    """the second apiserver"""
    twin_url: str
    twin_etcd: TcpProxy
    """between the second apiserver and etcd"""
    recorder: EtcdRecorder

    @property
    def leader(self) -> Machine:
        host = self.recorder.holder.partition("_")[0]
        return next((machine for machine in self.machines if machine.name == host), self.machines[0])

    def heal(self) -> None:
        if not self.plane.etcd.is_running:
            self.plane.etcd.start()
        if not self.plane.programs["kube-apiserver"].is_running:
            self.plane.start_apiserver()
        if not self.twin.is_running:
            self.twin.start()
        self.twin_etcd.flow()
        for machine in self.machines:
            machine.heal()


class Nemesis:
    """One fault with its choices."""

    def __init__(self, world: BreakableCluster, rng: random.Random) -> None:
        self.world = world
        self.rng = rng
        leader = world.leader
        others = [machine for machine in world.machines if machine is not leader]
        self.machine = leader if rng.random() < 0.75 else rng.choice(others)
        self.target = self.machine.name
        self.detail = ""

    async def sleep(self, least_s: float, most_s: float) -> None:
        await asyncio.sleep(self.rng.uniform(least_s, most_s))

    def choose_programs(self) -> Sequence[Program]:
        both = self.machine.programs
        chosen = self.rng.choice((both[:1], both[:1], both[1:], both))
        self.detail = " and ".join(program.name for program in chosen)
        return chosen

    def choose_networks(self) -> Sequence[ApiProxy]:
        both = self.machine.networks
        choice, self.detail = self.rng.choice(
            ((both[:1], "tessera"), (both[:1], "tessera"), (both[1:], "kube-scheduler"), (both, "both"))
        )
        return choice


async def kill(fault: Nemesis) -> None:
    programs = fault.choose_programs()
    for program in programs:
        program.kill()
    await fault.sleep(0, 3)
    _start(programs)


async def pause(fault: Nemesis) -> None:
    both = fault.machine.programs
    programs = fault.rng.choice((both, both, both[1:], both[:1]))
    fault.detail = " and ".join(program.name for program in programs)
    _send(programs, signal.SIGSTOP)
    await fault.sleep(LEASE_S + 0.5, LEASE_S + 6)
    _send(programs, signal.SIGCONT)


async def hit_failpoint(fault: Nemesis) -> None:
    """Tessera starts anew, and later dies, or stops for longer than the lease, at one exact point.

    A machine that stops, stops as a whole: kube-scheduler keeps the lease otherwise.
    """
    (tessera, kube_scheduler), rng = fault.machine.programs, fault.rng
    point, action = rng.choice(FAILPOINTS).value, rng.choice(("kill", "stop", "stop"))
    fault.detail = f"{point}={action}@{rng.randint(1, 4)}"
    tessera.kill()
    tessera.start(**{VARIABLE: fault.detail})
    for _ in range(round(HELD_WITHIN_S * 2 / LOOK_S)):
        await asyncio.sleep(LOOK_S)
        if tessera.is_stopped or not tessera.is_running:
            break
    if tessera.is_stopped:
        _send([kube_scheduler], signal.SIGSTOP)
        await fault.sleep(LEASE_S + 1, LEASE_S + 6)
        # Tessera first: what it is about to do is then as late as it can be.
        _send([tessera, kube_scheduler], signal.SIGCONT)
        await fault.sleep(1, 3)
    # It may not have come to the point yet.
    tessera.kill()
    _start([tessera])


async def late_write(fault: Nemesis) -> None:
    """A Binding is on its way for longer than the lease; meanwhile its sender may die, restart or be stopped."""
    faults, rng = fault.machine.tessera_network.faults, fault.rng
    faults.held.clear()
    faults.hold_s, faults.binds_to_hold = rng.uniform(LEASE_S + 2, 20), rng.randint(1, 2)
    try:
        async with asyncio.timeout(HELD_WITHIN_S):
            await faults.held.wait()
    except TimeoutError:
        return
    finally:
        faults.binds_to_hold = 0
    tessera, kube_scheduler = fault.machine.programs
    match rng.randrange(4):
        case 0:
            fault.detail = "Tessera restarts"
            tessera.kill()
            await fault.sleep(0, 1)
            _start([tessera])
        case 1:
            fault.detail = "the machine dies"
            for program in (tessera, kube_scheduler):
                program.kill()
            await fault.sleep(LEASE_S, LEASE_S + 4)
            _start([tessera, kube_scheduler])
        case 2:
            fault.detail = "kube-scheduler pauses"
            _send([kube_scheduler], signal.SIGSTOP)
            await fault.sleep(LEASE_S + 0.5, LEASE_S + 4)
            _send([kube_scheduler], signal.SIGCONT)
        case _:
            await fault.sleep(1, 4)


async def late_bind_call(fault: Nemesis) -> None:
    """kube-scheduler's call reaches Tessera after the lease has, perhaps, moved."""
    extender = fault.machine.extender
    extender.hold_s, extender.binds_to_hold = fault.rng.uniform(1, LEASE_S + 6), fault.rng.randint(1, 3)
    kube_scheduler = fault.machine.replica.kube_scheduler
    if fault.rng.random() < 0.5:
        fault.detail = "kube-scheduler pauses"
        await fault.sleep(0.2, 1)
        _send([kube_scheduler], signal.SIGSTOP)
    await fault.sleep(LEASE_S, LEASE_S + 3)
    _send([kube_scheduler], signal.SIGCONT)
    extender.binds_to_hold = 0


async def drop(fault: Nemesis) -> None:
    networks = fault.choose_networks()
    for network in networks:
        network.faults.refuses = True
        network.cut()
    await fault.sleep(0, LEASE_S + 2)
    for network in networks:
        network.faults.refuses = False


async def lose_answers(fault: Nemesis) -> None:
    networks = fault.choose_networks()
    for network in networks:
        network.faults.loses_answers = True
    await fault.sleep(1, 5)
    for network in networks:
        network.faults.loses_answers = False


async def delay(fault: Nemesis) -> None:
    networks = fault.choose_networks()
    for network in networks:
        network.faults.delay_s = fault.rng.uniform(0.1, 2.5)
    await fault.sleep(2, 8)
    for network in networks:
        network.faults.delay_s = 0.0


async def stall_watches(fault: Nemesis) -> None:
    """Watches are silent, and show later what they missed."""
    networks = fault.choose_networks()
    for network in networks:
        network.faults.watches_flow.clear()
    await fault.sleep(2, 12)
    for network in networks:
        network.faults.watches_flow.set()


async def silence_watches(fault: Nemesis) -> None:
    """The connections of all watches stay open, and no byte ever comes again: Tessera must open others by itself."""
    network = fault.machine.tessera_network
    network.silent_watches = network.watches
    await fault.sleep(1, 5)


async def rewind(fault: Nemesis) -> None:
    """The machine is sent to an apiserver that has been cut off from etcd for a while: it knows only the past.

    What is written there reaches etcd late, or takes effect without an answer.
    """
    world, networks = fault.world, fault.choose_networks()
    hold = fault.rng.choice((world.twin_etcd.hold_answers, world.twin_etcd.hold_requests))
    fault.detail += f", {hold.__name__}"
    hold()
    await fault.sleep(0, 3)
    for network in networks:
        network.upstream = world.twin_url
        network.cut()
    await fault.sleep(2, 10)
    world.twin_etcd.flow()
    await fault.sleep(0, 3)
    for network in networks:
        network.upstream = world.plane.url
        network.cut()


async def restart_apiserver(fault: Nemesis) -> None:
    world = fault.world
    fault.target = fault.rng.choice(("kube-apiserver", world.twin.name))
    program = world.twin if fault.target == world.twin.name else world.plane.programs["kube-apiserver"]
    program.kill()
    await fault.sleep(0, 3)
    _start([program])
    await fault.sleep(2, 4)


async def restart_etcd(fault: Nemesis) -> None:
    etcd = fault.world.plane.etcd
    fault.target = etcd.name
    etcd.kill()
    await fault.sleep(0, 3)
    _start([etcd])
    await fault.sleep(1, 3)


async def move_clock(fault: Nemesis) -> None:
    seconds = fault.rng.choice((5, 60, 3600, 86400)) * fault.rng.choice((-1, 1))
    fault.detail = f"{seconds:+} s"
    fault.machine.move_clock(seconds)
    await fault.sleep(3, 10)
    fault.machine.move_clock(0.0)


Attack = Callable[[Nemesis], Coroutine[None, None, None]]

WEIGHTS: Mapping[Attack, int] = {
    kill: 3,
    pause: 4,
    late_write: 5,
    late_bind_call: 3,
    hit_failpoint: 3,
    drop: 2,
    lose_answers: 2,
    delay: 1,
    stall_watches: 2,
    rewind: 3,
    restart_apiserver: 1,
    restart_etcd: 1,
    move_clock: 1,
    silence_watches: 1,
}
SLOW = frozenset({silence_watches})
"""faults that take the product minutes to notice: only for runs of `LONG_S` and more"""
LONG_S = 600.0


def choose_kinds(text: str, *, seconds: float, has_clocks: bool) -> list[str]:
    """Those that the text names; without one, all that suit a run of this length on this machine."""
    known = [_kind(nemesis) for nemesis in WEIGHTS]
    chosen = [kind.strip() for kind in text.split(",") if kind.strip()]
    if unknown := sorted(set(chosen) - set(known)):
        raise ValueError(f"no faults: {', '.join(unknown)}; there are {', '.join(known)}")
    return chosen or [
        _kind(nemesis)
        for nemesis in WEIGHTS
        if (nemesis is not move_clock or has_clocks) and (nemesis not in SLOW or seconds >= LONG_S)
    ]


class Nemeses:
    """Chooses faults, and counts them by kind."""

    def __init__(self, world: BreakableCluster, history: History, *, seed: str, kinds: Collection[str]) -> None:
        """`kinds` are the only faults that happen."""
        self.counts: Counter[str] = Counter()
        self._world = world
        self._history = history
        self._rng = random.Random(seed)
        self._weights = {nemesis: weight for nemesis, weight in WEIGHTS.items() if _kind(nemesis) in kinds}

    async def storm(self, seconds: float) -> None:
        """Lets faults happen for this long, and waits until the last one is repaired."""
        clock = asyncio.get_running_loop().time
        until = clock() + seconds
        running: set[asyncio.Task[None]] = set()
        async with asyncio.TaskGroup() as tasks:
            while clock() < until:
                if len(running) < AT_ONCE:
                    task = tasks.create_task(self._one())
                    running.add(task)
                    task.add_done_callback(running.discard)
                await asyncio.sleep(self._rng.uniform(0.5, 4.0))

    async def _one(self) -> None:
        (nemesis,) = self._rng.choices(list(self._weights), weights=list(self._weights.values()))
        kind = _kind(nemesis)
        fault = Nemesis(self._world, random.Random(self._rng.random()))
        self.counts[kind] += 1
        self._history.add(FaultBegan(at=self._history.now, kind=kind, target=fault.target))
        await nemesis(fault)
        self._history.add(FaultEnded(at=self._history.now, kind=kind, target=fault.target, detail=fault.detail))


def _kind(nemesis: Attack) -> str:
    return str(getattr(nemesis, "__name__", "")).replace("_", " ")


def _send(programs: Sequence[Program], number: int) -> None:
    for program in programs:
        if program.is_running:
            program.send(number)


def _start(programs: Sequence[Program]) -> None:
    for program in programs:
        if not program.is_running:
            program.start()
