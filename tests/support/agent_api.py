"""The API as other programs use it around an agent: a scheduler that locks the node and reads its registration, a
kubelet that ends a pod, and a count of the agent's writes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from json import loads
from typing import Any

from tessera.kube.resources import NODES, PODS
from tessera.wire.keys import NODE_LOCK
from tessera.wire.pod_devices import DeviceEntry
from tests.support.agent import NODE, PATIENCE_S, AgentNode

REGISTER = "hami.io/node-nvidia-register"
SCORES = "hami.io/node-nvidia-score"
LOCKED_AT = "2026-11-15T10:00:00Z"
AGENT = "tessera-device-plugin"

Json = dict[str, Any]


async def registered(node: AgentNode, predicate: Callable[[list[Json]], object] = bool) -> list[Json]:
    """The registered cards, as soon as they satisfy the predicate: the plain JSON objects."""

    def found() -> list[Json] | None:
        cards = loads(node.annotations().get(REGISTER) or "[]")
        return cards if predicate(cards) else None

    return await node.plane.wait_for(found, PATIENCE_S, what="such a registration") or []


async def take_lock(node: AgentNode, pod: str) -> str:
    """Locks the node for this pod."""
    text = f"{LOCKED_AT},default,{pod}"
    await node.plane.client.patch(NODES.path(name=NODE), {"metadata": {"annotations": {NODE_LOCK: text}}})
    return text


async def lock(node: AgentNode, pod: str) -> str:
    """Locks the node for a waiting pod; returns once the agent has seen it."""
    text = await take_lock(node, pod)
    await node.until(
        lambda: node.process.around.handover.pods.node_view.lock_text == text, what="the lock to be heard of"
    )
    return text


async def bound(node: AgentNode, name: str, slices: Sequence[Sequence[DeviceEntry]], **more: Any) -> Json:
    """A pod of `bound_pod`; returns once the agent has seen it."""
    pod = await node.bound_pod(name, slices, **more)
    pods = node.process.around.handover.pods
    await node.until(lambda: pods.get(pod["metadata"]["uid"]), what=f"{name} to be heard of")
    return pod


async def unlocked(node: AgentNode) -> None:
    await node.plane.wait_for(lambda: NODE_LOCK not in node.annotations(), PATIENCE_S, what="the lock to be gone")


async def pod_ended(node: AgentNode, name: str, phase: str) -> None:
    """Sets the phase that kubelet reports, not the phase of the handover."""
    await node.plane.client.patch(f"{PODS.path('default', name)}/status", {"status": {"phase": phase}})


def writes(node: AgentNode, path: str = "") -> list[tuple[str, str]]:
    """Method and path of the agent's successful writes so far."""
    return [
        (seen.method, seen.path)
        for seen in node.plane.server.journal
        if seen.writes and seen.agent == AGENT and path in seen.path and seen.status == 200
    ]
