"""The real agent and the real scheduler on one control plane, and kubelet's admission of the node's pods.

Admission goes container after container, with a checkpoint: what a container was given is kept over a restart and never
asked for again; an Allocate that fails rejects its pod for good. Ids of init containers serve the later containers of
their pod, as with the real one. Tests say when what happens.
"""

from __future__ import annotations

import random
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grpc import aio

from tessera.kube.client import STRATEGIC_PATCH
from tessera.kube.resources import NODES, PODS
from tessera.wire import keys
from tessera.wire.kubelet import device_plugin_pb2 as messages
from tessera.wire.pod_devices import decode_mig_allocations, decode_pod_devices
from tessera_lab.sandbox.api.kinds import Json
from tessera_lab.sandbox.nodes import kubelet
from tessera_lab.sandbox.nodes.containers import container_environment
from tessera_lab.sandbox.objects import annotations_of, containers_of, is_sidecar, name_of, uid_of
from tests.support.agent import ALLOCATED, NODE, REGISTER, AgentNode, agent_node
from tests.support.product import Product, scheduler_on

RESOURCE = "nvidia.com/gpu"
AT = "2026-11-15T12:00:00Z"
_LIMIT = re.compile(r"CUDA_DEVICE_MEMORY_LIMIT_(\d+)")


@dataclass(frozen=True)
class Given:
    """What a container was given, as the checkpoint has it."""

    ids: tuple[str, ...]
    answer: messages.ContainerAllocateResponse


@dataclass
class Admission:
    """Admits the pods of one node."""

    node: AgentNode
    rng: random.Random = field(default_factory=lambda: random.Random(0))
    checkpoint: dict[tuple[str, str], Given] = field(default_factory=dict)
    """by uid and container"""
    asked: int = 0
    """Allocate calls that succeeded"""

    async def offer(self, *, pods: int = 110) -> None:
        """kubelet reports what the plugin lists."""
        amounts = {"cpu": "64", "memory": "512Gi", "pods": str(pods), RESOURCE: str(len(self.node.kubelet.health))}
        ready = {"type": "Ready", "status": "True", "lastHeartbeatTime": AT, "lastTransitionTime": AT}
        body = {"status": {"capacity": amounts, "allocatable": amounts, "conditions": [ready]}}
        path = NODES.path(name=NODE, subresource="status")
        await self.node.plane.client.patch(path, body, content_type=STRATEGIC_PATCH)

    async def bound(self, *names: str) -> None:
        """Wait until the scheduler has bound them."""
        for name in names:
            await self.node.plane.wait_for(
                lambda name=name: self.node.pod(name)["spec"].get("nodeName"),  # type: ignore[misc]
                30.0,
                what=f"{name} to be bound",
            )

    async def admit(self, name: str) -> bool:
        """Gives every container of the pod its devices and runs it; False if the plugin refused and the pod failed."""
        pod = self.node.pod(name)
        try:
            for position in range(len(containers_of(pod))):
                await self.ask(name, position)
        except aio.AioRpcError as error:
            await self._reject(pod, error.details() or str(error.code()))
            return False
        await self._run(pod)
        return True

    async def ask(self, name: str, position: int) -> None:
        """One container's devices, unless the checkpoint has them. Raises AioRpcError."""
        pod = self.node.pod(name)
        container = containers_of(pod)[position]
        where = (uid_of(pod), container["name"])
        count = int((container.get("resources", {}).get("limits") or {}).get(RESOURCE, 0))
        if not count or where in self.checkpoint:
            return
        ids = await self._chosen(self._reusable(pod, position)[:count], count)
        answer = await self.node.kubelet.allocate(ids)
        self.asked += 1
        self.checkpoint[where] = Given(tuple(ids), answer.container_responses[0])
        if position >= _inits(pod) or is_sidecar(container):
            # PodResources says nothing of init containers that end before the others begin.
            self.node.resources.held["default", name, container["name"]] = ids

    async def ask_at_random(self) -> None:
        """One Allocate without GetPreferredAllocation, which must fail. Raises AioRpcError."""
        await self.node.kubelet.allocate([next(iter(self.node.kubelet.health))])

    async def reject(self, name: str, problem: str) -> None:
        """Its Allocate failed: the pod has failed for good."""
        await self._reject(self.node.pod(name), problem)

    async def end(self, name: str) -> None:
        """The pod is deleted, and stopped at once."""
        pod = self.node.pod(name)
        self._release(pod)
        await self.node.plane.delete_pod("default", name, grace_s=0)

    # -- what containers see

    def environment(self, name: str, container: str) -> dict[str, str]:
        pod = self.node.pod(name)
        given = self.checkpoint[uid_of(pod), container]
        spec = next(each for each in containers_of(pod) if each["name"] == container)
        return container_environment(pod, spec, given.answer.envs)

    def wrong_slices(self, *names: str) -> list[str]:
        """Containers of these pods, or of all, that would not see exactly what their pod was granted."""
        return [
            f"{name_of(pod)}/{container['name']}: sees {seen}, granted {granted}"
            for pod in (map(self.node.pod, names) if names else self.node.plane.pods("default"))
            for position, container in enumerate(containers_of(pod))
            if (uid_of(pod), container["name"]) in self.checkpoint
            and (seen := self._seen(pod, container["name"])) != (granted := self._granted(pod, position))
        ]

    def _seen(self, pod: Json, container: str) -> list[tuple[str, str]]:
        env = self.environment(name_of(pod), container)
        limits = {int(found[1]): value for key, value in env.items() if (found := _LIMIT.fullmatch(key))}
        devices = env.get("NVIDIA_VISIBLE_DEVICES", "").split(",")
        return sorted((uuid, limits.pop(number, "")) for number, uuid in enumerate(devices)) + [
            ("a limit of no card", str(each)) for each in limits
        ]

    def _granted(self, pod: Json, position: int) -> list[tuple[str, str]]:
        annotations = pod["metadata"]["annotations"]
        entries = decode_pod_devices(annotations[ALLOCATED])[position]
        reserved = decode_mig_allocations(annotations.get("hami.io/vgpu-mig-allocations", ""))
        made = [each.mig_uuid or "not made" for each in reserved if each.container == position]
        return sorted([(uuid, "") for uuid in made] or [(each.uuid, f"{each.memory}m") for each in entries])

    # -- how kubelet chooses

    def _reusable(self, pod: Json, position: int) -> list[str]:
        """Ids of init containers that end before this one starts, without those that another container has by now."""
        reusable: list[str] = []
        for at, container in enumerate(containers_of(pod)[:position]):
            given = self.checkpoint.get((uid_of(pod), container["name"]))
            ids = given.ids if given is not None else ()
            if at < _inits(pod) and not is_sidecar(container):
                reusable += [each for each in ids if each not in reusable]
            else:
                reusable = [each for each in reusable if each not in ids]
        return reusable

    async def _chosen(self, reused: list[str], count: int) -> list[str]:
        if len(reused) == count:
            return reused
        taken = {each for given in self.checkpoint.values() for each in given.ids}
        health = self.node.kubelet.health
        free = [each for each in health if health[each] == "Healthy" and each not in taken]
        (preferred,) = await self.node.kubelet.prefer([*reused, *free], size=count, must_include=reused)
        return preferred or [*reused, *self.rng.sample(free, count - len(reused))]

    # -- what it reports

    async def _run(self, pod: Json) -> None:
        await self._report(pod, kubelet.running(pod, at=AT, address="127.0.0.1"))

    async def _reject(self, pod: Json, problem: str) -> None:
        self._release(pod)
        await self._report(pod, kubelet.rejected(pod, problem, at=AT))

    async def _report(self, pod: Json, status: Json) -> None:
        path = PODS.path("default", name_of(pod), "status")
        await self.node.plane.client.patch(path, status, content_type=STRATEGIC_PATCH)

    def _release(self, pod: Json) -> None:
        for where in [each for each in self.checkpoint if each[0] == uid_of(pod)]:
            del self.checkpoint[where]
        held = self.node.resources.held
        for key in [each for each in held if each[:2] == ("default", name_of(pod))]:
            del held[key]


