"""Making the instances of a claim, each exactly where it was reserved, or none at all.

    no record -> intended (written down) -> made on the card -> complete (written down)
        \\                                        \\
         +- the place is taken: refused             +- a later one fails: destroyed again, newest first

An instance that is there for this very purpose is used again. One that stands in the way is destroyed only where it is
the agent's own and its pod is known to be gone. Runs in the one thread that changes the hardware.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from tessera.node.handover.claims import PodKey
from tessera.node.inventory.cards import CardError, InventoryError, MigHardware, MigOffer
from tessera.node.modes.base import Refused
from tessera.node.modes.mig_adoption import named_instance
from tessera.node.modes.mig_ownership import Owned, intended_for, owned_as
from tessera.node.modes.mig_records import Records
from tessera.node.modes.mig_release import Holders, let_go
from tessera.wire.mig import MigAllocation

log = structlog.get_logger(__name__)


class InTheWay(Exception):
    """The place is taken by an instance of the agent that may go soon; the text says by which."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """One reservation of a claim, and the kind of instance that it means."""

    pod: PodKey
    allocation: MigAllocation
    offer: MigOffer

    @property
    def intended(self) -> Owned:
        return intended_for(self.pod, self.allocation, self.offer.profile_id)


@dataclass(frozen=True, slots=True)
class Realised:
    """The instances of a claim in its order, and which of them this call made, oldest first."""

    instances: tuple[Owned, ...]
    made: tuple[Owned, ...]


class Making:
    def __init__(self, hardware: MigHardware, records: Records) -> None:
        self._hardware = hardware
        self._records = records

    def realise(self, wanted: Sequence[Wanted], holders: Holders) -> Realised:
        """Raises Refused, InTheWay, InventoryError or OSError; then nothing of this call is left."""
        instances: list[Owned] = []
        made: list[Owned] = []
        try:
            for each in wanted:
                found = self._existing(each)
                if found is None:
                    self._clear(each, holders)
                    found = self._make(each)
                    made.append(found)
                instances.append(found)
        except BaseException:
            self.undo(made)
            raise
        return Realised(tuple(instances), tuple(made))

    def undo(self, made: Sequence[Owned]) -> None:
        """Newest first. One that cannot be destroyed now stays the agent's, and goes with its pod."""
        for each in reversed(made):
            self._let_go_if_possible(each)

    def _existing(self, wanted: Wanted) -> Owned | None:
        """The instance of this very purpose; None after clearing away what was left of it."""
        seen = self._hardware.instances(wanted.allocation.uuid)
        record = self._records.get(wanted.intended.purpose)
        if record is None:
            if wanted.allocation.mig_uuid is None:
                return None
            named = named_instance(wanted.pod, wanted.allocation, seen, self._records)
            if isinstance(named, str):
                return None
            self._records.put(named)
            return named
        whole = next((each for each in seen if record.is_whole(each)), None)
        if whole is None:
            let_go(record, self._hardware, self._records)
            return None
        if record.intended:
            record = owned_as(record.pod, wanted.allocation, whole)
            self._records.put(record)
        return record

    def _clear(self, wanted: Wanted, holders: Holders) -> None:
        """Make the place free, as far as it is the agent's to do so."""
        card, place = wanted.allocation.uuid, wanted.allocation.slot.placement
        for other in self._records.all():
            if not other.overlaps(card, place):
                continue
            if not holders.have_let_go(other):
                raise InTheWay(f"card {card}: the reserved MIG place is held by the instance of pod {other.pod}")
            try:
                let_go(other, self._hardware, self._records)
            except InventoryError as error:
                raise InTheWay(f"the MIG instance of pod {other.pod}, which is gone, cannot go yet: {error}") from error
        for instance in self._hardware.instances(card):
            if instance.placement.overlaps(place):
                raise Refused(
                    f"card {card}: the reserved MIG place (slice {place.start}, {place.size} slices) is taken by GPU"
                    f" instance {instance.gpu_instance}, which this agent did not make; remove it or filter the card"
                )

    def _make(self, wanted: Wanted) -> Owned:
        intended = wanted.intended
        self._records.put(intended)
        try:
            instance = self._hardware.create(intended.card, wanted.offer, intended.slot.placement)
            if not intended.is_whole(instance):
                self._hardware.destroy(instance)
                raise CardError(intended.card, "the MIG instance that was made is not the one that was reserved")
            made = owned_as(wanted.pod, wanted.allocation, instance)
            self._records.put(made)
        except BaseException:
            # Nothing was at the place before, so whatever is there now came from this attempt.
            self._let_go_if_possible(intended)
            raise
        return made

    def _let_go_if_possible(self, record: Owned) -> None:
        try:
            let_go(record, self._hardware, self._records)
        except InventoryError as error:
            log.warning(
                "a MIG instance cannot be taken back now", card=record.card, pod=str(record.pod), error=str(error)
            )
