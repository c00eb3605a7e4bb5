"""Whether a claim can become MIG instances at all, before anything is touched.

Every reservation must be for the card of its slice, of a kind and at a place that the card offers. The older notation
of geometries (HAMi v2.5 to v2.9) names neither, so such a pod can keep what it has but cannot get it anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from tessera.node.fleet import Fleet
from tessera.node.handover.claims import Claim
from tessera.node.modes.base import Refused
from tessera.node.modes.mig_creation import Wanted
from tessera.node.modes.mig_profiles import offer_for
from tessera.node.settings import AgentSettings
from tessera.wire.mig import MigAllocation, split_legacy_uuid
from tessera.wire.quotes import quoted


def wanted_of(
    claim: Claim, device_ids: Sequence[str], *, fleet: Fleet, settings: AgentSettings, certain: bool
) -> tuple[Wanted, ...]:
    """The instances to make, in order of devices. Raises Refused."""
    if not certain:
        raise Refused("a MIG instance is only made for a container that is known for certain")
    if claim.uses_downward_api and not any(strategy.is_cdi for strategy in settings.strategies):
        raise Refused(
            f"container {quoted(claim.container)} takes its devices from its pod's annotations, which would hide a MIG"
            " instance; annotate the pod with nvidia.com/vgpu-mode: mig before it is created"
        )
    if len(device_ids) != len(claim.slices):
        raise Refused(f"device number not matched: {len(device_ids)} asked for, {len(claim.slices)} granted")
    for entry in claim.slices:
        if split_legacy_uuid(entry.uuid)[1] is not None:
            raise Refused(
                f"{quoted(entry.uuid)} is a MIG geometry of HAMi v2.9 or older, which cannot be made any more:"
                " drain the node, so that its pods are scheduled anew"
            )
    reserved = sorted(claim.mig, key=lambda each: each.device)
    if len(reserved) != len(claim.slices):
        raise Refused(f"pod {claim.pod} has {len(reserved)} MIG reservations for {len(claim.slices)} devices")
    for entry, each in zip(claim.slices, reserved, strict=True):
        if entry.uuid != each.uuid:
            raise Refused(f"the slice is of card {quoted(entry.uuid)}, its MIG reservation of card {quoted(each.uuid)}")
    _disjoint(reserved)
    return tuple(_wanted(claim, each, fleet) for each in reserved)


def _wanted(claim: Claim, reserved: MigAllocation, fleet: Fleet) -> Wanted:
    card = fleet.card(reserved.uuid)
    if card is None:
        raise Refused(f"card {quoted(reserved.uuid)} is not among this node's cards")
    if fleet.problem or not card.healthy:
        raise Refused(f"card {reserved.uuid} takes no work: {fleet.problem or card.problem}")
    return Wanted(claim.pod, reserved, offer_for(card.facts, reserved.slot))


def _disjoint(reserved: Sequence[MigAllocation]) -> None:
    for one, other in combinations(reserved, 2):
        if one.uuid == other.uuid and one.slot.placement.overlaps(other.slot.placement):
            raise Refused(f"two MIG reservations of one container overlap on card {one.uuid}")
