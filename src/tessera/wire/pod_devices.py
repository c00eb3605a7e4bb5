"""Annotations of a bound pod: which slices its containers got, their MIG instances, and what its ResourceClaims held.

`…-devices-to-allocate` and `…-devices-allocated` have one entry per container, init containers first: the position
identifies the container. HAMi's plugins append empty entries when they allocate, so compare positions, never lengths.

A MIG reservation (`hami.io/vgpu-mig-allocations`, or the older notation inside device ids) says which instance a
container gets on which card. The agent adds the instance's ids, all at once, when it has created the instance. The
choice of placements is in `core.mig`.

`tessera.io/claim-devices` is written by the Binding. A claim, its status and its finalizer can be edited or deleted
while the pod runs; the pod's own record says what it uses all the same, also to a scheduler that starts later.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import msgspec

from tessera.core.model.devices import MigPlacement, MigSlot
from tessera.wire import golang
from tessera.wire.errors import WireError, quoted
from tessera.wire.golang import INT32_MAX, counter, parse_integer

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
    found = golang.decode_array(text, _Wire, what="the MIG annotation", member="MIG allocation")
    return _checked(map(_allocation, found))


def encode_mig_allocations(allocations: Iterable[MigAllocation]) -> str:
    """In order of containers, then of devices."""
    ordered = sorted(_checked(allocations), key=lambda a: (a.container, a.device))
    return golang.encode([_object(allocation) for allocation in ordered])


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


CONTAINER_END = ";"
DEVICE_END = ":"
FIELD_SEPARATOR = ","
_SEPARATORS = re.compile(f"[{CONTAINER_END}{DEVICE_END}{FIELD_SEPARATOR}]")
_FIELDS = 4

MAX_ENTRIES = 5_000
"""devices of one pod, as for allocations of pods (`vendors.pod_reader`)"""

Amount = Annotated[int, msgspec.Meta(ge=0, le=INT32_MAX)]


class DeviceEntry(NamedTuple):
    uuid: str
    word: str
    """the vendor's key, or the model where a vendor writes that"""
    memory: int
    """MiB"""
    cores: int


def has_separator(text: str) -> bool:
    """Whether the text contains a separator of this annotation."""
    return _SEPARATORS.search(text) is not None


def encode_pod_devices(containers: Sequence[Sequence[DeviceEntry]]) -> str:
    pieces = []
    for container in containers:
        for entry in container:
            pieces.append(_encoded(entry))
        pieces.append(CONTAINER_END)
    return "".join(pieces)


def decode_pod_devices(text: str) -> list[list[DeviceEntry]]:
    """The entries of every container; one unreadable entry refuses the whole text."""
    containers, problems = salvage_pod_devices(text)
    if problems:
        raise WireError(problems[0])
    return containers


def salvage_pod_devices(text: str) -> tuple[list[list[DeviceEntry]], list[str]]:
    """The readable entries, each at its container's position, and a message for each unreadable one."""
    problems: list[str] = []
    containers = [_readable(piece, problems) for piece in text.split(CONTAINER_END)]
    if not containers[-1]:
        containers.pop()
    return containers, problems


def _readable(container: str, problems: list[str]) -> list[DeviceEntry]:
    entries = []
    for piece in container.split(DEVICE_END):
        # Some HAMi versions wrote other things between these separators.
        if FIELD_SEPARATOR not in piece:
            continue
        try:
            entry = _decoded(piece)
        except WireError as error:
            problems.append(f"{error}")
        else:
            if entry is not None:
                entries.append(entry)
    return entries


def _decoded(piece: str) -> DeviceEntry | None:
    """One device; None for an entry without a uuid."""
    fields = piece.split(FIELD_SEPARATOR)
    if len(fields) < _FIELDS:
        raise WireError(
            "pod annotation format error, missing fields, do not use nodeName in task spec:"
            f" {quoted(piece)} has {len(fields)} of {_FIELDS} fields"
        )
    uuid, word, memory, cores = fields[:_FIELDS]
    if not uuid:
        return None
    try:
        return DeviceEntry(uuid, word, counter(memory, "memory"), counter(cores, "core"))
    except WireError as error:
        raise WireError(f"{error} (device {quoted(uuid)})") from error


def _encoded(entry: DeviceEntry) -> str:
    if not entry.uuid or has_separator(entry.uuid) or has_separator(entry.word):
        raise WireError(
            f"device {quoted(entry.uuid)} of type {quoted(entry.word)} cannot be written in a pod annotation"
        )
    if not (0 <= entry.memory <= INT32_MAX and 0 <= entry.cores <= INT32_MAX):
        raise WireError(f"device {quoted(entry.uuid)}: {entry.memory} MiB and {entry.cores} cores are out of range")
    return FIELD_SEPARATOR.join((entry.uuid, entry.word, str(entry.memory), str(entry.cores))) + DEVICE_END


class ClaimDevice(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A part of one card."""

    uuid: Annotated[str, msgspec.Meta(min_length=1)]
    memory: Amount
    """MiB"""
    cores: Amount
    profile: str = ""
    """of a MIG instance; then the next two say where it is"""
    start: Amount = 0
    size: Amount = 0

    @property
    def slot(self) -> MigSlot | None:
        return MigSlot(self.profile, MigPlacement(self.start, self.size)) if self.profile else None


_decoder = msgspec.json.Decoder(dict[str, tuple[ClaimDevice, ...]])


def encode_claim_devices(devices: Mapping[str, Sequence[ClaimDevice]]) -> str:
    """Encodes the devices of claims, by their uids."""
    return msgspec.json.encode({uid: devices[uid] for uid in sorted(devices)}).decode()


def decode_claim_devices(text: str) -> dict[str, tuple[ClaimDevice, ...]]:
    """Raises WireError: what cannot be read must not count as nothing."""
    if (count := text.count("{")) > MAX_ENTRIES:
        raise WireError(f"the devices of its claims have {count} entries; at most {MAX_ENTRIES}")
    try:
        return _decoder.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise WireError(f"the devices of its claims, {quoted(text)}, cannot be read: {error}") from error
