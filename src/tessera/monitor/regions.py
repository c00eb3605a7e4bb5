"""Decodes shared regions. Containers wrote them, so they may contain anything. Pure.

Counts are clamped to what the layout has room for, and slots of ended processes are skipped. Writers do not wait for
readers, so counters may be slightly inconsistent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from struct import Struct
from typing import NamedTuple

from tessera.monitor.region_layouts import (
    HEADER,
    MAX_DEVICES,
    MAX_SLOTS,
    UUID_BYTES,
    Misread,
    RegionLayout,
    choose_layout,
)

SHOWN_UUID_BYTES = 40
"""`GPU-` and 36 characters"""

Read = Callable[[int, int], bytes]
"""reads so many bytes from an offset; fewer at the end of the file"""

_U64 = Struct("<Q")
_I64 = Struct("<q")
_I32 = Struct("<i")
_USED = Struct("<QQQQQ")
"""context, module, data, offset, total"""
_UTIL = Struct("<QQQ")
"""decoder, encoder, SM"""
_SWITCHES = Struct("<iiii")
"""slot count, utilization_switch, recent_kernel, priority"""


class DeviceUsage(NamedTuple):
    """The usage of one device by all processes of a container; bytes, and percent for `sm`."""

    context: int = 0
    module: int = 0
    data: int = 0
    total: int = 0
    sm: int = 0

    def plus(self, other: DeviceUsage) -> DeviceUsage:
        return DeviceUsage(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))


@dataclass(frozen=True, slots=True)
class RegionDevice:
    """One device of a region, by its position in it."""

    index: int
    key: bytes
    """its uuid as written; empty if there is none"""
    limit: int
    """bytes; 0 = none"""
    use: DeviceUsage

    @property
    def uuid(self) -> str | None:
        """The uuid as text; None if it is not text."""
        try:
            return self.key[:SHOWN_UUID_BYTES].decode() or None
        except UnicodeDecodeError:
            return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """The shared region of one container's processes."""

    layout: RegionLayout
    devices: tuple[RegionDevice, ...]
    utilization_switch: int
    recent_kernel: int
    priority: int
    last_kernel_time: int | None
    """seconds since the epoch; None if the layout does not have it"""


def decode_region(size: int, read: Read) -> Region | Misread:
    """Decodes a file of `size` bytes."""
    layout = choose_layout(size, read(0, HEADER.size))
    if isinstance(layout, Misread):
        return layout
    head = read(0, layout.slots)
    tail = read(layout.slot_count, layout.end - layout.slot_count)
    if len(head) < layout.slots or len(tail) < layout.end - layout.slot_count:
        return Misread("cache file was truncated while it was read")
    written, switch, recent, priority = _SWITCHES.unpack_from(tail)
    count = min(_U64.unpack_from(head, layout.device_count)[0], MAX_DEVICES)
    slots = min(max(written, 0), MAX_SLOTS)
    uses = _uses(layout, read(layout.slots, slots * layout.slot_bytes), count)
    return Region(
        layout=layout,
        devices=tuple(_device(layout, head, index, uses[index]) for index in range(count)),
        utilization_switch=switch,
        recent_kernel=recent,
        priority=priority,
        last_kernel_time=_last_kernel(layout, tail),
    )


def _uses(layout: RegionLayout, slots: bytes, devices: int) -> list[DeviceUsage]:
    sums = [DeviceUsage()] * devices
    for slot in range(0, len(slots) - layout.slot_bytes + 1, layout.slot_bytes):
        if _I32.unpack_from(slots, slot + layout.status)[0] == 0:
            continue
        for index in range(devices):
            context, module, data, _, total = _USED.unpack_from(slots, slot + layout.used + index * layout.used_bytes)
            _, _, sm = _UTIL.unpack_from(slots, slot + layout.util + index * layout.util_bytes)
            sums[index] = sums[index].plus(DeviceUsage(context, module, data, total, sm))
    return sums


def _device(layout: RegionLayout, head: bytes, index: int, use: DeviceUsage) -> RegionDevice:
    at = layout.uuids + index * UUID_BYTES
    key = head[at : at + UUID_BYTES].partition(b"\0")[0]
    return RegionDevice(index, key, _U64.unpack_from(head, layout.limits + index * _U64.size)[0], use)


def _last_kernel(layout: RegionLayout, tail: bytes) -> int | None:
    if layout.last_kernel_time is None:
        return None
    found: int = _I64.unpack_from(tail, layout.last_kernel_time - layout.slot_count)[0]
    return found
