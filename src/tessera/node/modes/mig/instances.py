r"""Creates, adopts and releases the GPU instances that assignments of pods ask for.

    no record -> intended (recorded) -> created on the card -> complete (recorded)
        \                                  \
         +- the place is taken: refused     +- a later instance fails: destroyed again, newest first

A request is checked before any hardware is touched: it must be for the card of its slice, with a profile and placement
that the card supports. Profile names are the driver's, `+me` included. Names that older allow lists made up (`7g.79gb`)
are matched by slices and memory. The older geometry notation (HAMi v2.5 to v2.9) names neither profile nor placement:
such a pod keeps what it has, but its instances cannot be created again.

Only instances with a record are destroyed, and only if the instance is still the same one. A pod holds its instances
until it is terminal or deleted, so also while it terminates. Adoption records an instance that a completed reservation
names but no record has: HAMi's plugin created it, or the record was lost. Runs in the one thread that changes the
hardware.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

import structlog

from tessera.core.model.devices import MigSlot
from tessera.host.cards import (
    NAMED_ALIKE_MIB,
    CardError,
    CardFacts,
    GpuInstanceProfile,
    InventoryError,
    MigHardware,
    MigInstance,
    find_profile,
)
from tessera.kube.backoff import Backoff
from tessera.node.fleet import Fleet
from tessera.node.handover.assignments import Assignment, ObjectKey
from tessera.node.modes.base import AllocationRefused
from tessera.node.modes.mig.records import (
    InstanceRecord,
    MigRecords,
    RecordKey,
    completed_record,
    intended_record,
    record_key,
)
from tessera.node.settings import AgentSettings
from tessera.wire.errors import quoted
from tessera.wire.pod_devices import MigAllocation, split_legacy_uuid

log = structlog.get_logger(__name__)

RETRY = Backoff(initial=1.0, cap=60.0)
"""a pod's last process is gone within a second or two; a process that hangs may hang for days"""


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


class PlacementTaken(Exception):
    """An instance of the agent that may go soon has the place; the text says which."""


@dataclass(frozen=True, slots=True)
class InstanceHolders:
    """Which pods still need their instances."""

    pods: frozenset[str] | None
    """uids; None if they are unknown, so any pod may"""
    legacy: frozenset[str] = frozenset()
    """cards with pods of HAMi v2.5 to v2.9: their instances cannot be told apart, so nothing is released there"""

    def have_released(self, record: InstanceRecord) -> bool:
        return self.pods is not None and record.pod.uid not in self.pods and record.card not in self.legacy


def holders_of(assignments: Iterable[Assignment], *, besides: Collection[str] = ()) -> InstanceHolders:
    """Returns the holders for all live assignments; the uids in `besides` count as live as well."""
    given = tuple(assignments)
    split = (split_legacy_uuid(entry.uuid) for assignment in given for entry in assignment.slices)
    return InstanceHolders(
        pods=frozenset({assignment.pod.uid for assignment in given} | set(besides)),
        legacy=frozenset(card for card, geometry in split if geometry is not None),
    )


class FoundInstances(NamedTuple):
    """The instances of an assignment in its order, and those of them that this call created, oldest first."""

    instances: tuple[InstanceRecord, ...]
    created: tuple[InstanceRecord, ...]


