"""Letting go of instances whose pod is gone. Only instances with a record, and only where it is still the same one.

A pod holds its instances until it is terminal or its object is gone, so also while it terminates. The card itself
refuses to destroy an instance that a process uses. What cannot go now is tried again later, less and less often, and
keeps nothing else from going. Runs in the one thread that changes the hardware.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

import structlog

from tessera.kube.backoff import Backoff
from tessera.node.handover.claims import Claim
from tessera.node.inventory.cards import InventoryError, MigHardware
from tessera.node.modes.mig_ownership import Owned, Purpose
from tessera.node.modes.mig_records import Records
from tessera.wire.mig import split_legacy_uuid

log = structlog.get_logger(__name__)

AGAIN = Backoff(initial=1.0, cap=60.0)
"""a pod's last process is gone within a second or two; one that hangs may hang for days"""


@dataclass(frozen=True, slots=True)
class Holders:
    """Who still needs instances."""

    pods: frozenset[str] | None
    """uids; None = not known, so everybody may"""
    legacy: frozenset[str] = frozenset()
    """cards with pods of HAMi v2.5 to v2.9: which instances are theirs cannot be told, so nothing goes there"""

    def have_let_go(self, record: Owned) -> bool:
        return self.pods is not None and record.pod.uid not in self.pods and record.card not in self.legacy


def holders_of(claims: Iterable[Claim], *, besides: Collection[str] = ()) -> Holders:
    """Of all live claims; `besides` are uids that count as live as well."""
    given = tuple(claims)
    split = (split_legacy_uuid(entry.uuid) for claim in given for entry in claim.slices)
    return Holders(
        pods=frozenset({claim.pod.uid for claim in given} | set(besides)),
        legacy=frozenset(card for card, geometry in split if geometry is not None),
    )


def let_go(record: Owned, hardware: MigHardware, records: Records) -> None:
    """Destroy the record's instance, where it is there, and forget it. Raises InventoryError; then it is kept."""
    others = [other for other in records.all() if other.purpose != record.purpose]
    for instance in hardware.instances(record.card):
        if record.is_at(instance) and not any(other.is_at(instance) for other in others):
            hardware.destroy(instance)
    records.drop(record)


class Releasing:
    def __init__(self, hardware: MigHardware, records: Records, *, again: Backoff = AGAIN) -> None:
        self._hardware = hardware
        self._records = records
        self._again = again
        self._failed: dict[Purpose, tuple[int, float]] = {}
        """how often in a row, and when it may be tried again"""

    def release(self, holders: Holders, *, cards: Collection[str], now: float) -> None:
        """Let go of all that nobody holds, on these cards; `now` in seconds of any steady clock."""
        gone = [each for each in self._records.all() if each.card in cards and holders.have_let_go(each)]
        self._failed = {each.purpose: self._failed[each.purpose] for each in gone if each.purpose in self._failed}
        for record in gone:
            failures, not_before = self._failed.get(record.purpose, (0, now))
            if now < not_before:
                continue
            try:
                let_go(record, self._hardware, self._records)
            except InventoryError as error:
                wait = self._again.ceiling(failures + 1)
                self._failed[record.purpose] = (failures + 1, now + wait)
                log.warning(
                    "a MIG instance cannot go yet",
                    card=record.card,
                    instance=record.gpu_instance,
                    pod=str(record.pod),
                    again_in_s=wait,
                    error=str(error),
                )
            else:
                log.info("a MIG instance is released", card=record.card, mig=record.mig_uuid, pod=str(record.pod))
