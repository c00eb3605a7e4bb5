"""The scheduler's engine on a `FakeCluster`, one step at a time.

Informers see a change only when a test calls `watch`, so lag is something that a test decides.
"""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Callable, Coroutine, Hashable, Iterable, Sequence
from dataclasses import replace
from datetime import UTC
from typing import Any

from tessera.core.ledger.audit import audit
from tessera.core.ledger.holders import GrantState, HolderKind
from tessera.core.ledger.ledger import replay
from tessera.core.model.grants import Placement
from tessera.core.search import finish
from tessera.scheduler.clock import Clock
from tessera.scheduler.engine import Engine
from tessera.scheduler.eviction.preemption_loop import PreemptionLoop, Preemptor
from tessera.scheduler.features.claims.feature import Claims
from tessera.scheduler.features.gangs.feature import Gangs
from tessera.scheduler.features.gangs.gang import Gang
from tessera.scheduler.features.gangs.preemption import gang_priority
from tessera.scheduler.features.moves.feature import Moves
from tessera.scheduler.features.preemption.feature import PodPreemption
from tessera.scheduler.features.preemption.preemptor import PodPreemptors
from tessera.scheduler.features.registry import FEATURES
from tessera.scheduler.observer import BindEvent, PlacedEvent, RefusedEvent, SchedulerObserver
from tessera.scheduler.pod_cycle import HOLDS_RESERVATION, UNSCHEDULABLE, CycleState
from tessera.scheduler.queue.unschedulable_pods import UnschedulablePod
from tessera.scheduler.settings import NodeLockMode, Settings
from tessera.scheduler.tenure import Tenure
from tessera.vendors.downward_api import container_env
from tessera.vendors.node_reader import node_facts
from tessera.vendors.nvidia.downward_api import NvidiaDownwardApi
from tessera.vendors.pod_reader import PodReader
from tessera.wire.keys import AGENT
from tests.support.builders import GPU, NOW, NodeBuilder, PodBuilder
from tests.support.fake_cluster import FakeCluster

RESERVATION = 300.0
TURN = 20.0
LOCK = 300.0
"""seconds"""


def serving_downward_api(node: NodeBuilder) -> NodeBuilder:
    """A node with an agent that lets containers read their slices through the downward API: no turns, no lock."""
    return node.annotate((AGENT, "env"))


def answering(node: NodeBuilder) -> NodeBuilder:
    """A node with an agent whose Allocate response holds the slice: turns, no lock."""
    return node.annotate((AGENT, "cdi"))


def using_downward_api(pod: PodBuilder) -> PodBuilder:
    """The pod with the environment variables that the webhook gives it."""
    split = len(pod.init_containers)
    changed = tuple(_with_env(c, i) for i, c in enumerate((*pod.init_containers, *pod.containers)))
    return replace(pod, init_containers=changed[:split], containers=changed[split:])


def _with_env(container: Any, position: int) -> dict[str, Any]:
    devices = int(container["resources"]["limits"].get(GPU, 0))
    env = (
        container_env(NvidiaDownwardApi(), container=position, name=container["name"], devices=devices)
        if devices
        else []
    )
    return {**container, "env": env}


def filter_body(
    pod: PodBuilder | dict[str, Any] | None, names: Sequence[str] | None = None, nodes: Sequence[Any] | None = None
) -> bytes:
    document = pod.manifest() if isinstance(pod, PodBuilder) else pod
    listed = None if nodes is None else {"metadata": {}, "items": list(nodes)}
    return json.dumps({"Pod": document, "NodeNames": names, "Nodes": listed}).encode()


def bind_body(pod: PodBuilder, node: str) -> bytes:
    uid = pod.manifest()["metadata"]["uid"]
    return json.dumps({"PodName": pod.name, "PodNamespace": pod.namespace, "PodUID": uid, "Node": node}).encode()


def uid(pod: PodBuilder) -> str:
    found: str = pod.manifest()["metadata"]["uid"]
    return found


class Reports(SchedulerObserver):
    """What the pipeline reported."""

    def __init__(self) -> None:
        self.placed: list[PlacedEvent] = []
        self.refused: list[RefusedEvent] = []
        self.binds: list[BindEvent] = []

    def on_placed(self, event: PlacedEvent) -> None:
        self.placed.append(event)

    def on_refused(self, event: RefusedEvent) -> None:
        self.refused.append(event)

    def on_bind(self, event: BindEvent) -> None:
        self.binds.append(event)


class CountingEvent(asyncio.Event):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def set(self) -> None:
        self.count += 1
        super().set()