def _inits(pod: Json) -> int:
    return len(pod["spec"].get("initContainers") or ())


SCHEDULER = "hami-scheduler"
PASSING_BY = {"hami.io/webhook": "ignore"}
"""labels of pods that skip the webhook, so that they depend on Allocate"""


@dataclass
class ScheduledNode:
    """The parts; each may end and come back."""

    node: AgentNode
    kubelet: Admission
    product: Product

    async def create(self, *manifests: Json) -> None:
        for manifest in manifests:
            await self.node.plane.create_pod(manifest)

    async def handed_over(self, *names: str) -> None:
        """Wait until their handover has ended well."""
        for name in names:
            await self.node.phase_is(name, keys.PHASE_SUCCESS)

    async def nothing_is_left(self) -> None:
        """Waits until all pods are gone, and everything that was made for them."""
        for pod in self.node.plane.pods("default"):
            await self.kubelet.end(name_of(pod))
        handover = self.node.process.around.handover
        await self.node.until(lambda: not handover.pods.all(), what="the agent to see that all pods are gone")
        # As it does every few seconds.
        await handover.sweep()
        await self.node.until(lambda: not self.left_over(), what="all traces of pods to be gone")
        await self.product.at_rest()

    def left_over(self) -> list[str]:
        """What on the node belongs to pods."""
        node = self.node
        containers = node.folder / "hook" / "vgpu" / "containers"
        folders = sorted(each.name for each in containers.iterdir()) if containers.is_dir() else []
        instances = [each for card in node.hardware.scan() if card.uuid for each in node.hardware.instances(card.uuid)]
        handover = node.process.around.handover
        locks = [key for key in node.annotations() if key == keys.NODE_LOCK]
        return [*folders, *map(str, instances), *map(str, handover.checkpoint), *locks]


def past_the_webhook(manifest: Json) -> Json:
    """A pod that skips the webhook: its slices reach the containers only through Allocate."""
    manifest["metadata"].setdefault("labels", {}).update(PASSING_BY)
    manifest["spec"]["schedulerName"] = SCHEDULER
    return manifest


def allocates(manifest: Json) -> int:
    """The number of Allocate calls for a pod."""
    return sum("nvidia.com/gpu" in (each["resources"]["limits"]) for each in containers_of(manifest))


def is_handed_over(pod: Json) -> bool:
    return annotations_of(pod).get(keys.BIND_PHASE) == keys.PHASE_SUCCESS


@asynccontextmanager
async def scheduled_node(folder: Path, *, pods: int = 110, **more: Any) -> AsyncIterator[ScheduledNode]:
    """`more` goes to `agent_node`; `pods` is the most that kubelet accepts."""
    async with agent_node(folder, **more) as node:
        kubelet = Admission(node)
        await kubelet.offer(pods=pods)
        await node.plane.wait_for(lambda: REGISTER in node.annotations())
        async with scheduler_on(node.plane, folder, passing_by=PASSING_BY) as product:
            yield ScheduledNode(node, kubelet, product)
