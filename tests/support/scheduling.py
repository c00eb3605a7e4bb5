"""The decision half of the scheduler on a `FakeCluster`, put together as the service does it, one step at a time.

Informers see a change only when a test calls `watch`, so that lag is something a test says.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import UTC
from typing import Any

from tessera.core.audit import audit
from tessera.core.grants import Placement
from tessera.core.ledger import GrantState, Ledger, replay
from tessera.core.selection import Selector
from tessera.scheduler.allocation_queue import Handover
from tessera.scheduler.binder import Binder, BindEvent
from tessera.scheduler.filter import Filter, FilterEvent
from tessera.scheduler.node_informer import NodeInformer, Patch
from tessera.scheduler.node_lock import NodeLocks
from tessera.scheduler.pod_informer import PodInformer, QuotaInformer
from tessera.scheduler.settings import NodeLockMode
from tessera.scheduler.turns import Turns
from tessera.scheduler.unschedulable_pods import UnschedulablePods
from tessera.vendors.downward_api import container_env
from tessera.vendors.node_reader import node_facts
from tessera.vendors.nvidia.downward_api import NvidiaDownwardApi
from tessera.vendors.pod_reader import PolicyDefaults, pod_facts
from tessera.wire.keys import AGENT
from tests.support.builders import GPU, NOW, NodeBuilder, PodBuilder, vendors
from tests.support.fake_cluster import FakeCluster

RESERVATION = 300.0
TURN = 20.0
LOCK = 300.0
"""seconds"""


def by_environment(node: NodeBuilder) -> NodeBuilder:
    """A node whose agent is ours and takes slices from the pods themselves: no turns, no lock."""
    return node.annotate((AGENT, "env"))


def by_answer(node: NodeBuilder) -> NodeBuilder:
    """A node whose agent is ours but must answer Allocate rightly: turns, no lock."""
    return node.annotate((AGENT, "cdi"))


def carrying(pod: PodBuilder) -> PodBuilder:
    """The pod with the variables that the webhook gives it."""
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


class World:
    """One scheduler and its apiserver. `at` is its clock where no event loop runs."""

    def __init__(self, *nodes: NodeBuilder, mode: NodeLockMode = NodeLockMode.AUTO) -> None:
        self.at = 0.0
        self.mode = mode
        self.api = FakeCluster()
        self.room = 0
        """how often something was told to have become free"""
        self.start()
        for node in nodes:
            self.api.add_node(node)
        self.watch()

    def start(self) -> None:
        """A new process: nothing is remembered but what the API shows."""
        self.patches: list[tuple[str, Patch]] = []
        self.decisions: list[FilterEvent] = []
        self.binds: list[BindEvent] = []
        self.vendors = vendors()
        self.ledger = Ledger(self.vendors)
        self.selector = Selector(self.ledger)
        self.waiting = UnschedulablePods()
        self.handover = Handover(forget_after=LOCK, time=self.time)
        self.locks = NodeLocks(self.api, expire_after=LOCK, now=self.now)
        self.turns = Turns(self.handover, self.locks, self.vendors, mode=self.mode, timeout=TURN)
        self.filter = Filter(
            self.ledger,
            self.selector,
            self.vendors,
            waiting=self.waiting,
            defaults=PolicyDefaults(),
            reservation_seconds=RESERVATION,
            time=self.time,
            on_room=self._more_room,
            on_decision=self.decisions.append,
        )
        self.binder = Binder(
            self.ledger,
            self.vendors,
            decisions=self.filter,
            turns=self.turns,
            cluster=self.api,
            reservation_seconds=RESERVATION,
            now=self.now,
            time=self.time,
            on_bind=self.binds.append,
        )
        self.pods = PodInformer(
            self.ledger,
            self.vendors,
            turns=self.turns,
            waiting=self.waiting,
            on_room=self._more_room,
            on_settled=self.filter.settled,
        )
        self.quotas = QuotaInformer(self.ledger, self.vendors, on_room=self._more_room)
        self.nodes = NodeInformer(
            self.ledger,
            self.vendors,
            selector={},
            now=self.now,
            zone=UTC,
            patch=lambda node, stamps: self.patches.append((node, stamps)),
            on_room=self._more_room,
            on_node=self.turns.seen,
        )

    def restart(self) -> None:
        """The process is replaced, and reads everything."""
        self.start()
        self.api.changes.clear()
        for name, node in self.api.nodes.items():
            self.nodes.put(name, node)
        for key, pod in self.api.pods.items():
            self.pods.put(key, pod)

    def time(self) -> float:
        try:
            return asyncio.get_running_loop().time()
        except RuntimeError:
            return self.at

    def now(self) -> float:
        return NOW + self.time()

    def _more_room(self) -> None:
        self.room += 1

    # -- doing

    def watch(self) -> None:
        """The informers see all that has changed."""
        while self.api.changes:
            kind, key = self.api.changes.popleft()
            if kind == "node":
                _show(self.nodes, key, self.api.nodes.get(key))
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
        return self.asked(filter_body(pod, sorted(self.api.nodes) if names is None else list(names)))

    def chosen(self, pod: PodBuilder, names: Iterable[str] | None = None) -> str:
        """The one node of an answer that has nothing else."""
        answer = self.filtered(pod, names)
        assert answer["Error"] == ""
        assert answer["FailedNodes"] is None, answer
        [node] = answer["NodeNames"]
        assert isinstance(node, str)
        return node

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
        facts = [found for pod in self.api.pods.values() if (found := pod_facts(pod, self.vendors)) is not None]
        nodes = [read for node in self.api.nodes.values() if (read := node_facts(node, self.vendors)).devices]
        again = replay(self.vendors, nodes=nodes, pods=facts)
        mine, other = self.ledger.state(), again.state()
        assert (mine["nodes"], mine["pods"]) == (other["nodes"], other["pods"])
        assert self.filter.prepared == {}
        assert self.filter.uncertain == set()
        return True


def _show(sink: Any, key: str, found: Any) -> None:
    show: Callable[..., None] = sink.drop if found is None else sink.put
    show(*((key,) if found is None else (key, found)))