class World:
    """One engine and its apiserver. `at` is its clock where no event loop runs."""

    features = FEATURES

    def __init__(self, *nodes: NodeBuilder, mode: NodeLockMode = NodeLockMode.AUTO) -> None:
        self.skew = 0.0
        """seconds by which its wall clock is set"""
        self.at = 0.0
        self.leads: int | None = 0
        """the tenure that the lease gives the engine"""
        self._tenures = 0
        self.settings = Settings(node_lock=mode, reservation_s=RESERVATION, turn_s=TURN, node_lock_s=LOCK)
        self.api = FakeCluster()
        self.start()
        for node in nodes:
            self.api.add_node(node)
        self.watch()

    def start(self) -> None:
        """A new process: nothing is remembered but what the API shows."""
        self.reports = Reports()
        engine = self.engine = Engine(
            self.settings,
            self.api,
            clock=Clock(self.now, self.time, UTC),
            spawn=self.spawn,
            observer=self.observer(),
            tenure=Tenure(lambda: self.leads),
            features=self.features,
        )
        engine.tenure.begin(0, "fence-0")
        engine.unschedulable.room = self._room = CountingEvent()
        self.vendors, self.ledger, self.selector = engine.vendors, engine.ledger, engine.selector
        self.unschedulable, self.queue, self.cycles = engine.unschedulable, engine.queue, engine.cycles
        self.filter, self.binder = engine.filter, engine.binder
        self.pods, self.nodes, self.quotas = engine.pods, engine.nodes, engine.quotas

    def observer(self) -> SchedulerObserver:
        return self.reports

    def spawn(self, work: Coroutine[Any, Any, None]) -> object:
        """What the engine does beside its answers is done when a test says so."""
        return work.close()

    @property
    def room(self) -> int:
        """How often capacity was reported to be free."""
        return self._room.count

    def restart(self) -> None:
        """The process is replaced, and reads everything."""
        self.start()
        self.api.changes.clear()
        for name, node in self.api.nodes.items():
            self.nodes.put(name, node)
        for key, pod in self.api.pods.items():
            self.pods.put(key, pod)

    def lead_again(self) -> None:
        """Another replica led for a while."""
        self.stop_leading()
        self.leads = self._tenures
        self.engine.tenure.begin(self._tenures, f"fence-{self._tenures}")

    def stop_leading(self) -> None:
        self._tenures += 1
        self.leads = None
        self.engine.step_down()

    def time(self) -> float:
        try:
            return asyncio.get_running_loop().time()
        except RuntimeError:
            return self.at

    def now(self) -> float:
        return NOW + self.time() + self.skew

    # -- doing

    def watch(self) -> None:
        """The informers see all that has changed."""
        while self.api.changes:
            kind, key = self.api.changes.popleft()
            if kind == "node":
                _show(self.nodes, key, self.api.nodes.get(key))
            elif kind == "claim":
                _show(claims_of(self.engine).claims, key, self.api.claims.get(key))
            else:
                _show(self.pods, key, self.api.pods.get(key))

    def create(self, *pods: PodBuilder) -> None:
        for pod in pods:
            self.api.add_pod(pod)
        self.watch()

    def asked(self, body: bytes) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self.filter.answer(body))
        return answer

    def filtered(self, pod: PodBuilder, names: Iterable[str] | None = None) -> dict[str, Any]:
        document = pod.manifest()
        metadata = document["metadata"]
        stored = self.api.pods.get(f"{metadata['namespace']}/{metadata['name']}")
        if stored is not None:
            metadata["resourceVersion"] = stored.metadata.resource_version
        return self.asked(filter_body(document, sorted(self.api.nodes) if names is None else list(names)))

    def chosen(self, pod: PodBuilder, names: Iterable[str] | None = None) -> str:
        """The one node of an answer that has nothing else."""
        answer = self.filtered(pod, names)
        assert answer["Error"] == ""
        assert answer["FailedNodes"] is None, answer
        [node] = answer["NodeNames"]
        assert isinstance(node, str)
        return node

    def reason(self, pod: PodBuilder, names: Iterable[str] | None = None) -> str:
        """With which a pod is refused, the same for every node."""
        answer = self.filtered(pod, names)
        assert answer["NodeNames"] is None, answer
        [text] = {*(answer["FailedNodes"] or {}).values(), *(answer["FailedAndUnresolvableNodes"] or {}).values()}
        return str(text)

    async def bound(self, pod: PodBuilder, node: str = "n1") -> str:
        """The error of a bind; empty where it went well."""
        answer: dict[str, str] = json.loads(await self.binder.answer(bind_body(pod, node)))
        assert list(answer) == ["Error"]
        return answer["Error"]

    async def run(self, pod: PodBuilder) -> None:
        """The whole way of a pod."""
        self.create(pod)
        assert await self.bound(pod, self.chosen(pod)) == ""

    # -- looking

    def cycle_state(self, pod: PodBuilder) -> CycleState | None:
        cycle = self.cycles.get(uid(pod))
        return cycle.state if cycle is not None else None

    def state(self, pod: PodBuilder) -> GrantState | None:
        entry = self.ledger.pod(uid(pod))
        return entry.state if entry is not None else None

    def placement(self, pod: PodBuilder) -> Placement:
        entry = self.ledger.pod(uid(pod))
        assert entry is not None
        return Placement(entry.facts.node, entry.facts.grants)

    def cards(self, name: str = "n1") -> dict[str, tuple[int, int, int]]:
        """Slots, memory and cores in use, by uuid."""
        view = self.ledger.node(name)
        assert view is not None
        return {card.device.uuid: (card.used, card.used_memory, card.used_cores) for card in view.cards}

    def agrees(self) -> bool:
        """Whether the ledger is what the API shows once the informers have caught up, with nothing left behind."""
        self.watch()
        assert audit(self.ledger) == []
        facts = [found for pod in self.api.pods.values() if (found := PodReader(self.vendors).facts(pod)) is not None]
        nodes = [read for node in self.api.nodes.values() if (read := node_facts(node, self.vendors)).devices]
        again = replay(self.vendors, nodes=nodes, pods=facts)
        mine, other = self.ledger.state(), again.state()
        assert (mine["nodes"], mine["pods"]) == (other["nodes"], other["pods"])
        assert self.cycles.count(*HOLDS_RESERVATION) == 0
        assert_cycles_match(self.engine)
        return True