class GpuInstances:
    """The GPU instances of the agent."""

    def __init__(self, hardware: MigHardware, records: MigRecords) -> None:
        self._hardware = hardware
        self._records = records
        self._failed: dict[RecordKey, tuple[int, float]] = {}
        """releases that failed: how often in a row, and when to try again"""
        self._not_adopted: dict[RecordKey, str] = {}
        """reservations whose instance cannot be adopted, with the reason as it was logged"""

    def create_all(self, requests: Sequence[InstanceRequest], holders: InstanceHolders) -> FoundInstances:
        """Creates the instances of an assignment, or finds those that exist already.

        Raises AllocationRefused, PlacementTaken, InventoryError or OSError; then nothing of this call is left.
        """
        instances: list[InstanceRecord] = []
        created: list[InstanceRecord] = []
        try:
            for request in requests:
                found = self._find_existing(request)
                if found is None:
                    self._clear_place(request, holders)
                    found = self._create(request)
                    created.append(found)
                instances.append(found)
        except BaseException:
            self.undo(created)
            raise
        return FoundInstances(tuple(instances), tuple(created))

    def undo(self, created: Sequence[InstanceRecord]) -> None:
        """Destroys instances, newest first. One that cannot be destroyed now keeps its record and goes with its pod."""
        for record in reversed(created):
            self._try_destroy(record)

    def destroy(self, record: InstanceRecord) -> None:
        """Destroys the record's instance if it exists, and drops the record. Raises InventoryError and keeps it."""
        others = [other for other in self._records.all() if other.key != record.key]
        for instance in self._hardware.instances(record.card):
            if record.is_at(instance) and not any(other.is_at(instance) for other in others):
                self._hardware.destroy(instance)
        self._records.drop(record)

    def adopt(self, assignments: Iterable[Assignment], fleet: Fleet) -> None:
        """Records the instances that live pods have without a record. Each reservation is judged on its own."""
        not_adopted: dict[RecordKey, str] = {}
        for assignment in sorted(assignments, key=lambda each: (each.pod, each.position)):
            for allocation in assignment.mig:
                key = record_key(assignment.pod, allocation)
                is_unknown = allocation.mig_uuid is not None and self._records.get(key) is None
                if not is_unknown or fleet.card(allocation.uuid) is None:
                    continue
                problem = self._adopt(assignment.pod, allocation)
                if problem:
                    not_adopted[key] = problem
                    if self._not_adopted.get(key) != problem:
                        log.warning(
                            "a MIG reservation names an instance that cannot be adopted",
                            pod=str(assignment.pod),
                            card=allocation.uuid,
                            mig=allocation.mig_uuid,
                            problem=problem,
                        )
        self._not_adopted = not_adopted

    def release(self, holders: InstanceHolders, *, cards: Collection[str], now: float) -> None:
        """Destroys the instances on these cards that no pod holds. One that cannot go yet does not block the others.

        The card refuses to destroy an instance that a process uses. `now` is in seconds of a monotonic clock.
        """
        gone = [each for each in self._records.all() if each.card in cards and holders.have_released(each)]
        self._failed = {each.key: self._failed[each.key] for each in gone if each.key in self._failed}
        for record in gone:
            failures, not_before = self._failed.get(record.key, (0, now))
            if now < not_before:
                continue
            try:
                self.destroy(record)
            except InventoryError as error:
                wait = RETRY.ceiling(failures + 1)
                self._failed[record.key] = (failures + 1, now + wait)
                log.warning(
                    "a MIG instance cannot be destroyed yet",
                    card=record.card,
                    instance=record.allocation.gpu_instance,
                    pod=str(record.pod),
                    again_in_s=wait,
                    error=str(error),
                )
            else:
                log.info(
                    "a MIG instance was released", card=record.card, mig=record.allocation.mig_uuid, pod=str(record.pod)
                )

    def _find_existing(self, request: InstanceRequest) -> InstanceRecord | None:
        """Returns the instance made for this request; None after removing what was left of it."""
        seen = self._hardware.instances(request.allocation.uuid)
        record = self._records.get(record_key(request.pod, request.allocation))
        if record is None:
            if request.allocation.mig_uuid is None:
                return None
            named = self._adoptable(request.pod, request.allocation, seen)
            if isinstance(named, str):
                return None
            self._records.put(named)
            return named
        whole = next((each for each in seen if record.is_whole(each)), None)
        if whole is None:
            self.destroy(record)
            return None
        if record.is_intended:
            record = completed_record(record.pod, request.allocation, whole)
            self._records.put(record)
        return record

    def _adopt(self, pod: ObjectKey, allocation: MigAllocation) -> str:
        """Returns why the instance cannot be adopted; empty on success."""
        try:
            found = self._adoptable(pod, allocation, self._hardware.instances(allocation.uuid))
            if isinstance(found, str):
                return found
            self._records.put(found)
        except (InventoryError, OSError) as error:
            return str(error)
        log.info("a MIG instance was adopted", pod=str(pod), card=found.card, mig=found.allocation.mig_uuid)
        return ""

    def _adoptable(
        self, pod: ObjectKey, allocation: MigAllocation, seen: Sequence[MigInstance]
    ) -> InstanceRecord | str:
        """Returns a record of the instance that a completed reservation names, or why it cannot be adopted.

        GPU instance, placement, compute instance and MIG uuid must all match.
        """
        found = next((each for each in seen if each.gpu_instance == allocation.gpu_instance), None)
        if found is None:
            return f"GPU instance {allocation.gpu_instance} does not exist"
        if found.placement != allocation.slot.placement:
            return f"GPU instance {allocation.gpu_instance} has another placement"
        if (found.compute_instance, found.mig_uuid) != (allocation.compute_instance, allocation.mig_uuid):
            return f"GPU instance {allocation.gpu_instance} has another compute instance"
        owner = next((each for each in self._records.all() if each.is_at(found)), None)
        if owner is not None:
            return f"GPU instance {allocation.gpu_instance} belongs to pod {owner.pod}"
        return completed_record(pod, allocation, found)

    def _clear_place(self, request: InstanceRequest, holders: InstanceHolders) -> None:
        """Destroys the agent's own instances that overlap the place, if their pods are known to be gone."""
        card, place = request.allocation.uuid, request.allocation.slot.placement
        for other in self._records.all():
            if not other.overlaps(card, place):
                continue
            if not holders.have_released(other):
                raise PlacementTaken(f"card {card}: the reserved MIG placement is held by pod {other.pod}")
            try:
                self.destroy(other)
            except InventoryError as error:
                raise PlacementTaken(
                    f"the MIG instance of pod {other.pod}, which is gone, cannot be destroyed yet: {error}"
                ) from error
        for instance in self._hardware.instances(card):
            if instance.placement.overlaps(place):
                raise AllocationRefused(
                    f"card {card}: the reserved MIG placement (slice {place.start}, {place.size} slices) is taken by"
                    f" GPU instance {instance.gpu_instance}, which this agent did not make; remove it or filter the"
                    " card"
                )

    def _create(self, request: InstanceRequest) -> InstanceRecord:
        intended = intended_record(request.pod, request.allocation, request.profile.profile_id)
        self._records.put(intended)
        try:
            instance = self._hardware.create(intended.card, request.profile, intended.allocation.slot.placement)
            if not intended.is_whole(instance):
                self._hardware.destroy(instance)
                raise CardError(intended.card, "the MIG instance that was created is not the one that was reserved")
            created = completed_record(request.pod, request.allocation, instance)
            self._records.put(created)
        except BaseException:
            # The place was free before, so an instance there now comes from this attempt.
            self._try_destroy(intended)
            raise
        return created

    def _try_destroy(self, record: InstanceRecord) -> None:
        try:
            self.destroy(record)
        except InventoryError as error:
            log.warning(
                "a MIG instance cannot be destroyed now", card=record.card, pod=str(record.pod), error=str(error)
            )
