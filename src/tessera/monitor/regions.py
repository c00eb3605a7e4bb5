"""Shared regions, which HAMi-core writes into a file that its container may change, replace or truncate at any time.

There are three layouts, little-endian, that differ in their offsets. One release has v1's version number with another
layout: only the size of its file tells it apart. A region may contain anything: counts are clamped to what the layout
has room for, and slots of ended processes are skipped. Writers do not wait for readers, so counters may be slightly
inconsistent. Links are never followed, and all access is by position: truncating a mapped file would crash the monitor.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import compress
from struct import Struct
from typing import NamedTuple

MAGIC = 19920718
MAX_DEVICES = 16
MAX_SLOTS = 1024
UUID_BYTES = 96
SHOWN_UUID_BYTES = 40
"""`GPU-` and 36 characters"""
HEADER = Struct("<iI")
"""magic, and the major version where the layout has one"""
HEADER_BYTES = 12
"""a shorter file is not a region of any layout"""

Read = Callable[[int, int], bytes]
"""reads so many bytes from an offset; fewer at the end of the file"""

_U64 = Struct("<Q")
_I64 = Struct("<q")
_I32 = Struct("<i")
_SWITCHES = Struct("<iiii")
"""slot count, utilization_switch, recent_kernel, priority"""
_PER_DEVICE = MAX_DEVICES * _U64.size
"""bytes of one number for each device"""
# Without O_NONBLOCK a named pipe would block the monitor.
_FLAGS = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionLayout:
    """Offsets and sizes in bytes; offsets in a slot are relative to the slot.

    Region: device count, uuids, memory limits, SM limits, slots, the four numbers of `_SWITCHES`, perhaps the time of
    the last kernel. Slot: use of every device (context, module, data, offset, total), one number for each, utilization
    of every device (decoder, encoder, SM), status.
    """

    name: str
    device_count: int
    slot_bytes: int
    used: int
    used_bytes: int
    util_bytes: int
    after_switches: int
    """bytes; they begin with the time of the last kernel"""

    @property
    def uuids(self) -> int:
        return self.device_count + _U64.size

    @property
    def limits(self) -> int:
        return self.uuids + MAX_DEVICES * UUID_BYTES

    @property
    def slots(self) -> int:
        return self.limits + 2 * _PER_DEVICE

    @property
    def util(self) -> int:
        return self.used + MAX_DEVICES * self.used_bytes + _PER_DEVICE

    @property
    def status(self) -> int:
        return self.util + MAX_DEVICES * self.util_bytes

    @property
    def switches(self) -> int:
        return self.slots + MAX_SLOTS * self.slot_bytes

    @property
    def end(self) -> int:
        return self.switches + _SWITCHES.size + self.after_switches


V0 = RegionLayout(name="v0", device_count=48, slot_bytes=1168, used=8, used_bytes=40, util_bytes=24, after_switches=0)
V1 = RegionLayout(name="v1", device_count=56, slot_bytes=1960, used=8, used_bytes=64, util_bytes=48, after_switches=40)
V1_TWO_LOCKS = RegionLayout(
    name="v1 with two locks",
    device_count=88,
    slot_bytes=1960,
    used=16,
    used_bytes=64,
    util_bytes=48,
    after_switches=40,
)
"""HAMi v2.8.1 only"""
TWO_LOCKS_SIZES = (V1_TWO_LOCKS.end, V1_TWO_LOCKS.end + 1)
"""bytes; the creator of a region makes its file one byte longer"""


@dataclass(frozen=True, slots=True)
class Misread:
    """Why a file cannot be read as a region."""

    problem: str


def choose_layout(size: int, header: bytes) -> RegionLayout | Misread:
    """Chooses by the size of the file in bytes and its first bytes."""
    if size < HEADER_BYTES or len(header) < HEADER.size:
        return Misread(f"cache file of {size} bytes is too small")
    magic, major = HEADER.unpack_from(header)
    if magic != MAGIC:
        return Misread("cache file magic flag not matched")
    if V0.end <= size < V1.end:
        return V0
    if major == 1 and size in TWO_LOCKS_SIZES:
        return V1_TWO_LOCKS
    if major == 1 and size >= V1.end:
        return V1
    return Misread(f"unknown cache file size {size} with version {major}")


class DeviceUsage(NamedTuple):
    """The usage of one device by all processes of a container; bytes, and percent for `sm`."""

    context: int = 0
    module: int = 0
    data: int = 0
    total: int = 0
    sm: int = 0


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
    tail = read(layout.switches, layout.end - layout.switches)
    if len(head) < layout.slots or len(tail) < layout.end - layout.switches:
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
        last_kernel_time=_I64.unpack_from(tail, _SWITCHES.size)[0] if layout.after_switches else None,
    )


def _uses(layout: RegionLayout, slots: bytes, devices: int) -> list[DeviceUsage]:
    """By device, the sums over all slots in use. A container may fill them all, so each sum is one call."""
    numbers = memoryview(slots[: len(slots) // layout.slot_bytes * layout.slot_bytes]).cast("Q")
    stride = layout.slot_bytes // _U64.size
    # The status has 32 bits; what follows it in the same 64 is padding.
    in_use = [number & 0xFFFFFFFF for number in numbers[layout.status // _U64.size :: stride]]

    def summed(offset: int) -> int:
        return sum(compress(numbers[offset // _U64.size :: stride], in_use))

    found = []
    for index in range(devices):
        used, util = layout.used + index * layout.used_bytes, layout.util + index * layout.util_bytes
        offsets = (used, used + 8, used + 16, used + 32, util + 16)
        found.append(DeviceUsage(*map(summed, offsets)))
    return found


def _device(layout: RegionLayout, head: bytes, index: int, use: DeviceUsage) -> RegionDevice:
    at = layout.uuids + index * UUID_BYTES
    key = head[at : at + UUID_BYTES].partition(b"\0")[0]
    return RegionDevice(index, key, _U64.unpack_from(head, layout.limits + index * _U64.size)[0], use)


class RegionFile:
    """One open file. All methods block."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def read(self) -> Region | Misread:
        """Decodes the current contents. Raises OSError."""
        found = os.fstat(self._descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
            return Misread("cache file is not a regular file with one name")
        return decode_region(found.st_size, lambda offset, length: os.pread(self._descriptor, length, offset))

    def write(self, region: Region, *, utilization_switch: int, recent_kernel: int) -> bool:
        """Writes what differs. Returns False if the file was truncated. Raises OSError."""
        if os.fstat(self._descriptor).st_size < region.layout.end:
            return False
        switches = region.layout.switches
        if utilization_switch != region.utilization_switch:
            os.pwrite(self._descriptor, _I32.pack(utilization_switch), switches + _I32.size)
        if recent_kernel != region.recent_kernel:
            os.pwrite(self._descriptor, _I32.pack(recent_kernel), switches + 2 * _I32.size)
        return True


@contextmanager
def open_region(folder: int, name: str) -> Iterator[RegionFile]:
    """Opens the region in a file of an open directory. Raises OSError."""
    descriptor = os.open(name, _FLAGS, dir_fd=folder)
    try:
        yield RegionFile(descriptor)
    finally:
        os.close(descriptor)
