"""A node with the real agent in a cluster with the real scheduler: webhook, extender, kube-scheduler's loop, kubelet.

async with scheduled_node(folder) as cluster:
    await cluster.create(gpu_pod("p", gpu=1, mem=1000))
    await cluster.kubelet.bound("p")
    await cluster.kubelet.admit("p")
    await cluster.handed_over("p")
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tessera.wire import keys
from tessera_lab.sandbox.objects import annotations_of, containers_of, name_of
from tests.support.agent import AgentNode, agent_node
from tests.support.agent_api import REGISTER
from tests.support.kubelet.pod_admission import Admission
from tests.support.product import Product, scheduler_on

Json = dict[str, Any]

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
