"""A node for tests of handover: an API in memory that feeds the agent's watches, a kubelet's PodResources, a mode that
says what it was asked for, and the real parts between them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from tessera.kube.event_broadcaster import ObjectRef
from tessera.node.handover.allocation_state import Held
from tessera.node.handover.assembly import NodeHandover
from tessera.node.handover.assignments import ALLOCATED, TO_ALLOCATE, Assignment, BoundPod, ObjectKey, read_pod
from tessera.node.handover.checkpoint import Checkpoint, Record
from tessera.node.handover.pod_cache import Annotations, KubeCluster
from tessera.node.modes.base import AllocationRefused, ContainerResponse, SharingMode
from tessera.node.settings import AgentSettings
from tessera.services.exposition import Registry
from tessera.wire import keys
from tessera.wire.objects import Node, Pod, decode_object
from tests.support.builders import node as node_builder
from tests.support.fake_cluster import FakeCluster, refused

NODE = "n1"
BIND_TIME = 1_700_000_000
"""unix seconds"""
REFERENCE = "metadata.annotations['tessera.io/c{at}.visible-devices']"


def entry(text: str) -> str:
    """`a/3000/30 b/1000/0` -> the entry of one container in the annotation."""
    parts = (each.split("/") for each in text.split())
    return "".join(f"GPU-{card},NVIDIA,{memory},{cores}:" for card, memory, cores in parts) + ";"


def bound(
    name: str,
    *containers: str,
    inits: int = 0,
    sidecars: int = 0,
    downward_api: Sequence[int] = (),
    env: Mapping[int, list[dict[str, Any]]] | None = None,
    at: int = 0,
    uid: str = "",
    phase: str = keys.PHASE_ALLOCATING,
    status: str = "Pending",
    annotations: Mapping[str, str | None] | None = None,
    deleted: str | None = None,
) -> Pod:
    """A pod that was bound `at` seconds; one text for each container, the first `inits` are init containers."""
    entries = "".join(entry(each) for each in containers)
    written: dict[str, str | None] = {
        keys.ASSIGNED_NODE: NODE,
        keys.ASSIGNED_TIME: str(BIND_TIME),
        keys.BIND_TIME: str(BIND_TIME + at),
        keys.BIND_PHASE: phase,
        TO_ALLOCATE: entries,
        ALLOCATED: entries,
        **(annotations or {}),
    }
    made = [
        {
            "name": f"c{position}",
            "env": [
                *((env or {}).get(position, [])),
                *([_reference(position)] if position in downward_api else []),
            ],
            **({"restartPolicy": "Always"} if position < sidecars else {}),
        }
        for position in range(len(containers))
    ]
    manifest = {
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": uid or f"uid-{name}",
            "annotations": {key: value for key, value in written.items() if value is not None},
            "deletionTimestamp": deleted,
        },
        "spec": {"nodeName": NODE, "initContainers": made[:inits], "containers": made[inits:]},
        "status": {"phase": status},
    }
    return decode_object(msgspec.json.encode(manifest), Pod)


def _reference(position: int) -> dict[str, Any]:
    path = REFERENCE.format(at=position)
    return {"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": {"fieldRef": {"fieldPath": path}}}


def view(pod: Pod) -> BoundPod:
    found = read_pod(pod, NODE)
    assert found is not None
    return found


def claims(pod: Pod) -> tuple[Assignment, ...]:
    return view(pod).left


class Api(KubeCluster):
    """Cluster over the scripted fake; what changes there is shown to the agent, unless the watch is `behind`."""

    def __init__(self) -> None:
        self.fake = FakeCluster()
        self.fake.add_node(node_builder(NODE))
        self.behind = False
        self.show: Callable[[str, Pod | None], None] = lambda _key, _pod: None
        self.show_node: Callable[[Node], None] = lambda _node: None

    async def get_pod(self, namespace: str, name: str) -> Pod:
        return await self.fake.get_pod(namespace, name)

    async def list_pods(self, node: str) -> list[Pod]:
        await self.fake._call("list_pods", lambda: None)
        return list(self.fake.pods.values())

    async def annotate_pod(self, pod: ObjectKey, annotations: Annotations) -> Pod:
        there = self.fake.pods.get(str(pod))
        if there is not None and there.metadata.uid != pod.uid:
            raise refused(422, "Invalid")
        await self.fake.annotate_pod(pod.namespace, pod.name, annotations)
        self.catch_up()
        return self.fake.pods[str(pod)]

    async def get_node(self, name: str) -> Node:
        return await self.fake.get_node(name)

    async def annotate_node(self, name: str, annotations: Annotations, *, resource_version: str) -> None:
        await self.fake.annotate_node(name, annotations, resource_version=resource_version)
        self.catch_up()

    # -- what a test says

    def put(self, *pods: Pod) -> None:
        for pod in pods:
            self.fake._store_pod(f"{pod.metadata.namespace}/{pod.metadata.name}", pod)
        self.catch_up()

    def status(self, name: str, phase: str) -> None:
        pod = self.fake.pods[f"default/{name}"]
        self.put(msgspec.structs.replace(pod, status=msgspec.structs.replace(pod.status, phase=phase)))

    def delete(self, name: str) -> None:
        self.fake.delete_pod(f"default/{name}")
        self.catch_up()

    def lock(self, text: str | None) -> None:
        self.fake.annotate(NODE, **{keys.NODE_LOCK: text})
        self.catch_up()

    def lock_for(self, name: str) -> None:
        self.lock(f"2026-01-01T00:00:00Z,default,{name}")

    def catch_up(self) -> None:
        while self.fake.changes and not self.behind:
            kind, key = self.fake.changes.popleft()
            if kind == "pod":
                self.show(key, self.fake.pods.get(key))
            else:
                self.show_node(self.fake.nodes[key])

    # -- what is stored

    @property
    def lock_text(self) -> str | None:
        return self.fake.nodes[NODE].annotations.get(keys.NODE_LOCK)

    def phase(self, name: str) -> str:
        return self.fake.pods[f"default/{name}"].annotations.get(keys.BIND_PHASE, "")

    def left(self, name: str) -> str:
        return self.fake.pods[f"default/{name}"].annotations.get(TO_ALLOCATE, "")

    def pod_writes(self) -> list[Mapping[str, str | None]]:
        return [write.annotations for write in self.fake.writes if write.verb == "annotate_pod"]


class Resources:
    """kubelet's PodResources."""

    def __init__(self) -> None:
        self.held: dict[tuple[str, str, str], tuple[str, ...]] = {}
        self.error: Exception | None = None
        self.calls = 0
        self.delay = 0.0
        """seconds that an answer takes"""

    def holds(self, pod: str, container: str, *ids: str) -> None:
        self.held["default", pod, container] = ids

    async def list(self) -> Held:
        self.calls += 1
        await asyncio.sleep(self.delay)
        if self.error is not None:
            raise self.error
        return dict(self.held)


