"""MIG reservations: the `hami.io/vgpu-mig-allocations` annotation, and the older notation inside device ids.

A reservation says which instance a container gets on which card. The agent adds the instance's ids, all at once, when
it has created the instance. The choice of placements is in `core.mig`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec

from tessera.core.model.devices import MigPlacement, MigSlot
from tessera.wire import gojson
from tessera.wire.errors import WireError
from tessera.wire.integers import INT32_MAX, parse_integer

_LEGACY = re.compile(r"([^\[\]]*)\[([0-9]+)-([0-9]+)\]")


@dataclass(frozen=True, slots=True)
class MigAllocation:
    """One instance of one container. The three identifying fields are all known or all None."""

    container: int
    """position in the pod, init containers first"""
    device: int
    """position among the container's devices"""
    uuid: str
    """of the card"""
    slot: MigSlot
    mig_uuid: str | None = None
    gpu_instance: int | None = None
    compute_instance: int | None = None


InstanceId = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]


class _Placement(msgspec.Struct, frozen=True):
    start: int = 0
    size: int = 0


class _Wire(msgspec.Struct, frozen=True):
    containerIndex: int = 0
    deviceIndex: int = 0
    gpuUUID: str = ""
    profile: str = ""
    placement: _Placement = _Placement()
    migUUID: str = ""
    gpuInstanceID: InstanceId | None = None
    computeInstanceID: InstanceId | None = None


def decode_mig_allocations(text: str) -> tuple[MigAllocation, ...]:
    """A pod's reservations in the order of the annotation; none for an empty text."""
    if not text:
        return ()
    found = gojson.decode_array(text, _Wire, what="the MIG annotation", member="MIG allocation")
    return _checked(map(_allocation, found))


def encode_mig_allocations(allocations: Iterable[MigAllocation]) -> str:
    """In order of containers, then of devices."""
    ordered = sorted(_checked(allocations), key=lambda a: (a.container, a.device))
    return gojson.encode([_object(allocation) for allocation in ordered])


def split_legacy_uuid(uuid: str) -> tuple[str, tuple[int, int] | None]:
    """Split HAMi v2.5 to v2.9's `<card>[<geometry>-<slot>]` into the card and, if present, (geometry, slot)."""
    found = _LEGACY.match(uuid)
    if found is None:
        return uuid, None
    geometry, slot = parse_integer(found[2]), parse_integer(found[3])
    return (uuid, None) if geometry is None or slot is None else (found[1], (geometry, slot))


def _allocation(wire: _Wire) -> MigAllocation:
    return MigAllocation(
        container=wire.containerIndex,
        device=wire.deviceIndex,
        uuid=wire.gpuUUID,
        slot=MigSlot(wire.profile, MigPlacement(wire.placement.start, wire.placement.size)),
        mig_uuid=wire.migUUID or None,
        gpu_instance=wire.gpuInstanceID,
        compute_instance=wire.computeInstanceID,
    )


def _checked(allocations: Iterable[MigAllocation]) -> tuple[MigAllocation, ...]:
    """The same allocations, after checking that each is complete and that no device has two."""
    known: dict[tuple[int, int], MigAllocation] = {}
    for position, allocation in enumerate(allocations):
        if not _is_complete(allocation):
            raise WireError(f"MIG allocation {position} is incomplete")
        identity = (allocation.mig_uuid or None, allocation.gpu_instance, allocation.compute_instance)
        if identity.count(None) not in (0, len(identity)):
            raise WireError(f"MIG allocation {position} has partial runtime identity")
        key = (allocation.container, allocation.device)
        if key in known:
            raise WireError(f"duplicate MIG allocation for container {key[0]} device {key[1]}")
        known[key] = allocation
    return tuple(known.values())


def _is_complete(allocation: MigAllocation) -> bool:
    place = allocation.slot.placement
    numbers = (allocation.container, allocation.device, place.start, place.size)
    in_range = all(0 <= number <= INT32_MAX for number in numbers)
    return bool(in_range and place.size and allocation.uuid and allocation.slot.profile)


def _object(allocation: MigAllocation) -> dict[str, Any]:
    place = allocation.slot.placement
    reserved: dict[str, Any] = {
        "containerIndex": allocation.container,
        "deviceIndex": allocation.device,
        "gpuUUID": allocation.uuid,
        "profile": allocation.slot.profile,
        "placement": {"start": place.start, "size": place.size},
    }
    if allocation.mig_uuid is None:
        return reserved
    return reserved | {
        "migUUID": allocation.mig_uuid,
        "gpuInstanceID": allocation.gpu_instance,
        "computeInstanceID": allocation.compute_instance,
    }
