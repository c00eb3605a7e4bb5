"""The GPU instances that an assignment asks for, checked before any hardware is touched.

Each reservation must be for the card of its slice, with a profile and placement that the card supports. Profile names
are the driver's, `+me` included. Names that older allow lists made up (`7g.79gb`) are matched by slices and memory. The
older geometry notation (HAMi v2.5 to v2.9) names neither profile nor placement: such a pod keeps what it has, but its
instances cannot be created again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from tessera.core.devices import MigSlot
from tessera.host.cards import CardFacts, GpuInstanceProfile
from tessera.host.mig_profile_names import NAMED_ALIKE_MIB, find_profile
from tessera.node.fleet import Fleet
from tessera.node.handover.assignments import Assignment, ObjectKey
from tessera.node.modes.base import AllocationRefused
from tessera.node.settings import AgentSettings
from tessera.wire.mig import MigAllocation, split_legacy_uuid
from tessera.wire.quotes import quoted


@dataclass(frozen=True, slots=True)
class InstanceRequest:
    """One reservation of an assignment, with the profile that it means."""

    pod: ObjectKey
    allocation: MigAllocation
    profile: GpuInstanceProfile


def requests_of(
    assignment: Assignment, device_ids: Sequence[str], *, fleet: Fleet, settings: AgentSettings, certain: bool
) -> tuple[InstanceRequest, ...]:
    """Returns the instances to create, in order of devices. Raises AllocationRefused."""
    if not certain:
        raise AllocationRefused("a MIG instance is created only if it is certain which container it is for")
    if assignment.uses_downward_api and not any(strategy.is_cdi for strategy in settings.strategies):
        raise AllocationRefused(
            f"container {quoted(assignment.container)} takes its devices from its pod's annotations, which would hide a"
            " MIG instance; annotate the pod with nvidia.com/vgpu-mode: mig before it is created"
        )
    if len(device_ids) != len(assignment.slices):
        raise AllocationRefused(
            f"device number not matched: {len(device_ids)} asked for, {len(assignment.slices)} granted"
        )
    for entry in assignment.slices:
        if split_legacy_uuid(entry.uuid)[1] is not None:
            raise AllocationRefused(
                f"{quoted(entry.uuid)} is a MIG geometry of HAMi v2.9 or older, which cannot be created any more:"
                " drain the node, so that its pods are scheduled again"
            )
    reserved = sorted(assignment.mig, key=lambda each: each.device)
    if len(reserved) != len(assignment.slices):
        raise AllocationRefused(
            f"pod {assignment.pod} has {len(reserved)} MIG reservations for {len(assignment.slices)} devices"
        )
    for entry, each in zip(assignment.slices, reserved, strict=True):
        if entry.uuid != each.uuid:
            raise AllocationRefused(
                f"the slice is of card {quoted(entry.uuid)}, its MIG reservation of card {quoted(each.uuid)}"
            )
    for one, other in combinations(reserved, 2):
        if one.uuid == other.uuid and one.slot.placement.overlaps(other.slot.placement):
            raise AllocationRefused(f"two MIG reservations of one container overlap on card {one.uuid}")
    return tuple(_request(assignment, each, fleet) for each in reserved)


def _request(assignment: Assignment, reserved: MigAllocation, fleet: Fleet) -> InstanceRequest:
    card = fleet.card(reserved.uuid)
    if card is None:
        raise AllocationRefused(f"card {quoted(reserved.uuid)} is not among this node's cards")
    if fleet.problem or not card.healthy:
        raise AllocationRefused(f"card {reserved.uuid} takes no work: {fleet.problem or card.problem}")
    return InstanceRequest(assignment.pod, reserved, profile_for(card.facts, reserved.slot))


def profile_for(facts: CardFacts, slot: MigSlot) -> GpuInstanceProfile:
    """Returns the profile to create for a reservation. Raises AllocationRefused if the card does not support it."""
    profile = find_profile(facts.mig_profiles, slot.profile, within_mib=NAMED_ALIKE_MIB)
    if profile is None:
        known = ", ".join(each.name for each in facts.mig_profiles) or "none"
        raise AllocationRefused(
            f"card {facts.uuid} offers no MIG profile {quoted(slot.profile)}; its profiles: {known}"
        )
    if slot.placement not in profile.placements:
        raise AllocationRefused(
            f"card {facts.uuid} has no place for MIG profile {profile.name} at slice {slot.placement.start}"
            f" over {slot.placement.size} slices"
        )
    return profile
