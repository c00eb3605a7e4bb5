"""Instances that completed reservations name but no record has: made by HAMi's plugin, or before the record was lost.

All of GPU instance, place, compute instance and MIG uuid must be as the reservation says. Each reservation is judged on
its own: one that does not fit is reported, once, and left alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import structlog

from tessera.node.fleet import Fleet
from tessera.node.handover.claims import Claim, PodKey
from tessera.node.inventory.cards import InventoryError, MigHardware, MigInstance
from tessera.node.modes.mig_ownership import Owned, Purpose, owned_as
from tessera.node.modes.mig_records import Records
from tessera.wire.mig import MigAllocation

log = structlog.get_logger(__name__)


def named_instance(
    pod: PodKey, allocation: MigAllocation, seen: Sequence[MigInstance], records: Records
) -> Owned | str:
    """The instance that a completed reservation names, or why it is not there for the taking."""
    found = next((each for each in seen if each.gpu_instance == allocation.gpu_instance), None)
    if found is None:
        return f"GPU instance {allocation.gpu_instance} is not there"
    if found.placement != allocation.slot.placement:
        return f"GPU instance {allocation.gpu_instance} is at another place"
    if (found.compute_instance, found.mig_uuid) != (allocation.compute_instance, allocation.mig_uuid):
        return f"GPU instance {allocation.gpu_instance} has another compute instance"
    owner = next((each for each in records.all() if each.is_at(found)), None)
    if owner is not None:
        return f"GPU instance {allocation.gpu_instance} belongs to pod {owner.pod}"
    return owned_as(pod, allocation, found)


class Adopting:
    def __init__(self, hardware: MigHardware, records: Records) -> None:
        self._hardware = hardware
        self._records = records
        self._told: dict[Purpose, str] = {}

    def adopt(self, claims: Iterable[Claim], fleet: Fleet) -> None:
        """Take over what live pods have and nobody wrote down."""
        told: dict[Purpose, str] = {}
        for claim in sorted(claims, key=lambda each: (each.pod, each.position)):
            for allocation in claim.mig:
                purpose = Purpose(
                    claim.pod.uid, allocation.container, allocation.device, allocation.uuid, allocation.slot
                )
                unknown = allocation.mig_uuid is not None and self._records.get(purpose) is None
                if not unknown or fleet.card(allocation.uuid) is None:
                    continue
                problem = self._adopt(claim.pod, allocation)
                if problem:
                    told[purpose] = problem
                    if self._told.get(purpose) != problem:
                        log.warning(
                            "a MIG reservation names no instance that can be taken over",
                            pod=str(claim.pod),
                            card=allocation.uuid,
                            mig=allocation.mig_uuid,
                            problem=problem,
                        )
        self._told = told

    def _adopt(self, pod: PodKey, allocation: MigAllocation) -> str:
        try:
            found = named_instance(pod, allocation, self._hardware.instances(allocation.uuid), self._records)
            if isinstance(found, str):
                return found
            self._records.put(found)
        except (InventoryError, OSError) as error:
            return str(error)
        log.info("a MIG instance is taken over", pod=str(pod), card=found.card, mig=found.mig_uuid)
        return ""
