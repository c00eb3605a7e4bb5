"""GPU instance profiles, GPU instances and MIG mode of one card.

Every profile number that NVML defines is tried; a card that is not in MIG mode may know none of them. Names come from
the driver if it gives them, otherwise from the profile's attributes.

A GPU instance gets one compute instance that spans all of it. A half-created instance is destroyed again. Instances are
found by id, and destroyed only if profile and placement still match: NVML reuses ids.

    off --enable--> on          at once
    off --enable--> pending     the card is in use or needs a reset: refused, and the request is withdrawn

A mode change that another program left pending is refused and not touched.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from tessera.core.model.devices import MigPlacement
from tessera.host.cards import (
    ATTRIBUTES,
    MIB,
    CardError,
    GpuInstanceProfile,
    MigInstance,
    has_media_extensions,
    name_from_driver,
    profile_name,
)
from tessera.host.nvml.session import Handle, Session, text_of


def read_profiles(session: Session, device: Handle) -> dict[int, Any]:
    """Returns what NVML says about each profile that the card knows, by its number in NVML's enumeration."""
    numbers = range(session.api.NVML_GPU_INSTANCE_PROFILE_COUNT)
    infos = ((number, _info(session, device, number)) for number in numbers)
    return {number: info for number, info in infos if info is not None}


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
    card_mib = (memory_bytes or 0) // MIB or max((int(info.memorySizeMB) for info in profiles.values()), default=0)
    found: dict[str, GpuInstanceProfile] = {}
    for number, info in profiles.items():
        places = _placements(session, device, int(info.id))
        if places:
            named = _named(info, places, card_mib=card_mib, attribute=ATTRIBUTES.get(number, ""))
            found.setdefault(named.name, named)
    return tuple(sorted(found.values(), key=lambda each: (each.slices, each.memory_mib, each.name)))


def _named(info: Any, placements: Sequence[MigPlacement], *, card_mib: int, attribute: str) -> GpuInstanceProfile:
    slices, memory_mib = int(info.sliceCount), int(info.memorySizeMB)
    name = name_from_driver(text_of(getattr(info, "name", ""))) or profile_name(
        slices=slices, memory_mib=memory_mib, card_mib=card_mib, attribute=attribute
    )
    return GpuInstanceProfile(
        name=name,
        profile_id=int(info.id),
        slices=slices,
        memory_mib=memory_mib,
        multiprocessors=int(info.multiprocessorCount),
        instances=int(info.instanceCount),
        placements=tuple(placements),
        media_extensions=has_media_extensions(name),
    )


def _placements(session: Session, device: Handle, profile_id: int) -> list[MigPlacement]:
    api = session.api
    ask = api.nvmlDeviceGetGpuInstancePossiblePlacements
    count = ctypes.c_uint(0)
    if session.optional(ask, device, profile_id, None, ctypes.byref(count)) is None or not count.value:
        return []
    places = (api.c_nvmlGpuInstancePlacement_t * count.value)()
    ask(device, profile_id, places, ctypes.byref(count))
    return sorted(MigPlacement(int(place.start), int(place.size)) for place in places[: count.value])


def read_instances(session: Session, uuid: str) -> list[MigInstance]:
    """Returns instances by placement; none if the card is not in MIG mode. The first compute instance counts."""
    device = session.card(uuid)
    with session.about(uuid, "listing its GPU instances"):
        uuids = mig_uuids(session, device)
        found = [
            _instance(session, uuid, handle, uuids)
            for info in read_profiles(session, device).values()
            for handle in _gpu_instances(session, device, int(info.id), int(info.instanceCount))
        ]
    return sorted(found, key=lambda each: (each.placement, each.gpu_instance))


