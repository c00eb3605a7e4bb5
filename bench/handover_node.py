"""A node with the agent's own handover in mode hami-core, without a cluster: one new pod after the other.

Before each call of kubelet a new pod is bound, and the one before it ends and is deleted, so that each Allocate has
exactly one pod to find beside those that run. The API accepts every write at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from tessera.host.cards import CardFacts
from tessera.host.simulated.hardware import no_cards
from tessera.kube.errors import ApiError
from tessera.node.arbiter import Arbiter
from tessera.node.dra.prepared_claims import PreparedClaims
from tessera.node.fleet import CardState, Fleet
from tessera.node.handover.allocation_state import Held
from tessera.node.handover.assembly import NodeHandover
from tessera.node.handover.assignments import ObjectKey
from tessera.node.handover.pod_cache import Annotations, KubeCluster
from tessera.node.kubelet.service import Allocator
from tessera.node.modes.base import ContainerResponse, HostMount
from tessera.node.modes.factory import build_mode
from tessera.node.settings import AgentSettings, Paths
from tessera.node.watched_value import WatchedValue
from tessera.services.exposition import Registry
from tessera.wire import keys
from tessera.wire.objects import Node as NodeObject
from tessera.wire.objects import Pod

NAME = "bench"
CARDS = 8
MEMORY = 141 << 30
"""bytes"""
RUNNING = 16
"""pods that were handed over before"""
WAYS = ("env", "answer")


def settings(folder: Path, way: str) -> AgentSettings:
    paths = Paths(hook=folder / "hook", lock=folder / "lock", state=folder / "state", pod_resources=None)
    return AgentSettings(node_name=NAME, paths=paths, pass_device_specs=way == "answer")


class NullAllocator:
    """Returns a response as large as that of hami-core, without any work."""

    ANSWER = ContainerResponse(
        env={
            "NVIDIA_VISIBLE_DEVICES": "GPU-00000000-207a-2038-9b45-23cac89cb67a",
            "CUDA_DEVICE_MEMORY_LIMIT_0": "3000m",
            "CUDA_DEVICE_SM_LIMIT": "30",
            "CUDA_DEVICE_MEMORY_SHARED_CACHE": "/usr/local/vgpu/4a0a9f6e-7a3f-4a0e-9a55-7e7c0f3c2f11.cache",
        },
        mounts=tuple(HostMount(f"/container/{number}", f"/host/{number}") for number in range(6)),
    )

    async def allocate(self, containers: Sequence[Sequence[str]]) -> list[ContainerResponse]:
        return [self.ANSWER for _ in containers]

    def prefer(self, available: Sequence[str], must_include: Sequence[str], count: int) -> Sequence[str]:
        return ()


class Api(KubeCluster):
    """Accepts every write."""

    def __init__(self) -> None:
        self.pods: dict[str, dict[str, Any]] = {}

    async def get_pod(self, namespace: str, name: str) -> Pod:
        return self.pod(name)

    async def list_pods(self, node: str) -> list[Pod]:
        return [self.pod(name) for name in self.pods]

    async def annotate_pod(self, pod: ObjectKey, annotations: Annotations) -> Pod:
        if pod.name not in self.pods:
            raise ApiError(status=404, reason="NotFound", message=pod.name)
        self.pods[pod.name]["metadata"]["annotations"].update(annotations)
        return self.pod(pod.name)

    async def get_node(self, name: str) -> NodeObject:
        return NodeObject()

    async def annotate_node(self, name: str, annotations: Annotations, *, resource_version: str) -> None: ...

    def pod(self, name: str) -> Pod:
        return msgspec.convert(self.pods[name], Pod)


class EmptyPodResources:
    """kubelet's PodResources API, which lists no pod: each is deleted before it could be listed."""

    async def list(self) -> Held:
        return {}


class Node:
    """An `Allocator`. Each call of `prefer` replaces the waiting pod by the next one."""

    FLEET = Fleet(
        tuple(
            CardState(
                CardFacts(f"GPU-{n:08x}-207a-2038-9b45-23cac89cb67a", n, "NVIDIA H200", minor=n, memory_bytes=MEMORY)
            )
            for n in range(CARDS)
        )
    )

    def __init__(self, folder: Path, way: str) -> None:
        self.settings = settings(folder, way)
        self.fleet = self.FLEET
        self._carried = way == "env"
        self._api = Api()
        self._numbers = count()
        self._last = ""
        self._mode = build_mode(self.settings, no_cards(), write=_write_nothing)
        self._handover = NodeHandover(
            self.settings,
            self._mode,
            cluster=self._api,
            resources=EmptyPodResources(),
            report=lambda *_: None,
            registry=Registry(),
        )
        self._prepared = PreparedClaims(self.settings.paths.state, self.settings.paths.cdi)
        self._arbiter = Arbiter(
            self.settings, WatchedValue(self.fleet), holdings=self._handover.holdings, prepared=self._prepared
        )
        self._allocator: Allocator = NullAllocator() if way == "nothing" else self._handover.allocator
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        home = self.settings.paths.hook / "vgpu"
        home.mkdir(parents=True)
        for name in ("libvgpu.so", "ld.so.preload"):
            (home / name).touch()
        await self._mode.start(self.fleet)
        for number in range(RUNNING):
            self._bind(f"running-{number}", phase="Running", left=False)
        self._handover.pods.node_view.synced()
        self._handover.pods.synced()
        self._prepared.open()
        self._handover.use(self.settings, self._mode, self._arbiter)
        self._task = asyncio.create_task(self._handover.run())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        await self._mode.stop()
        await self._prepared.close()

    async def allocate(self, containers: Sequence[Sequence[str]]) -> list[ContainerResponse]:
        return await self._allocator.allocate(containers)

    def prefer(self, available: Sequence[str], must_include: Sequence[str], count: int) -> Sequence[str]:
        if self._last:
            self._bind(self._last, phase="Succeeded", left=False)
            self._handover.pods.drop(f"default/{self._last}")
            del self._api.pods[self._last]
        self._last = f"p-{next(self._numbers)}"
        self._bind(self._last, phase="Pending", left=True)
        return self._allocator.prefer(available, must_include, count)

    def _bind(self, name: str, *, phase: str, left: bool) -> None:
        card = self.fleet.cards[int(name.rpartition("-")[2]) % CARDS].facts.uuid
        text = f"{card},NVIDIA,3000,30:;"
        path = f"metadata.annotations['{keys.visible_devices(0)}']"
        env = [{"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": {"fieldRef": {"fieldPath": path}}}]
        self._api.pods[name] = {
            "metadata": {
                "name": name,
                "namespace": "default",
                "uid": f"00000000-0000-0000-0000-{name}",
                "annotations": {
                    keys.ASSIGNED_NODE: NAME,
                    keys.ASSIGNED_TIME: "1793880000",
                    keys.BIND_TIME: "1793880000",
                    keys.BIND_PHASE: keys.PHASE_ALLOCATING if left else keys.PHASE_SUCCESS,
                    "hami.io/vgpu-devices-to-allocate": text if left else ";",
                    "hami.io/vgpu-devices-allocated": text,
                },
            },
            "spec": {"nodeName": NAME, "containers": [{"name": "main", "env": env if self._carried else []}]},
            "status": {"phase": phase},
        }
        self._handover.pods.put(f"default/{name}", self._api.pod(name))


async def _write_nothing(pod: ObjectKey, allocations: object) -> None:
    raise AssertionError("no card is cut here")