class Mode(SharingMode):
    """Says in the answer whose slice it is. `refusals` and `faults` by pod name."""

    def __init__(self) -> None:
        super().__init__()
        self.refusals: dict[str, str] = {}
        self.faults: dict[str, Exception] = {}
        self.doubts: list[str] = []
        """pods whose slice was made ready without being certain"""
        self.gate: asyncio.Event | None = None

    async def hand_over(self, claim: Assignment, ids: Sequence[str], *, certain: bool = True) -> ContainerResponse:
        if self.gate is not None:
            await self.gate.wait()
        if claim.pod.name in self.refusals:
            raise AllocationRefused(self.refusals[claim.pod.name])
        if claim.pod.name in self.faults:
            raise self.faults[claim.pod.name]
        if not certain:
            self.doubts.append(claim.pod.name)
        return ContainerResponse(env={"pod": claim.pod.name, "container": claim.container, "what": repr(claim.what)})

    async def hand_over_downward_api(self, ids: Sequence[str]) -> ContainerResponse:
        if "*" in self.refusals:
            raise AllocationRefused(self.refusals["*"])
        return ContainerResponse(env={"welcome": "yes"})


class MemoryCheckpoint(Checkpoint):
    """Keeps everything but writes no file: threads have no fake time."""

    def __init__(self, earlier: Sequence[Record] = ()) -> None:
        super().__init__(Path("unused"))
        self._earlier = earlier

    async def load(self) -> Sequence[Record]:
        self._keep(self._earlier)
        return self._earlier

    async def _write(self, how: Callable[[Path, bytes], None], data: bytes) -> None: ...


class HandoverNode:
    """One node with its agent."""

    def __init__(
        self,
        *pods: Pod,
        downward_api: bool = True,
        resources: bool = True,
        earlier: Sequence[Record] = (),
        inherited: bool = False,
        lock: str = "",
        api: Api | None = None,
        kubelet: Resources | None = None,
    ) -> None:
        """`earlier`: the checkpoint. `inherited`: whether the pods were bound before this agent started. `lock`: the
        pod that holds the node lock."""
        self.api = api or Api()
        self.resources = kubelet or Resources()
        self.mode = Mode()
        self.events: list[tuple[str, str, str]] = []
        """pod, reason and message"""
        self.registry = Registry()
        self.checkpoint = MemoryCheckpoint(earlier)
        settings = AgentSettings(node_name=NODE, pass_device_specs=not downward_api)
        self.agent = NodeHandover(
            settings,
            self.mode,
            cluster=self.api,
            resources=self.resources if resources else None,
            report=self._report,
            registry=self.registry,
            checkpoint=self.checkpoint,
        )
        self.api.show, self.api.show_node = self._show, lambda node: self.agent.pods.node_view.put(NODE, node)
        for key, pod in self.api.fake.pods.items():
            self._show(key, pod)
        if inherited or earlier:
            self.api.put(*pods)
        self.agent.pods.node_view.put(NODE, self.api.fake.nodes[NODE])
        self.agent.pods.node_view.synced()
        self.agent.pods.synced()
        self.api.put(*pods)
        if lock:
            self.api.lock_for(lock)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[HandoverNode]:
        task = asyncio.create_task(self.agent.run())
        try:
            yield self
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def ask(self, *ids: str) -> dict[str, str]:
        """Allocate for one container."""
        (answer,) = await self.agent.allocator.allocate([list(ids)])
        return dict(answer.env)

    async def gets(self, pod: str, container: str, *ids: str) -> dict[str, str]:
        """Allocate for one container, whose devices kubelet then enters."""
        answer = await self.ask(*ids)
        self.resources.holds(pod, container, *ids)
        return answer

    def prefer(self, *available: str, count: int = 1, must: Sequence[str] = ()) -> list[str]:
        return list(self.agent.allocator.prefer(list(available), list(must), count))

    def count(self, name: str, **labels: str) -> float:
        found = text_string_to_metric_families(self.registry.render().decode())
        wanted = f"tessera_agent_{name}_total", labels
        return sum(sample.value for family in found for sample in family.samples if sample[:2] == wanted)

    async def at_rest(self, seconds: float = 20.0) -> None:
        """Time for everything that happens behind the answers; fake time only."""
        await asyncio.sleep(seconds)

    def _show(self, key: str, pod: Pod | None) -> None:
        if pod is None:
            self.agent.pods.drop(key)
        else:
            self.agent.pods.put(key, pod)

    def _report(self, ref: ObjectRef, type: str, reason: str, message: str) -> None:
        assert type == "Warning"
        self.events.append((ref.name, reason, message))
