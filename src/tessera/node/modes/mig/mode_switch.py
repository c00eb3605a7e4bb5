"""MIG mode of cards: enabled only on idle cards, disabled only where the agent enabled it.

A card that cannot be switched keeps its reason until it can be, and pods that need it are refused with that reason.
Enabling is recorded before it is done. `retire_mig` gives cards back after the node changed to another sharing mode:

    a record's pod is gone --> its instance goes --> no instance and no process left on the card --> MIG mode off

Runs in the one thread that changes the hardware.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path

import structlog

from tessera.host.call_thread import CallTimeout, call_once
from tessera.host.cards import CardError, InventoryError, MigHardware
from tessera.node.fleet import CardState
from tessera.node.handover.assignments import Assignment
from tessera.node.modes.mig.instances import GpuInstances, InstanceHolders
from tessera.node.modes.mig.records import FILE, MigRecords, boot_id
from tessera.wire.pod_devices import split_legacy_uuid

log = structlog.get_logger(__name__)

RETRY_S = 30.0
"""until a card that could not be switched is tried again"""

ROUND_S = 60.0
"""an instance takes about a second; a card that hangs takes forever"""
HELD = "a pod still holds instances of it"
IN_USE = "it stays in MIG mode: it is in use, or cannot be switched"


def shared_without_mig(assignments: Iterable[Assignment]) -> frozenset[str]:
    """Returns cards on which live pods have slices without MIG: switching would take the card from those pods."""
    return frozenset(split_legacy_uuid(entry.uuid)[0] for each in assignments if not each.mig for entry in each.slices)


class ModeSwitch:
    def __init__(self, hardware: MigHardware, records: MigRecords) -> None:
        self._hardware = hardware
        self._records = records
        self._problems: dict[str, str] = {}
        """by card, as they were logged"""
        self._not_before: dict[str, float] = {}

    def keep_enabled(self, card: CardState, *, shared: Collection[str], now: float) -> None:
        """Like `enable`, but pauses after a failure. `now` is in seconds of a monotonic clock."""
        uuid = card.facts.uuid
        if card.facts.mig_enabled or now < self._not_before.get(uuid, now):
            return
        if self.enable(card, shared=shared):
            self._not_before[uuid] = now + RETRY_S

    def enable(self, card: CardState, *, shared: Collection[str]) -> str:
        """Enables MIG if it is off. Returns why the card cannot be used; empty on success."""
        uuid = card.facts.uuid
        problem = self._problem(card, shared)
        if problem and self._problems.get(uuid) != problem:
            log.warning("a card cannot be used for MIG", card=uuid, problem=problem)
        self._problems[uuid] = problem
        return problem

    def keep_restored(self, cards: Collection[str], *, now: float) -> None:
        """Like `restore`, but pauses before each card is tried again."""
        due = [uuid for uuid in self._records.switched & set(cards) if now >= self._not_before.get(uuid, now)]
        self._not_before |= dict.fromkeys(due, now + RETRY_S)
        self.restore(due)

    def restore(self, cards: Collection[str]) -> None:
        """Disables MIG where the agent enabled it and the card is idle."""
        for uuid in sorted(self._records.switched & set(cards)):
            try:
                if self._hardware.mig_enabled(uuid):
                    if self._hardware.instances(uuid) or self._hardware.is_busy(uuid):
                        log.info("a card stays in MIG mode: it is in use", card=uuid)
                        continue
                    self._hardware.disable_mig(uuid)
                self._records.switch(uuid, on=False)
            except (InventoryError, OSError) as error:
                log.warning("a card stays in MIG mode", card=uuid, error=str(error))

    def _problem(self, card: CardState, shared: Collection[str]) -> str:
        uuid = card.facts.uuid
        if not card.facts.mig_capable:
            return "the card cannot do MIG"
        try:
            if self._hardware.mig_enabled(uuid):
                return ""
            if uuid in shared:
                return "MIG is off, and pods share the card without it; drain the node"
            if self._hardware.is_busy(uuid):
                return "MIG is off, and a process uses the card"
            self._enable(uuid)
        except CardError as error:
            return error.problem
        except (InventoryError, OSError) as error:
            return str(error)
        log.info("MIG was enabled", card=uuid)
        return ""

    def _enable(self, uuid: str) -> None:
        self._records.switch(uuid, on=True)
        try:
            self._hardware.enable_mig(uuid)
        except InventoryError:
            # If a reset enables MIG later, the agent did not do it and must not disable it.
            self._records.switch(uuid, on=False)
            raise


async def retire_mig(state: Path, hardware: MigHardware, holders: InstanceHolders) -> dict[str, str]:
    """Runs one round. Returns why cards are not given back yet, by uuid. Raises OSError if records are unreadable."""
    try:
        return await call_once("mig-retiring", lambda: _retire(state, hardware, holders), deadline=ROUND_S)
    except CallTimeout as error:
        return {str(state / FILE): f"the driver gives {error}"}


def _retire(state: Path, hardware: MigHardware, holders: InstanceHolders) -> dict[str, str]:
    records = MigRecords(state, boot=boot_id())
    records.load()
    instances = GpuInstances(hardware, records)
    left: dict[str, str] = {}
    for record in records.all():
        if not holders.have_released(record):
            left[record.card] = HELD
            continue
        try:
            instances.destroy(record)
        except InventoryError as error:
            left.setdefault(record.card, str(error))
    ModeSwitch(hardware, records).restore(records.switched - left.keys())
    return {**dict.fromkeys(records.switched, IN_USE), **left}
