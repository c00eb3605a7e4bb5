"""GPU instances of one card: who is there, making one and taking one away.

A GPU instance gets one compute instance over all of it. What cannot be finished is taken back. Instances are found by
id, and destroyed only if they are still what the caller knew under it: ids are given out again.
"""

from __future__ import annotations

import ctypes
from typing import Any

from tessera.core.devices import MigPlacement
from tessera.node.inventory.cards import CardError, MigInstance, MigOffer
from tessera.node.inventory.nvml_mig_devices import mig_uuids
from tessera.node.inventory.nvml_mig_offers import read_profiles
from tessera.node.inventory.nvml_session import Handle, Session


def read_instances(session: Session, uuid: str) -> list[MigInstance]:
    """In order of placement; none on a card that is not in MIG mode. Of several compute instances the first counts."""
    device = session.card(uuid)
    with session.about(uuid, "listing its GPU instances"):
        uuids = mig_uuids(session, device)
        found = [
            _instance(session, uuid, handle, uuids)
            for profile in read_profiles(session, device)
            for handle in _gpu_instances(session, device, profile.id, profile.instances)
        ]
    return sorted(found, key=lambda each: (each.placement, each.gpu_instance))


def create_instance(session: Session, uuid: str, offer: MigOffer, placement: MigPlacement) -> MigInstance:
    """Exactly there, or CardError and nothing left behind."""
    api = session.api
    if placement not in offer.placements:
        raise CardError(uuid, f"{offer.name} cannot be put at {placement.start}, {placement.size} slices wide")
    device = session.card(uuid)
    with session.about(uuid, f"creating {offer.name} at slice {placement.start}"):
        place = api.c_nvmlGpuInstancePlacement_t(placement.start, placement.size)
        handle = api.nvmlDeviceCreateGpuInstanceWithPlacement(device, offer.profile_id, ctypes.byref(place))
    try:
        with session.about(uuid, f"finishing {offer.name} at slice {placement.start}"):
            api.nvmlGpuInstanceCreateComputeInstance(handle, _widest_profile(session, uuid, handle))
            made = _instance(session, uuid, handle, mig_uuids(session, device))
        if made.mig_uuid is None or made.placement != placement:
            raise CardError(uuid, f"{offer.name} did not come up as a MIG device at slice {placement.start}")
    except CardError as error:
        left = _take_back(session, uuid, handle)
        if left:
            raise CardError(uuid, f"{error.problem}; {left}, so it is still there") from error.__cause__
        raise
    return made


def destroy_instance(session: Session, instance: MigInstance) -> None:
    """The compute instances, then the GPU instance. One that is gone already is no error."""
    api = session.api
    device = session.card(instance.uuid)
    with session.about(instance.uuid, f"destroying GPU instance {instance.gpu_instance}"):
        try:
            handle = api.nvmlDeviceGetGpuInstanceById(device, instance.gpu_instance)
        except api.NVMLError as error:
            if session.is_not_found(error) or session.is_absence(error):
                return
            raise
        now = _instance(session, instance.uuid, handle, {})
        if (now.profile_id, now.placement) != (instance.profile_id, instance.placement):
            raise CardError(instance.uuid, f"GPU instance {instance.gpu_instance} is another one by now")
        _destroy(session, handle)


def _destroy(session: Session, handle: Handle) -> None:
    for _, compute in _compute_instances(session, handle):
        session.api.nvmlComputeInstanceDestroy(compute)
    session.api.nvmlGpuInstanceDestroy(handle)


def _take_back(session: Session, uuid: str, handle: Handle) -> str:
    """Why a half-made instance could not be destroyed; empty once it is gone."""
    try:
        with session.about(uuid, "taking it back"):
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
    """Each with whether it has all slices of its GPU instance."""
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
            # The first form of the struct holds all that is needed and is known to every driver with MIG.
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
