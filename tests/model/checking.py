"""What must hold after every step, and what must hold at rest.

Two counts are made: the ledger against a replay of what its informers were shown, and the bindings against the
registrations in the simulated apiserver, by `counting`. A card or a namespace has an excuse while people, not the
scheduler, made it too full: its registration or quota shrank, or somebody else bound a pod there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from tessera.core.audit import BROKEN, Finding, audit, audit_nodes
from tessera.core.devices import NodeFacts
from tessera.core.holdings import PodFacts
from tessera.core.ledger import replay
from tessera.core.quota import QuotaFacts
from tessera.core.requests import PodRequest
from tessera.core.selection import Refused, Selector
from tessera.scheduler.filtering import Prepared
from tessera.scheduler.wiring import Engine
from tessera.vendors.reading_nodes import node_facts, quota_facts
from tessera.vendors.reading_pods import pod_facts
from tessera.wire.keys import AGENT, ASSIGNED_NODE, BIND_PHASE, NODE_LOCK, PHASE_ALLOCATING, visible_devices
from tessera.wire.objects import Node, Pod, ResourceQuota
from tests.model import counting
from tests.model.machines import HANDSHAKE, XPU_HANDSHAKE, XPU_REGISTER
from tests.model.shapes import CORES, GPU, MEMORY, MIB_PER_MLU_UNIT, MLU_CORES, MLU_MEMORY, XPU, XPU_MEMORY
from tests.model.world import Call, World
from tests.support.builders import REGISTER

ANSWER_SECONDS = 60
MLU_LOCK = "cambricon.com/dsmlu.lock"

PLUGINS = {"NVIDIA": (REGISTER, HANDSHAKE, GPU), "XPU": (XPU_REGISTER, XPU_HANDSHAKE, XPU)}
"""vendor: registration, handshake, resource"""
LIMITS = {
    "NVIDIA": ((MEMORY, 1), (CORES, 1)),
    "MLU": ((MLU_MEMORY, MIB_PER_MLU_UNIT), (MLU_CORES, 1)),
    "XPU": ((XPU_MEMORY, 1), ("", 1)),
}
"""vendor: the resources whose quotas limit memory and cores, and MiB a unit"""


@dataclass
class Shown:
    """What the informers of one process have been shown, read once."""

    pods: dict[str, PodFacts] = field(default_factory=dict)
    raw_pods: dict[str, Pod] = field(default_factory=dict)
    """by uid"""
    nodes: dict[str, NodeFacts] = field(default_factory=dict)
    raw_nodes: dict[str, Node] = field(default_factory=dict)
    quotas: dict[str, QuotaFacts] = field(default_factory=dict)


class Checker:
    """Knows the truth and one running engine at a time."""

    def __init__(self, world: World, *, time: Callable[[], float], now: Callable[[], float]) -> None:
        self._world = world
        self._time = time
        self._now = now
        self._engine: Engine | None = None
        self.shown = Shown()
        self._position = 0
        self.excused: dict[tuple[str, str], str] = {}
        """(node, card): why"""
        self.excused_quotas: dict[str, str] = {}
        self.handing: dict[str, Handing] = {}
        """by uid"""
        self.unsettled: dict[str, float] = {}
        """nodes that came back or whose plugin was replaced, and when: turns and locks of before mean nothing there"""
        self._agents: dict[str, tuple[str | None, bool]] = {}
        """as last shown to the scheduler"""
        self.bound = 0
        self.orphans = 0

    def attach(self, engine: Engine | None, lag: Callable[[], int] = lambda: 0) -> None:
        """A new process, or none. `lag` is what its informers for pods and quotas have not shown yet."""
        self._engine = engine
        self._lag = lag
        self.shown = Shown()
        self._position = 0

    # -- what an informer shows

    def saw_pod(self, key: str, pod: Pod | None) -> None:
        assert self._engine is not None
        facts = pod_facts(pod, self._engine.vendors) if pod is not None else None
        old = self.shown.pods.pop(key, None)
        if old is not None:
            self.shown.raw_pods.pop(old.uid, None)
        if pod is not None and facts is not None:
            self.shown.pods[key] = facts
            self.shown.raw_pods[facts.uid] = pod

    def saw_node(self, key: str, node: Node | None) -> None:
        self.shown.nodes.pop(key, None)
        self.shown.raw_nodes.pop(key, None)
        agent = node.annotations.get(AGENT) if node is not None else None
        if self._agents.get(key) != (agent, node is None):
            self._agents[key] = (agent, node is None)
            self.unsettled[key] = self._time()
        if node is not None:
            self.shown.raw_nodes[key] = node
            self._read(node)

    def saw_quota(self, key: str, quota: ResourceQuota | None) -> None:
        assert self._engine is not None
        self.shown.quotas.pop(key, None)
        if quota is not None:
            self.shown.quotas[key] = quota_facts(quota, self._engine.vendors)

    def ticked(self) -> None:
        for node in self.shown.raw_nodes.values():
            if any("Requesting" in node.annotations.get(key, "") for key in (HANDSHAKE, XPU_HANDSHAKE)):
                self._read(node)

    def _read(self, node: Node) -> None:
        assert self._engine is not None
        alive = {key: vendor for key, vendor in self._engine.vendors.items() if self._is_alive(node, key)}
        facts = node_facts(node, alive)
        self.shown.nodes.pop(node.name, None)
        if facts.devices or facts.problem:
            self.shown.nodes[node.name] = facts

    def _is_alive(self, node: Node, vendor: str) -> bool:
        register, handshake, resource = PLUGINS.get(vendor, ("", "", ""))
        if register not in node.annotations:
            return True
        said = node.annotations.get(handshake)
        provided = node.allocatable.get(resource)
        if said is None:
            return provided is None or int(provided) != 0
        if not said.startswith("Requesting_"):
            return True
        asked = datetime.fromisoformat(said.removeprefix("Requesting_")).replace(tzinfo=UTC).timestamp()
        return self._now() < asked + ANSWER_SECONDS or int(provided or 0) > 0

    # -- what the scheduler decides and writes

    def chose(self, pod: Pod, node: str) -> None:
        """The answer of a filter."""
        assert self._engine is not None
        if not counting.wants_devices(pod) or pod.metadata.uid in self._engine.filter.uncertain:
            return  # Without devices, or perhaps bound already: then it stays where it is, whatever has become of that.
        held = [f.problem for f in self.shown.pods.values() if f.node == node and f.problem]
        assert not held, f"a pod was sent to {node}, which is held: {held}"
        assert node in self.shown.nodes, f"{node} has no cards"
        entry = self._engine.ledger.pod(pod.metadata.uid)
        assert entry is not None, "nothing was reserved"
        assert entry.facts.node == node, f"reserved on {entry.facts.node}, not on {node}"

    # -- excuses

    def _review_excuses(self) -> None:
        """An excuse ends once the scheduler knows all that people did and has room again even so."""
        engine, world = self._engine, self._world
        if engine is None or not (self.excused or self.excused_quotas) or self._lag() or engine.missing():
            return
        if any(call.node and call.generation != world.generation for call in world.in_flight):
            return
        for name, uuid in list(self.excused):
            node = world.nodes.objects.get(name)
            if node is None or self.shown.raw_nodes.get(name) is not node:
                continue
            if uuid not in counting.capacities(node) or self._excesses(name):
                continue
            view = engine.ledger.node(name)
            known = view is not None and any(card.device.uuid == uuid for card in view.cards)
            if known and not audit_nodes(engine.ledger, [name]):
                del self.excused[name, uuid]
        for namespace in list(self.excused_quotas):
            rooms = [engine.ledger.quotas.room(namespace, engine.vendors[vendor]) for vendor in LIMITS]
            if not any(amount is not None and amount < 0 for room in rooms for amount in room):
                del self.excused_quotas[namespace]

    # -- after every step

    def step(self) -> None:
        """Everything about the nodes that the ledger changed since the last step."""
        engine = self._engine
        if engine is None:
            return
        arrays = engine.ledger.arrays
        rows = arrays.changed_since(self._position)
        self._position = arrays.now
        self._review_excuses()
        for row in rows or ():
            if arrays.names[row]:
                self._check_node(engine, arrays.names[row])

    def _is_excused(self, finding: Finding) -> bool:
        """Too much granted is no fault of a ledger that is still shown pods which have gone since."""
        if finding.kind == BROKEN:
            return False
        if (finding.node, finding.card) in self.excused:
            return True
        live = {pod.metadata.uid for pod in self._world.pods.objects.values() if counting.is_live(pod)}
        return any(facts.node == finding.node and facts.uid not in live for facts in self.shown.pods.values())

    def _check_node(self, engine: Engine, name: str) -> None:
        for finding in audit_nodes(engine.ledger, [name]):
            assert self._is_excused(finding), finding
        view = engine.ledger.node(name)
        shown = {facts.uid: facts for facts in self.shown.pods.values() if facts.node == name}
        problem = next((facts.problem for facts in shown.values() if facts.problem), "")
        assert view is None or not problem or view.facts.problem, f"{name} is not held: {problem}"
        entries = engine.ledger.pods_on(name)
        observed = {entry.facts.uid: entry.facts for entry in entries if entry.observed}
        assert observed == shown, f"on {name} the API shows {shown}, the ledger {observed}"

    def full(self) -> None:
        """The whole ledger is what a replay of the API objects gives, with what is only reserved on top."""
        engine = self._engine
        if engine is None:
            return
        shown = self.shown
        again = replay(
            engine.vendors, nodes=shown.nodes.values(), pods=shown.pods.values(), quotas=shown.quotas.values()
        )
        for entry in engine.ledger.pods():
            if not entry.observed:
                again.observe_pod(entry.facts)
        mine, theirs = engine.ledger.state(), again.state()
        for part in ("nodes", "quotas"):
            assert mine[part] == theirs[part], f"{part}: {_difference(mine[part], theirs[part])}"
        assert {uid: facts for uid, (_, facts) in mine["pods"].items()} == {
            uid: facts for uid, (_, facts) in theirs["pods"].items()
        }
        for finding in audit(engine.ledger):
            assert self._is_excused(finding), finding
        for name in self._agents:
            for uid in engine.handover.holders(name):
                self._check_turn(engine, uid)

    def _check_turn(self, engine: Engine, uid: str) -> None:
        """Whoever has a turn is being bound, may have been bound, or is in handover as far as the scheduler knows."""
        entry, pod = engine.ledger.pod(uid), self.shown.raw_pods.get(uid)
        if uid in engine.binder._under_way or uid in engine.filter.uncertain:
            return
        assert entry is not None, f"{uid} has a turn and holds nothing"
        if pod is not None:
            assert pod.annotations[BIND_PHASE] == PHASE_ALLOCATING, f"{uid} has a turn that is over"
            assert pod.status.phase != "Running", f"{uid} has a turn and runs"

    # -- at rest

    def rest(self, candidates: Callable[[Pod], list[str]]) -> None:
        """Nothing is left behind, and nobody waits beside room."""
        engine, world = self._engine, self._world
        assert engine is not None
        self.full()
        left = [entry.facts.uid for entry in engine.ledger.pods() if not entry.observed]
        assert left == [], f"reservations left behind: {left}"
        left = [*engine.filter.prepared, *engine.filter.uncertain]
        assert left == [], f"prepared for nothing: {left}"
        left = [uid for name in self._agents for uid in engine.handover.holders(name)]
        assert left == [], f"turns left behind: {left}"
        assert (engine.binder.running, engine.handover.in_hand, engine.handover.waiting) == (0, 0, 0)
        assert engine.turns._locked == {}, f"locks left behind: {engine.turns._locked}"
        pending = {pod.metadata.uid: pod for pod in world.pods.objects.values() if not pod.spec.node_name}
        left = [uid for uid in engine.waiting._pods if uid not in pending]
        assert left == [], f"waiters left behind: {left}"
        for name, node in world.nodes.objects.items():
            excesses = self._excesses(name)
            assert all((name, uuid) in self.excused for uuid in excesses), excesses
            self._compare(engine, node)
        for uid, pod in pending.items():
            prepared, names = engine.filter.prepare(pod), candidates(pod)
            if isinstance(prepared, Prepared) and names:
                request: PodRequest = prepared.request
                assert request.asks_for_devices, f"pod {uid} needs no device and is not bound"
                answer = Selector(engine.ledger).select(request, names)
                assert isinstance(answer, Refused), f"pod {uid} waits beside room on {answer.placement.node}"

    def _compare(self, engine: Engine, node: Node) -> None:
        """The ledger's numbers are those that are counted from the API objects."""
        view = engine.ledger.node(node.name)
        here = [p for p in self._world.pods.objects.values() if p.spec.node_name == node.name and counting.is_live(p)]
        if view is None or view.facts.problem or any(card.held for card in view.cards):
            return
        found = counting.loads(here, counting.capacities(node))
        for card in view.cards:
            load = found.get(card.device.uuid, counting.Load())
            assert (card.used, card.used_memory, card.used_cores) == (load.slots, load.memory, load.cores)


def _difference(mine: object, theirs: object) -> str:
    if not (isinstance(mine, dict) and isinstance(theirs, dict)):
        return f"{mine} != {theirs}"
    different = [key for key in sorted(mine.keys() | theirs.keys()) if mine.get(key) != theirs.get(key)]
    return "; ".join(f"{key}: {mine.get(key)} != {theirs.get(key)}" for key in different)
