"""The three layouts of a shared region, and how to tell them apart.

HAMi-core writes the region, little-endian; its releases differ in the offsets. One release has v1's version number with
another layout: only the size of its file tells it apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct

MAGIC = 19920718
MAX_DEVICES = 16
MAX_SLOTS = 1024
UUID_BYTES = 96
HEADER = Struct("<iI")
"""magic, and the major version where the layout has one"""
HEADER_BYTES = 12
"""a shorter file is not a region of any layout"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionLayout:
    """Offsets and sizes in bytes; offsets in a slot are relative to the slot."""

    name: str
    device_count: int
    uuids: int
    limits: int
    slots: int
    slot_bytes: int
    used: int
    used_bytes: int
    util: int
    util_bytes: int
    status: int
    slot_count: int
    """followed by utilization_switch, recent_kernel and priority, four bytes each"""
    last_kernel_time: int | None
    end: int

    @property
    def utilization_switch(self) -> int:
        return self.slot_count + 4

    @property
    def recent_kernel(self) -> int:
        return self.slot_count + 8


V0 = RegionLayout(
    name="v0",
    device_count=48,
    uuids=56,
    limits=1592,
    slots=1848,
    slot_bytes=1168,
    used=8,
    used_bytes=40,
    util=776,
    util_bytes=24,
    status=1160,
    slot_count=1197880,
    last_kernel_time=None,
    end=1197896,
)
V1 = RegionLayout(
    name="v1",
    device_count=56,
    uuids=64,
    limits=1600,
    slots=1856,
    slot_bytes=1960,
    used=8,
    used_bytes=64,
    util=1160,
    util_bytes=48,
    status=1928,
    slot_count=2008896,
    last_kernel_time=2008912,
    end=2008952,
)
V1_TWO_LOCKS = RegionLayout(
    name="v1 with two locks",
    device_count=88,
    uuids=96,
    limits=1632,
    slots=1888,
    slot_bytes=1960,
    used=16,
    used_bytes=64,
    util=1168,
    util_bytes=48,
    status=1936,
    slot_count=2008928,
    last_kernel_time=2008944,
    end=2008984,
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
