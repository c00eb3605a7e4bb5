"""kubelet's admission of one node's pods through the scripted kubelet: container after container, with a checkpoint.

What a container was given is kept over a restart and never asked for again; an Allocate that fails rejects its pod for
good. Ids of init containers serve the later containers of their pod, as with the real one. Tests say when what happens.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, field

from grpc import aio

from tessera.kube.client import STRATEGIC_PATCH
from tessera.kube.resources import NODES, PODS
from tessera.wire.kubelet import device_plugin_pb2 as messages
from tessera.wire.pod_devices import decode_mig_allocations, decode_pod_devices
from tessera_lab.sandbox.api.kinds import Json
from tessera_lab.sandbox.nodes import kubelet
from tessera_lab.sandbox.nodes.containers import container_environment
from tessera_lab.sandbox.objects import containers_of, is_sidecar, name_of, uid_of
from tests.support.agent import ALLOCATED, NODE, AgentNode

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