def create_instance(session: Session, uuid: str, profile: GpuInstanceProfile, placement: MigPlacement) -> MigInstance:
    """Creates an instance at exactly this placement. Raises CardError and then leaves nothing behind."""
    api = session.api
    if placement not in profile.placements:
        raise CardError(uuid, f"{profile.name} cannot be put at {placement.start}, {placement.size} slices wide")
    device = session.card(uuid)
    with session.about(uuid, f"creating {profile.name} at slice {placement.start}"):
        place = api.c_nvmlGpuInstancePlacement_t(placement.start, placement.size)
        handle = api.nvmlDeviceCreateGpuInstanceWithPlacement(device, profile.profile_id, ctypes.byref(place))
    try:
        with session.about(uuid, f"finishing {profile.name} at slice {placement.start}"):
            api.nvmlGpuInstanceCreateComputeInstance(handle, _widest_profile(session, uuid, handle))
            made = _instance(session, uuid, handle, mig_uuids(session, device))
        if made.mig_uuid is None or made.placement != placement:
            raise CardError(uuid, f"{profile.name} did not come up as a MIG device at slice {placement.start}")
    except CardError as error:
        left = _take_back(session, uuid, handle)
        if left:
            raise CardError(uuid, f"{error.problem}; {left}, so it is still there") from error.__cause__
        raise
    return made


def destroy_instance(session: Session, instance: MigInstance) -> None:
    """Destroys the compute instances, then the GPU instance. An instance that is already gone is no error."""
    api = session.api
    device = session.card(instance.uuid)
    with session.about(instance.uuid, f"destroying GPU instance {instance.gpu_instance}"):
        try:
            handle = api.nvmlDeviceGetGpuInstanceById(device, instance.gpu_instance)
        except api.NVMLError as error:
            if session.is_not_found(error) or session.is_unsupported(error):
                return
            raise
        now = _instance(session, instance.uuid, handle, {})
        if (now.profile_id, now.placement) != (instance.profile_id, instance.placement):
            raise CardError(instance.uuid, f"GPU instance {instance.gpu_instance} is now a different one")
        _destroy(session, handle)


def _destroy(session: Session, handle: Handle) -> None:
    for _, compute in _compute_instances(session, handle):
        session.api.nvmlComputeInstanceDestroy(compute)
    session.api.nvmlGpuInstanceDestroy(handle)


def _take_back(session: Session, uuid: str, handle: Handle) -> str:
    """Destroys a half-created instance. Returns why that failed; empty on success."""
    try:
        with session.about(uuid, "destroying it again"):
            _destroy(session, handle)
    except CardError as error:
        return error.problem
    return ""


def _instance(session: Session, uuid: str, handle: Handle, uuids: dict[tuple[int, int], str]) -> MigInstance:
    api = session.api
    info = api.nvmlGpuInstanceGetInfo(handle)
    computes = _compute_instances(session, handle)
    compute = min((int(api.nvmlComputeInstanceGetInfo(each).id) for _, each in computes), default=None)
    return MigInstance(
        uuid=uuid,
        gpu_instance=int(info.id),
        profile_id=int(info.profileId),
        placement=MigPlacement(int(info.placement.start), int(info.placement.size)),
        compute_instance=compute,
        mig_uuid=None if compute is None else uuids.get((int(info.id), compute)),
        divided=any(not whole for whole, _ in computes),
    )


def _gpu_instances(session: Session, device: Handle, profile_id: int, most: int) -> list[Handle]:
    api = session.api
    count = ctypes.c_uint(0)
    handles = (api.c_nvmlGpuInstance_t * most)()
    if session.optional(api.nvmlDeviceGetGpuInstances, device, profile_id, handles, ctypes.byref(count)) is None:
        return []
    return list(handles[: count.value])


def _compute_instances(session: Session, handle: Handle) -> list[tuple[bool, Handle]]:
    """Returns each with whether it has all slices of its GPU instance."""
    api = session.api
    found: list[tuple[bool, Handle]] = []
    profiles = _compute_profiles(session, handle)
    widest = max((info.sliceCount for info in profiles), default=0)
    for info in profiles:
        count = ctypes.c_uint(0)
        handles = (api.c_nvmlComputeInstance_t * info.instanceCount)()
        api.nvmlGpuInstanceGetComputeInstances(handle, info.id, handles, ctypes.byref(count))
        found.extend((info.sliceCount == widest, each) for each in handles[: count.value])
    return found


