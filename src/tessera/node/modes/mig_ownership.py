"""A MIG instance that belongs to the agent: which one it is, and for whom it was made."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from tessera.core.devices import MigPlacement, MigSlot
from tessera.node.handover.claims import PodKey
from tessera.node.inventory.cards import MigInstance
from tessera.wire.mig import MigAllocation


class Purpose(NamedTuple):
    """What an instance is for: one device of one container."""

    pod: str
    """uid"""
    container: int
    device: int
    card: str
    slot: MigSlot


@dataclass(frozen=True, slots=True)
class Owned:
    """One instance. The three identifying fields are all known, or all None while it is only intended."""

    pod: PodKey
    container: int
    device: int
    card: str
    slot: MigSlot
    profile_id: int
    gpu_instance: int | None = None
    compute_instance: int | None = None
    mig_uuid: str | None = None

    def __post_init__(self) -> None:
        identity = (self.gpu_instance, self.compute_instance, self.mig_uuid)
        if identity.count(None) not in (0, len(identity)) or self.mig_uuid == "":
            raise ValueError("an instance is named by all of its three ids or by none")

    @property
    def purpose(self) -> Purpose:
        return Purpose(self.pod.uid, self.container, self.device, self.card, self.slot)

    @property
    def intended(self) -> bool:
        return self.mig_uuid is None

    def is_whole(self, instance: MigInstance) -> bool:
        """Whether this is the very instance, with its compute instance. An intended one may be any at its place."""
        known = (self.gpu_instance, self.compute_instance, self.mig_uuid)
        seen = (instance.gpu_instance, instance.compute_instance, instance.mig_uuid)
        return self._is_there(instance) and None not in seen and (self.intended or seen == known)

    def is_rest(self, instance: MigInstance) -> bool:
        """Whether this is what was left of it by a making or a destroying that did not come to its end."""
        bare = instance.compute_instance is None and instance.mig_uuid is None
        return self._is_there(instance) and bare and (self.intended or instance.gpu_instance == self.gpu_instance)

    def is_at(self, instance: MigInstance) -> bool:
        return self.is_whole(instance) or self.is_rest(instance)

    def overlaps(self, card: str, place: MigPlacement) -> bool:
        return self.card == card and self.slot.placement.overlaps(place)

    def _is_there(self, instance: MigInstance) -> bool:
        here = (self.card, self.slot.placement, self.profile_id)
        return here == (instance.uuid, instance.placement, instance.profile_id)

    @property
    def instance(self) -> MigInstance | None:
        """As the hardware would name it; None while it is only intended."""
        if self.gpu_instance is None:
            return None
        return MigInstance(
            uuid=self.card,
            gpu_instance=self.gpu_instance,
            profile_id=self.profile_id,
            placement=self.slot.placement,
            compute_instance=self.compute_instance,
            mig_uuid=self.mig_uuid,
        )

    @property
    def allocation(self) -> MigAllocation:
        return MigAllocation(
            container=self.container,
            device=self.device,
            uuid=self.card,
            slot=self.slot,
            mig_uuid=self.mig_uuid,
            gpu_instance=self.gpu_instance,
            compute_instance=self.compute_instance,
        )


def intended_for(pod: PodKey, allocation: MigAllocation, profile_id: int) -> Owned:
    """The instance that is about to be made for a reservation."""
    return Owned(
        pod=pod,
        container=allocation.container,
        device=allocation.device,
        card=allocation.uuid,
        slot=allocation.slot,
        profile_id=profile_id,
    )


def owned_as(pod: PodKey, allocation: MigAllocation, instance: MigInstance) -> Owned:
    """The instance as the one of this reservation."""
    return replace(
        intended_for(pod, allocation, instance.profile_id),
        gpu_instance=instance.gpu_instance,
        compute_instance=instance.compute_instance,
        mig_uuid=instance.mig_uuid,
    )
