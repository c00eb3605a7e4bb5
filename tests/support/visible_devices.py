"""A container's slices in the order in which it sees its cards: the order of the node, not of the annotation."""

from __future__ import annotations

from collections.abc import Sequence

from tessera.wire.pod_devices import DeviceEntry


def in_visible_order(granted: Sequence[DeviceEntry], visible: str) -> tuple[DeviceEntry, ...]:
    """The granted slices in the order of NVIDIA_VISIBLE_DEVICES; unchanged if that names other cards."""
    seen = visible.split(",")
    if sorted(seen) != sorted(entry.uuid for entry in granted):
        return tuple(granted)
    return tuple(sorted(granted, key=lambda entry: seen.index(entry.uuid)))
