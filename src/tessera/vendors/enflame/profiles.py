"""Enflame's DRS profiles (`3g.24gb`: three slices, 24 GB) and the node annotation that offers them.

Sizes are in slices of a card. A profile's share of the cores follows from its size and that of the largest profile.
Both conversions are here, because a grant records memory and cores only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import msgspec

from tessera.core.devices import Device
from tessera.vendors.parts.capacity import MAX_CARDS
from tessera.wire.errors import WireError
from tessera.wire.integers import INT32_MAX

MIB_PER_GB = 1024
CORES = 100
"""per cent of a card"""
PROFILES = "profiles"
"""names and ids of the profiles; plain values, so that a registration can be recorded and read back"""
REMEMBERED = 64
"""sets of profiles; the nodes of a cluster have few different ones"""
MINOR = "minor"
INDEX = "index"

_NAME = re.compile(r"([0-9]{1,6})g\.([0-9]{1,6})gb", re.ASCII)


@dataclass(frozen=True, slots=True, order=True)
class Profile:
    """Profiles sort by size, then by memory, so the first that fits is the smallest."""

    size: int
    """slices"""
    memory: int
    """MiB"""
    name: str
    id: str

    def cores(self, max_slice: int) -> int:
        """Per cent of the card, rounded up."""
        return -(-self.size * CORES // max_slice)


class _DeviceSpec(msgspec.Struct):
    index: str | int = ""
    minor: str | int = ""
    capacity: str | int | float = ""


class _Capacity(msgspec.Struct):
    devices: list[_DeviceSpec] | None = None
    profiles: dict[str, str | int] | None = None


def devices_from(text: str, *, node: str, vendor: str) -> tuple[Device, ...]:
    """The cards that the annotation offers, all with the same profiles."""
    try:
        found = msgspec.json.decode(text, type=_Capacity)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise WireError(str(error)) from error
    specs = found.devices or []
    if len(specs) > MAX_CARDS:
        raise WireError(f"{len(specs)} devices, at most {MAX_CARDS} are believed")
    profiles = read_profiles(found.profiles or {})
    if specs and not profiles:
        raise WireError("no profile of the form <slices>g.<memory>gb")
    devices = tuple(_device(spec, position, profiles, node, vendor) for position, spec in enumerate(specs))
    if len({device.uuid for device in devices}) < len(devices):
        raise WireError("two devices have the same index")
    return devices


def read_profiles(named: Mapping[str, str | int]) -> tuple[Profile, ...]:
    """Profiles in order; names that are not profiles are skipped."""
    found = []
    for name, ident in named.items():
        match = _NAME.fullmatch(name.strip().lower())
        if match:
            size, memory = int(match[1]), int(match[2]) * MIB_PER_GB
            # Percentages could not tell larger sizes apart.
            if 0 < size <= CORES and memory > 0:
                found.append(Profile(size, memory, name, str(ident)))
    return tuple(sorted(found))


def profiles_of(device: Device) -> tuple[Profile, ...]:
    named: Mapping[str, str] = device.custom.get(PROFILES, {})
    return _profiles(tuple(named.items()))


@lru_cache(maxsize=REMEMBERED)
def _profiles(named: tuple[tuple[str, str], ...]) -> tuple[Profile, ...]:
    return read_profiles(dict(named))


def max_slice_of(device: Device) -> int:
    return max((profile.size for profile in profiles_of(device)), default=1)


def slices_of(device: Device, *, memory: int, cores: int) -> int:
    """How many slices a grant of this memory and these cores takes.

    Exactly the profile's size; if the profiles have changed, enough for both amounts.
    """
    profiles, largest = profiles_of(device), max_slice_of(device)
    for profile in profiles:
        if profile.memory == memory and profile.cores(largest) == cores:
            return profile.size
    by_memory = next((profile.size for profile in profiles if profile.memory >= memory), largest)
    return max(by_memory, cores * largest // CORES, 1)


def _device(spec: _DeviceSpec, position: int, profiles: tuple[Profile, ...], node: str, vendor: str) -> Device:
    named = {profile.name: profile.id for profile in profiles}
    index = _number(spec.index)
    if index is None:
        index = position
    slots = _number(spec.capacity)
    if not slots:
        raise WireError(f"device {index}: {spec.capacity!r:.40} is not a number of slices")
    return Device(
        uuid=f"{node}-enflame-drs-{index}",
        vendor=vendor,
        index=index,
        slots=slots,
        memory=max(profile.memory for profile in profiles),
        cores=CORES,
        model=vendor,
        custom={MINOR: str(spec.minor).strip() or str(index), INDEX: str(index), PROFILES: named},
    )


def _number(value: str | int | float) -> int | None:
    """A whole number from 0 that fits a counter, in any spelling; None otherwise."""
    if isinstance(value, str):
        value = value.strip()
        if not (value.isascii() and value.isdigit() and len(value) <= len(str(INT32_MAX))):
            return None
    elif isinstance(value, float) and not value.is_integer():
        return None
    number = int(value)
    return number if 0 <= number <= INT32_MAX else None
