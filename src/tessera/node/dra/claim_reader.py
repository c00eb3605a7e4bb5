"""From a ResourceClaim as the API shows it to the slices that the sharing modes know: pure.

Each request of a claim becomes one `Assignment`, as a container's slices do on the classic path. How much it gets is
what the scheduler wrote as consumed, read by the scheduler's own rule, never what was requested. An administrator's
access holds nothing, so it has none. A claim that cannot be served exactly is refused.

So is a container that would use several requests for cards at once: it is told its cards and limits by variables, so
those of a second request would replace those of the first, and it would run without a slice that it was granted.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from tessera.node.dra.offers import Offer
from tessera.node.handover.assignments import Assignment, ObjectKey
from tessera.node.modes.base import AllocationRefused
from tessera.vendors.claims.allocations import consumed_amounts, whole_amounts
from tessera.vendors.nvidia import Nvidia
from tessera.wire.errors import quoted
from tessera.wire.pod_devices import DeviceEntry, MigAllocation
from tessera.wire.resource_api import DRIVER, AllocatedDevice, ClaimingPod, ResourceClaim


@dataclass(frozen=True, slots=True)
class RequestPart:
    """One request of a claim with devices of this node."""

    name: str
    assignment: Assignment | None
    """None for an administrator's access to cards"""
    devices: tuple[AllocatedDevice, ...]
    cards: tuple[str, ...]
    """uuids, one per device"""


def allocated_here(claim: ResourceClaim, *, node: str) -> tuple[AllocatedDevice, ...]:
    """What is allocated to a claim of this node's pool."""
    return tuple(each for each in claim.devices_of(DRIVER) if each.pool == node)


def by_request(devices: Sequence[AllocatedDevice]) -> tuple[AllocatedDevice, ...]:
    """The devices of one request after the other."""
    return tuple(sorted(devices, key=lambda each: each.request_name))


def read_claim(claim: ResourceClaim, offered: Mapping[str, Offer], *, node: str) -> tuple[RequestPart, ...]:
    """Returns the claim's requests in order, with devices that are `offered`, by name. Raises AllocationRefused."""
    key = ObjectKey(claim.metadata.namespace, claim.metadata.name, claim.metadata.uid)
    devices = by_request(allocated_here(claim, node=node))
    if not devices:
        raise AllocationRefused(f"ResourceClaim {key} has no device of node {node}")
    names = dict.fromkeys(each.request_name for each in devices)
    return tuple(
        _part(key, position, name, tuple(each for each in devices if each.request_name == name), offered)
        for position, name in enumerate(names)
    )


def _part(
    key: ObjectKey, position: int, name: str, devices: tuple[AllocatedDevice, ...], offered: Mapping[str, Offer]
) -> RequestPart:
    slices: list[DeviceEntry] = []
    reserved: list[MigAllocation] = []
    cards: list[str] = []
    admin = [each for each in devices if each.admin_access]
    if admin and len(admin) < len(devices):
        raise AllocationRefused(f"request {name} is allocated with and without adminAccess")
    for each in devices:
        offer = offered.get(each.device)
        if offer is None:
            raise AllocationRefused(f"device {quoted(each.device)} is not among this node's devices")
        cards.append(offer.uuid)
        if admin:
            # Also of a card that takes no work: that is when administrators look.
            if offer.slot is not None:
                raise AllocationRefused(f"device {each.device}: adminAccess is for whole cards, not for MIG instances")
            continue
        if not offer.card.healthy:
            raise AllocationRefused(f"card {offer.uuid} takes no work: {offer.card.problem}")
        if offer.slot is not None:
            reserved.append(MigAllocation(position, len(slices), offer.uuid, offer.slot))
        slices.append(_slice(each, offer))
    assignment = None
    if not admin:
        assignment = Assignment(key, position, name, tuple(slices), mig=tuple(reserved), of_resource_claim=True)
    return RequestPart(name, assignment, devices, tuple(cards))


def assignments_of(parts: Sequence[RequestPart]) -> tuple[Assignment, ...]:
    """What the requests hold."""
    return tuple(part.assignment for part in parts if part.assignment is not None)


def _slice(device: AllocatedDevice, offer: Offer) -> DeviceEntry:
    whole = whole_amounts(offer.memory, offer.cores, slot=offer.slot)
    amounts = consumed_amounts(device, whole, shared=offer.shared)
    if isinstance(amounts, str):
        raise AllocationRefused(amounts)
    return DeviceEntry(offer.uuid, Nvidia.key, amounts.memory, amounts.cores)


def other_claims(pod: ClaimingPod, claim: str) -> set[str]:
    """The names of the claims that a container uses beside this one."""
    names = pod.claim_names
    found: set[str] = set()
    for container in pod.all_containers:
        used = {names[each.name] for each in container.resources.claims or () if each.name in names}
        if claim in used:
            found |= used - {claim}
    return found


def find_conflict(pod: ClaimingPod, claim: str, requests: Mapping[str, Collection[str]]) -> str:
    """Returns why a container of the pod cannot use the claim; empty if all can.

    `requests` are the names of requests with this node's cards, by claim; claims without any may be missing."""
    names = pod.claim_names
    for container in pod.all_containers:
        used = {
            (named, request)
            for each in container.resources.claims or ()
            if (named := names.get(each.name)) is not None
            for request in filter(each.names, requests.get(named, ()))
        }
        if len(used) > 1 and any(named == claim for named, _ in used):
            listed = ", ".join(sorted(f"{request} of {named}" for named, request in used))
            return (
                f"container {container.name} of pod {pod.metadata.name} uses {len(used)} requests for cards ({listed}),"
                " and can use one: write one request with a count, or name one request for each container"
            )
    return ""
