"""The JSON form of a registration: an array of objects that omit zero values.

A missing `health` therefore means unhealthy. Which ids are acceptable is checked for both forms in `registration`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Annotated, Any

import msgspec

from tessera.core.devices import NOTHING, Device, MigPlacement, MigProfile
from tessera.wire import gojson
from tessera.wire.errors import WireError
from tessera.wire.integers import INT32_MAX
from tessera.wire.quotes import quoted

Counter = Annotated[int, msgspec.Meta(ge=0, le=INT32_MAX)]
Numa = Annotated[int, msgspec.Meta(ge=-INT32_MAX, le=INT32_MAX)]

_MAX_DEPTH = 8
"""levels of custominfo; deeper values could exhaust the stack when they are compared"""


class _Placement(msgspec.Struct, frozen=True):
    start: Counter = 0
    size: Counter = 0


class _Profile(msgspec.Struct, frozen=True):
    name: str = ""
    memoryMB: Counter = 0
    core: Counter = 0
    sliceCount: Counter = 0
    placements: list[_Placement] = []


class _Device(msgspec.Struct, frozen=True, omit_defaults=True):
    """Field order is the order on the wire."""

    id: str = ""
    index: Counter = 0
    count: Counter = 0
    devmem: Counter = 0
    devcore: Counter = 0
    type: str = ""
    numa: Numa = 0
    mode: str = ""
    migProfiles: list[_Profile] = []
    health: bool = False
    custominfo: dict[str, Any] = {}


_DEVICE_KEYS = gojson.key_table(_Device)
_PROFILE_KEYS = gojson.key_table(_Profile)
_PLACEMENT_KEYS = gojson.key_table(_Placement)


def devices_from_json(text: str, *, vendor: str) -> tuple[Device, ...]:
    members = gojson.decode_array(text, "the registration")
    return tuple(_device(raw, position, vendor=vendor) for position, raw in enumerate(members))


def json_from_devices(devices: Iterable[Device]) -> str:
    return gojson.encode([_wire(device) for device in devices])


def _device(raw: Any, position: int, *, vendor: str) -> Device:
    where = f"registered device {position}"
    wire = gojson.convert(_folded(raw), _Device, where)
    if not _is_shallow(wire.custominfo, _MAX_DEPTH):
        raise WireError(f"{where}: custominfo is nested more than {_MAX_DEPTH} levels deep")
    return Device(
        uuid=wire.id,
        vendor=vendor,
        index=wire.index,
        slots=wire.count,
        memory=wire.devmem,
        cores=wire.devcore,
        model=wire.type,
        numa=max(wire.numa, 0),
        mode=wire.mode,
        healthy=wire.health,
        mig_profiles=tuple(_profile(profile, where) for profile in wire.migProfiles),
        custom=MappingProxyType(wire.custominfo) if wire.custominfo else NOTHING,
    )


def _folded(raw: Any) -> Any:
    device = gojson.fold(raw, _DEVICE_KEYS)
    if isinstance(device, dict) and isinstance(device.get("migProfiles"), list):
        device["migProfiles"] = [_folded_profile(profile) for profile in device["migProfiles"]]
    return device


def _folded_profile(raw: Any) -> Any:
    profile = gojson.fold(raw, _PROFILE_KEYS)
    if isinstance(profile, dict) and "placements" in profile:
        profile["placements"] = gojson.fold_each(profile["placements"], _PLACEMENT_KEYS)
    return profile


def _profile(wire: _Profile, where: str) -> MigProfile:
    if not wire.name or any(place.size == 0 for place in wire.placements):
        raise WireError(f"{where}: MIG profile {quoted(wire.name)} lacks its name or the size of a placement")
    return MigProfile(
        name=wire.name,
        memory=wire.memoryMB,
        cores=wire.core,
        slices=wire.sliceCount,
        placements=tuple(MigPlacement(place.start, place.size) for place in wire.placements),
    )


def _wire(device: Device) -> _Device:
    return _Device(
        id=device.uuid,
        index=device.index,
        count=device.slots,
        devmem=device.memory,
        devcore=device.cores,
        type=device.model,
        numa=device.numa,
        mode=device.mode,
        migProfiles=[
            _Profile(p.name, p.memory, p.cores, p.slices, [_Placement(a.start, a.size) for a in p.placements])
            for p in device.mig_profiles
        ],
        health=device.healthy,
        custominfo=dict(device.custom),
    )


def _is_shallow(value: Any, levels: int) -> bool:
    if not isinstance(value, dict | list):
        return True
    members: Iterable[Any] = value.values() if isinstance(value, Mapping) else value
    return levels > 0 and all(_is_shallow(member, levels - 1) for member in members)
