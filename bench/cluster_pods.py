"""The pods of the cluster benchmark: those that run already, and those that wait."""

from __future__ import annotations

from collections.abc import Sequence

from tessera.vendors.downward_api import container_env
from tessera.vendors.nvidia.downward_api import NvidiaDownwardApi
from tessera.wire import keys
from tessera.wire.pod_devices import DeviceEntry, encode_pod_devices
from tessera_lab.sandbox.api.kinds import Json
from tessera_lab.sandbox.nodes.node import VENDOR, SimulatedNode

MEASURED, LOADED = "measured", "loaded"
"""namespaces"""
ALLOCATED = "hami.io/vgpu-devices-allocated"
HELD = (4_000, 3)
"""MiB and per cent of each running pod; 16 of them leave space on every card of a node with eight"""
SHAPES = ((2_000, 0), (4_000, 5), (3_000, 10), (8_000, 20))
"""MiB and per cent of the measured pods, in turns"""


def pod(name: str, namespace: str, *, memory: int, cores: int, cards: int = 1) -> Json:
    """A pod as the webhook patches it."""
    amounts = {"cpu": "1", "memory": "1Gi", "nvidia.com/gpu": str(cards)}
    if memory:
        amounts |= {"nvidia.com/gpumem": str(memory), "nvidia.com/gpucores": str(cores)}
    container = {
        "name": "main",
        "image": "image",
        "env": container_env(NvidiaDownwardApi(), container=0, name="main", devices=cards),
        "resources": {"limits": amounts, "requests": amounts},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"schedulerName": "hami-scheduler", "containers": [container]},
    }


def waiting_pods(count: int, *, shared: bool) -> list[Json]:
    """Without an extender there are no shared cards; then (`shared=False`) each pod requests a whole card."""
    return [
        pod(f"p{number:04}", MEASURED, memory=memory if shared else 0, cores=cores)
        for number in range(count)
        for memory, cores in (SHAPES[number % len(SHAPES)],)
    ]


def running_pods(nodes: Sequence[SimulatedNode], each: int) -> list[Json]:
    """Pods that are bound already, with their slices, spread over the cards of their node."""
    return [held_pod(node, number) for number in range(each) for node in nodes]


def held_pod(node: SimulatedNode, number: int, *, held: tuple[int, int] = HELD) -> Json:
    """`held`: MiB and per cent of one card."""
    card = node.cards[number % len(node.cards)].uuid
    memory, cores = held
    made = pod(f"{node.name}-{number}", LOADED, memory=memory, cores=cores)
    made["spec"]["nodeName"] = node.name
    made["metadata"]["annotations"] = {
        keys.ASSIGNED_NODE: node.name,
        keys.ASSIGNED_TIME: "1794725250",
        keys.BIND_PHASE: keys.PHASE_SUCCESS,
        keys.BIND_TIME: "1794725250",
        ALLOCATED: encode_pod_devices([[DeviceEntry(card, VENDOR, memory, cores)]]),
        keys.visible_devices(0): card,
        keys.memory_limit(0, 0): f"{memory}m",
        keys.core_limit(0): str(cores),
    }
    return made
