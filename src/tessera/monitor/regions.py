"""What a shared region says: pure decoding of what containers wrote, which may be anything.

Counts are clamped to what the layout has room for, and slots of ended processes are left out. Writers do not wait for
readers: counters that do not quite belong together are accepted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from struct import Struct
from typing import NamedTuple

from tessera.monitor.region_layouts import HEADER, MAX_DEVICES, MAX_SLOTS, UUID_BYTES, Layout, Misread, choose_layout

SHOWN_UUID_BYTES = 40
"""`GPU-` and 36 characters"""

Read = Callable[[int, int], bytes]
"""so many bytes from an offset on; fewer where the file has no more"""

_U64 = Struct("<Q")
_I64 = Struct("<q")
_I32 = Struct("<i")
_USED = Struct("<QQQQQ")
"""context, module, data, offset, total"""
_UTIL = Struct("<QQQ")
"""decoder, encoder, SM"""
_SWITCHES = Struct("<iiii")
"""slot count, utilization_switch, recent_kernel, priority"""


class Use(NamedTuple):
    """Of one device, over all processes of a container; bytes, and percent."""

    context: int = 0
    module: int = 0
    data: int = 0
    total: int = 0
    sm: int = 0

    def plus(self, other: Use) -> Use:
        return Use(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))


@dataclass(frozen=True, slots=True)
class Device:
    """One device of a region, by its position in it."""

    index: int
    key: bytes
    """its uuid as it is written; empty where there is none"""
    limit: int
    """bytes; 0 = none"""
    use: Use

    @property
    def uuid(self) -> str | None:
        """The same as text; None where nobody could show it."""
        try:
            return self.key[:SHOWN_UUID_BYTES].decode() or None
        except UnicodeDecodeError:
            return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """What one container's processes share."""

    layout: Layout
    devices: tuple[Device, ...]
    utilization_switch: int
    recent_kernel: int
    priority: int
    last_kernel_time: int | None
    """seconds since the epoch; None where the layout has no such thing"""


def decode_region(size: int, read: Read) -> Region | Misread:
    """A file of so many bytes."""
    layout = choose_layout(size, read(0, HEADER.size))
    if isinstance(layout, Misread):
        return layout
    head = read(0, layout.slots)
    tail = read(layout.slot_count, layout.end - layout.slot_count)
    if len(head) < layout.slots or len(tail) < layout.end - layout.slot_count:
        return Misread("cache file was cut off while it was read")
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


def _uses(layout: Layout, slots: bytes, devices: int) -> list[Use]:
    sums = [Use()] * devices
    for slot in range(0, len(slots) - layout.slot_bytes + 1, layout.slot_bytes):
        if _I32.unpack_from(slots, slot + layout.status)[0] == 0:
            continue
        for index in range(devices):
            context, module, data, _, total = _USED.unpack_from(slots, slot + layout.used + index * layout.used_bytes)
            _, _, sm = _UTIL.unpack_from(slots, slot + layout.util + index * layout.util_bytes)
            sums[index] = sums[index].plus(Use(context, module, data, total, sm))
    return sums


def _device(layout: Layout, head: bytes, index: int, use: Use) -> Device:
    at = layout.uuids + index * UUID_BYTES
    key = head[at : at + UUID_BYTES].partition(b"\0")[0]
    return Device(index, key, _U64.unpack_from(head, layout.limits + index * _U64.size)[0], use)


def _last_kernel(layout: Layout, tail: bytes) -> int | None:
    if layout.last_kernel_time is None:
        return None
    found: int = _I64.unpack_from(tail, layout.last_kernel_time - layout.slot_count)[0]
    return found