def assert_cycles_match(engine: Engine) -> None:
    """Records and ledger say the same about every pod."""
    for cycle in engine.cycles:
        entry = engine.ledger.pod(cycle.uid)
        held = None if entry is None else (entry.state, entry.observed)
        match cycle.state:
            case CycleState.PENDING | CycleState.REFUSED | CycleState.NOMINATED:
                expected = None
            case CycleState.RESERVED | CycleState.UNCERTAIN:
                expected = (GrantState.RESERVED, False)
            case CycleState.BINDING | CycleState.BOUND:
                expected = (GrantState.BOUND, False)
            case CycleState.HANDING_OVER:
                expected = (GrantState.BOUND, True)
            case CycleState.SETTLED:
                continue  # The bind that still works on it has no say any more.
        assert held == expected, f"{cycle.uid} is {cycle.state}, the ledger says {held}"
        assert (cycle.uid in engine.unschedulable) is (cycle.state in UNSCHEDULABLE)
        is_nominated = engine.ledger.nominations.get(cycle.uid) is not None
        assert is_nominated is (cycle.state is CycleState.NOMINATED), f"{cycle.uid} is {cycle.state}"
    for nomination in engine.ledger.nominations.all():
        if nomination.kind is not HolderKind.POD:
            continue
        assert engine.cycles.get(nomination.facts.uid) is not None, f"{nomination.facts.uid} has no record"
    for entry in engine.ledger.pods():
        if entry.kind is not HolderKind.POD:
            continue
        assert entry.observed or engine.cycles.get(entry.facts.uid) is not None, f"{entry.facts.uid} has no record"

    assert_accounts_match(engine)


def assert_accounts_match(engine: Engine) -> None:
    """Accounts pay for what gangs hold, and for nothing else."""
    paid: defaultdict[str, float] = defaultdict(float)
    holds, accounts = gangs_of(engine).holds, gangs_of(engine).holds.accounts
    for gang in gangs_of(engine).registry:
        for hold in holds.of(gang):
            assert accounts.cards_of(hold.uid) is not None, f"no account pays for a hold of {gang.name}"
        held = (hold.uid for hold in holds.of(gang))
        keys: list[Hashable] = [*held, *gang.members, (gang.namespace, gang.group.name)]
        paid[gang.namespace] += sum(accounts.cards_of(key) or 0.0 for key in keys)
    for namespace in {*paid, "default", "mallory"}:
        assert abs(accounts.held_by(namespace) - paid[namespace]) < 1e-6, f"{namespace} pays for something else"


def _show(sink: Any, key: str, found: Any) -> None:
    show: Callable[..., None] = sink.drop if found is None else sink.put
    show(*((key,) if found is None else (key, found)))


def claims_of(engine: Engine) -> Claims:
    return engine.feature(Claims)


def gangs_of(engine: Engine) -> Gangs:
    return engine.feature(Gangs)


def tick_gangs(engine: Engine) -> None:
    """What a tick does to gangs, at once."""
    finish(engine.feature(Gangs)._tick())


def moves_of(engine: Engine) -> Moves:
    return engine.feature(Moves)


def preemption_loop_of(engine: Engine) -> PreemptionLoop:
    return engine.feature(PodPreemption).loop


def pod_preemptors_of(engine: Engine) -> PodPreemptors:
    return engine.feature(PodPreemption).pods


def preemptor_of(engine: Engine, waiting: UnschedulablePod | Gang) -> Preemptor:
    """A refused pod, or a gang, as the loop sees it."""
    if isinstance(waiting, Gang):
        return engine.feature(Gangs).preemptor(waiting, gang_priority(waiting) or 0)
    return pod_preemptors_of(engine).of(waiting)


async def preempt_for(engine: Engine, waiting: UnschedulablePod | Gang) -> None:
    await preemption_loop_of(engine).preempt(preemptor_of(engine, waiting))
