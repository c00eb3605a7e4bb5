"""Reads the GPU instance profiles of a card.

Every profile number that NVML defines is tried; a card that is not in MIG mode may know none of them. Names come from
the driver if it gives them, otherwise from the profile's attributes.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tessera.core.devices import MigPlacement
from tessera.host.cards import GpuInstanceProfile
from tessera.host.mig_profile_names import ATTRIBUTES, has_media_extensions, name_from_driver, profile_name
from tessera.host.nvml.session import Handle, Session, text_of

MIB = 2**20
"""bytes"""


@dataclass(frozen=True, slots=True)
class NvmlProfile:
    """A GPU instance profile as NVML describes it."""

    number: int
    """in NVML's enumeration"""
    info: Any

    @property
    def id(self) -> int:
        return int(self.info.id)

    @property
    def instances(self) -> int:
        return int(self.info.instanceCount)

    @property
    def memory_mib(self) -> int:
        return int(self.info.memorySizeMB)


def read_profiles(session: Session, device: Handle) -> list[NvmlProfile]:
    """Returns all profiles that the card knows."""
    numbers = range(session.api.NVML_GPU_INSTANCE_PROFILE_COUNT)
    infos = ((number, _info(session, device, number)) for number in numbers)
    return [NvmlProfile(number, info) for number, info in infos if info is not None]


def _info(session: Session, device: Handle, number: int) -> Any:
    """Returns None if the card or the driver does not know the profile."""
    api = session.api
    # A driver older than version 2 of the struct refuses it in one of two ways.
    older = (api.NVML_ERROR_FUNCTION_NOT_FOUND, api.NVML_ERROR_ARGUMENT_VERSION_MISMATCH)
    unknown = (api.NVML_ERROR_NOT_SUPPORTED, api.NVML_ERROR_INVALID_ARGUMENT)
    for version in (2, 1):
        try:
            return api.nvmlDeviceGetGpuInstanceProfileInfo(device, number, version=version)
        except api.NVMLError as error:
            if error.value in unknown:
                return None
            if error.value not in older:
                raise
    return None


def read_mig_profiles(session: Session, device: Handle, *, memory_bytes: int | None) -> tuple[GpuInstanceProfile, ...]:
    """Returns profiles by slices, memory and name. Pods ask by name, so each name occurs once."""
    profiles = read_profiles(session, device)
    card_mib = (memory_bytes or 0) // MIB or max((profile.memory_mib for profile in profiles), default=0)
    found: dict[str, GpuInstanceProfile] = {}
    for profile in profiles:
        places = _placements(session, device, profile)
        if places:
            named = _named(profile, places, card_mib=card_mib)
            found.setdefault(named.name, named)
    return tuple(sorted(found.values(), key=lambda each: (each.slices, each.memory_mib, each.name)))


def _named(profile: NvmlProfile, placements: Sequence[MigPlacement], *, card_mib: int) -> GpuInstanceProfile:
    info = profile.info
    name = name_from_driver(text_of(getattr(info, "name", ""))) or profile_name(
        slices=info.sliceCount,
        memory_mib=profile.memory_mib,
        card_mib=card_mib,
        attribute=ATTRIBUTES.get(profile.number, ""),
    )
    return GpuInstanceProfile(
        name=name,
        profile_id=profile.id,
        slices=int(info.sliceCount),
        memory_mib=profile.memory_mib,
        multiprocessors=int(info.multiprocessorCount),
        instances=profile.instances,
        placements=tuple(placements),
        media_extensions=has_media_extensions(name),
    )


def _placements(session: Session, device: Handle, profile: NvmlProfile) -> list[MigPlacement]:
    api = session.api
    ask = api.nvmlDeviceGetGpuInstancePossiblePlacements
    count = ctypes.c_uint(0)
    if session.optional(ask, device, profile.id, None, ctypes.byref(count)) is None or not count.value:
        return []
    places = (api.c_nvmlGpuInstancePlacement_t * count.value)()
    ask(device, profile.id, places, ctypes.byref(count))
    return sorted(MigPlacement(int(place.start), int(place.size)) for place in places[: count.value])
