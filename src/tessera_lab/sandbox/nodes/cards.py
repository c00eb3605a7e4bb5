"""Cards for simulated nodes, with uuids that are the same every time."""

from __future__ import annotations

from tessera.core.devices import HAMI_CORE, Device
from tessera.inspect.description import SLOTS, DescribedCards, make_devices

VENDOR = "NVIDIA"
A100 = "NVIDIA A100-SXM4-80GB"
A100_MEMORY = 81920
"""MiB"""


def gpu_cards(
    node: str,
    count: int,
    *,
    model: str = A100,
    memory: int = A100_MEMORY,
    slots: int = SLOTS,
    mode: str = HAMI_CORE,
    numa_nodes: int = 1,
    linked: int = 0,
) -> tuple[Device, ...]:
    """`count` cards of a node, spread over `numa_nodes`, in groups of `linked` that are linked to each other."""
    cards = DescribedCards(
        model=model, count=count, memory=memory, slots=slots, mode=mode, numa=numa_nodes, linked=linked
    )
    return make_devices(node, cards)
