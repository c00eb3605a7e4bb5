"""Regions as HAMi-core makes them: C structures, written down apart from the offsets that the monitor reads them by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from ctypes import Array, Structure, c_char, c_int32, c_int64, c_uint32, c_uint64
from typing import Any, NamedTuple

from tessera.monitor.regions import Misread, Region, decode_region

MAGIC = 19920718
GPU_A, GPU_B = (f"GPU-{letter * 8}-0000-4000-8000-000000000000" for letter in "ab")

U64x16: type[Array[Any]] = c_uint64 * 16
LOCK: type[Array[Any]] = c_uint64 * 4
UUIDS: type[Array[Any]] = (c_char * 96) * 16


def structure(name: str, *fields: tuple[str, Any]) -> type[Structure]:
    return type(name, (Structure,), {"_fields_": list(fields)})


KINDS = [(each, c_uint64) for each in ("context", "module", "data", "offset", "total")]
UTILS = [(each, c_uint64) for each in ("dec", "enc", "sm")]
IDS = [("pid", c_int32), ("hostpid", c_int32)]
TAIL = [(each, c_int32) for each in ("slot_count", "utilization_switch", "recent_kernel", "priority")]
DEVICES = [("device_count", c_uint64), ("uuids", UUIDS), ("limits", U64x16), ("sm_limits", U64x16)]
VERSIONED = [("magic", c_int32), ("major", c_uint32), ("minor", c_uint32), ("sm_init", c_int32), ("owner", c_uint64)]

Used0 = structure("Used0", *KINDS)
Util0 = structure("Util0", *UTILS)
Slot0 = structure(
    "Slot0", *IDS, ("used", Used0 * 16), ("monitorused", U64x16), ("util", Util0 * 16), ("status", c_int32)
)
Region0 = structure(
    "Region0",
    ("magic", c_int32),
    ("sm_init", c_int32),
    ("owner", c_uint32),
    ("lock", LOCK),
    *DEVICES,
    ("slots", Slot0 * 1024),
    *TAIL,
)
Used1 = structure("Used1", *KINDS, ("reserved", c_uint64 * 3))
Util1 = structure("Util1", *UTILS, ("reserved", c_uint64 * 3))
COUNTED = [("used", Used1 * 16), ("monitorused", U64x16), ("util", Util1 * 16), ("status", c_int32)]
Slot1 = structure("Slot1", *IDS, *COUNTED, ("seqlock", c_uint64), ("reserved", c_uint64 * 2))
Slot2 = structure("Slot2", *IDS, ("seqlock", c_uint64), *COUNTED, ("reserved", c_uint64 * 2))
END = [*TAIL, ("last_kernel_time", c_int64), ("postinit", LOCK)]
Region1 = structure("Region1", *VERSIONED, ("lock", LOCK), *DEVICES, ("slots", Slot1 * 1024), *END)
Region2 = structure("Region2", *VERSIONED, ("lock", LOCK), ("second", LOCK), *DEVICES, ("slots", Slot2 * 1024), *END)
STRUCTURES = {"v0": Region0, "v1": Region1, "v1 with two locks": Region2}


class Slot(NamedTuple):
    """One process; use by position of the device: context, module, data, total, sm."""

    use: Mapping[int, tuple[int, int, int, int, int]]
    status: int = 1


def region(
    layout: str = "v1",
    *,
    uuids: Sequence[str | bytes] = (GPU_A,),
    limits: Sequence[int] = (),
    slots: Sequence[Slot] = (),
    **fields: int,
) -> bytes:
    """A file with such a region; `fields` go over what follows from the rest."""
    made: Any = STRUCTURES[layout]()
    made.magic, made.utilization_switch, made.recent_kernel, made.priority = MAGIC, 1, 2, 1
    if layout != "v0":
        made.major, made.minor = 1, 1
    made.device_count, made.slot_count = len(uuids), len(slots)
    for index, uuid in enumerate(uuids):
        made.uuids[index].value = uuid.encode() if isinstance(uuid, str) else uuid
    for index, limit in enumerate(limits):
        made.limits[index] = limit
    for slot, given in zip(made.slots, slots, strict=False):
        slot.pid, slot.status = 7, given.status
        for index, (context, module, data, total, sm) in given.use.items():
            used = slot.used[index]
            used.context, used.module, used.data, used.total = context, module, data, total
            slot.util[index].dec, slot.util[index].enc, slot.util[index].sm = 91, 92, sm
    for name, value in fields.items():
        setattr(made, name, value)
    return bytes(made) + b"\0"


def decoded(data: bytes) -> Region | Misread:
    return decode_region(len(data), lambda offset, length: data[offset : offset + length])


def good(data: bytes) -> Region:
    found = decoded(data)
    assert isinstance(found, Region), found
    return found