def _compute_profiles(session: Session, handle: Handle) -> list[Any]:
    api = session.api
    unknown = (api.NVML_ERROR_NOT_SUPPORTED, api.NVML_ERROR_INVALID_ARGUMENT)
    found = []
    for number in range(api.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
        try:
            # Version 1 of the struct is enough, and every driver with MIG knows it.
            info = api.nvmlGpuInstanceGetComputeInstanceProfileInfo(
                handle, number, api.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED, version=1
            )
        except api.NVMLError as error:
            if error.value not in unknown:
                raise
            continue
        found.append(info)
    return found


def _widest_profile(session: Session, uuid: str, handle: Handle) -> int:
    profiles = _compute_profiles(session, handle)
    if not profiles:
        raise CardError(uuid, "the GPU instance knows no compute instances")
    return int(max(profiles, key=lambda each: (each.sliceCount, each.multiprocessorCount, -each.id)).id)


def mig_uuids(session: Session, device: Handle) -> dict[tuple[int, int], str]:
    """Returns uuids by the ids of GPU instance and compute instance."""
    api = session.api
    return {
        (
            int(api.nvmlDeviceGetGpuInstanceId(each)),
            int(api.nvmlDeviceGetComputeInstanceId(each)),
        ): text_of(api.nvmlDeviceGetUUID(each))
        for each in _mig_devices(session, device)
    }


def _mig_devices(session: Session, device: Handle) -> Iterator[Handle]:
    api = session.api
    for index in range(session.optional(api.nvmlDeviceGetMaxMigDeviceCount, device) or 0):
        try:
            yield api.nvmlDeviceGetMigDeviceHandleByIndex(device, index)
        except api.NVMLError as error:
            # Indexes may have gaps, and a card that is not in MIG mode has none.
            if not session.is_not_found(error) and not session.is_unsupported(error):
                raise


def has_processes(session: Session, uuid: str) -> bool:
    """Also returns True if that cannot be determined."""
    try:
        device = session.card(uuid)
        with session.about(uuid, "listing its processes"):
            return any(_in_use(session, each) for each in (device, *_mig_devices(session, device)))
    except CardError:
        return True


def _in_use(session: Session, device: Handle) -> bool:
    api = session.api
    # Many cards and all MIG devices do not support the graphics call; all support the compute call.
    return bool(
        api.nvmlDeviceGetComputeRunningProcesses_v3(device)
        or session.optional(api.nvmlDeviceGetGraphicsRunningProcesses_v3, device)
    )


def read_mode(session: Session, uuid: str) -> bool:
    with session.about(uuid, "reading its MIG mode"):
        current, _pending = session.api.nvmlDeviceGetMigMode(session.card(uuid))
    return bool(current == session.api.NVML_DEVICE_MIG_ENABLE)


def switch_mode(session: Session, uuid: str, *, on: bool) -> bool:
    """Returns whether the mode changed. Raises CardError."""
    api = session.api
    word = "enable" if on else "disable"
    wanted = api.NVML_DEVICE_MIG_ENABLE if on else api.NVML_DEVICE_MIG_DISABLE
    device = session.card(uuid)
    with session.about(uuid, "reading its MIG mode"):
        current, pending = api.nvmlDeviceGetMigMode(device)
    if current != pending:
        wish = "enable" if pending == api.NVML_DEVICE_MIG_ENABLE else "disable"
        raise CardError(uuid, f"mig mode {wish} is pending; GPU reset required")
    if current == wanted:
        return False
    if not on and read_instances(session, uuid):
        raise CardError(uuid, "mig mode cannot be disabled while GPU instances exist")
    with session.about(uuid, f"mig mode {word}"):
        status = api.nvmlDeviceSetMigMode(device, wanted)
    # The switch may have reset the card, so its handle must be looked up again.
    if read_mode(session, uuid) == on:
        return True
    with suppress(api.NVMLError, CardError):
        api.nvmlDeviceSetMigMode(session.card(uuid), current)
    why = f" ({api.NVMLError(status)})" if status else ""
    raise CardError(uuid, f"mig mode {word} would need a GPU reset{why}")
