"""Cards for simulated nodes, with uuids that are the same every time."""

from __future__ import annotations

import uuid
from dataclasses import replace

from tessera.core.devices import HAMI_CORE, Device

VENDOR = "NVIDIA"
A100 = "NVIDIA A100-SXM4-80GB"
A100_MEMORY = 81920
"""MiB"""
SPLIT = 10
"""how often a card is offered; HAMi's default"""
PAIR_SCORE = 400
"""of cards with four links between them"""

_UUIDS = uuid.UUID("6f0f3d3e-7f0c-5d5c-9d7b-0c8f3b2a1e55")


def gpu_cards(
    node: str,
    count: int,
    *,
    model: str = A100,
    memory: int = A100_MEMORY,
    slots: int = SPLIT,
    mode: str = HAMI_CORE,
    numa_nodes: int = 1,
    linked: int = 0,
) -> tuple[Device, ...]:
    """`count` cards of a node, spread over `numa_nodes`, in groups of `linked` that are linked to each other."""
    cards = [
        Device(
            uuid=f"GPU-{uuid.uuid5(_UUIDS, f'{node}/{index}')}",
            vendor=VENDOR,
            index=index,
            slots=slots,
            memory=memory,
            model=model,
            numa=index * numa_nodes // count,
            mode=mode,
        )
        for index in range(count)
    ]
    if not linked:
        return tuple(cards)
    return tuple(
        replace(card, links={other.uuid: PAIR_SCORE for other in cards if _together(card, other, linked)})
        for card in cards
    )


def _together(card: Device, other: Device, linked: int) -> bool:
    return card is not other and card.index // linked == other.index // linked
