"""The GPU instances that belong to the agent, recorded in a file so that a restart knows them.

A record is written before its instance is created and completed afterwards, so a crash in between leaves no instance
without an owner. An instance without a record is foreign. The file is replaced as a whole. An entry that cannot be read
is skipped, so its instance becomes foreign; it is never destroyed. Used only from the thread that changes the hardware.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import structlog

from tessera.core.model.devices import MigPlacement, MigSlot
from tessera.host.atomic_file import read_json, replace_file, set_aside
from tessera.host.cards import MigInstance
from tessera.node.handover.assignments import ObjectKey
from tessera.wire.pod_devices import MigAllocation

log = structlog.get_logger(__name__)

FILE = "mig.json"
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


RecordKey = tuple[str, int, int, str, MigSlot]
"""what an instance is for: the uid of a pod, one of its containers, a device of that, and its place on a card"""


def record_key(pod: ObjectKey, allocation: MigAllocation) -> RecordKey:
    return pod.uid, allocation.container, allocation.device, allocation.uuid, allocation.slot


@dataclass(frozen=True, slots=True)
class InstanceRecord:
    """One GPU instance."""

    pod: ObjectKey
    allocation: MigAllocation
    """its three ids are all known, or all None while the instance is only intended"""
    profile_id: int

    def __post_init__(self) -> None:
        if self._ids.count(None) not in (0, len(self._ids)) or self.allocation.mig_uuid == "":
            raise ValueError("an instance has all of its three ids or none")

    @property
    def _ids(self) -> tuple[int | str | None, ...]:
        return self.allocation.gpu_instance, self.allocation.compute_instance, self.allocation.mig_uuid

    @property
    def key(self) -> RecordKey:
        return record_key(self.pod, self.allocation)

    @property
    def card(self) -> str:
        return self.allocation.uuid

    @property
    def is_intended(self) -> bool:
        return self.allocation.mig_uuid is None

    def is_whole(self, instance: MigInstance) -> bool:
        """Whether this is the recorded instance, complete. An intended record matches any at its place."""
        seen = (instance.gpu_instance, instance.compute_instance, instance.mig_uuid)
        return self._is_there(instance) and None not in seen and (self.is_intended or seen == self._ids)

    def is_at(self, instance: MigInstance) -> bool:
        """Whether this is the recorded instance, or what an unfinished creation or destruction left of it."""
        bare = instance.compute_instance is None and instance.mig_uuid is None
        same = self.is_intended or instance.gpu_instance == self.allocation.gpu_instance
        return self.is_whole(instance) or (self._is_there(instance) and bare and same)

    def overlaps(self, card: str, place: MigPlacement) -> bool:
        return self.card == card and self.allocation.slot.placement.overlaps(place)

    def _is_there(self, instance: MigInstance) -> bool:
        here = (self.card, self.allocation.slot.placement, self.profile_id)
        return here == (instance.uuid, instance.placement, instance.profile_id)

    @property
    def instance(self) -> MigInstance | None:
        """The instance as the hardware reports it; None while it is only intended."""
        known = self.allocation
        if known.gpu_instance is None:
            return None
        return MigInstance(
            known.uuid,
            known.gpu_instance,
            self.profile_id,
            known.slot.placement,
            known.compute_instance,
            known.mig_uuid,
        )


def intended_record(pod: ObjectKey, allocation: MigAllocation, profile_id: int) -> InstanceRecord:
    """Returns a record of the instance that is about to be created for a reservation."""
    unknown = replace(allocation, gpu_instance=None, compute_instance=None, mig_uuid=None)
    return InstanceRecord(pod, unknown, profile_id)


def completed_record(pod: ObjectKey, allocation: MigAllocation, instance: MigInstance) -> InstanceRecord:
    """Returns a record of this instance for the reservation."""
    known = replace(
        allocation,
        gpu_instance=instance.gpu_instance,
        compute_instance=instance.compute_instance,
        mig_uuid=instance.mig_uuid,
    )
    return InstanceRecord(pod, known, instance.profile_id)


def boot_id() -> str:
    """Returns an id that changes with every boot; empty if the machine has none."""
    try:
        return BOOT_ID.read_text(encoding="ascii").strip()
    except (OSError, UnicodeError):
        return ""


class _RecordsFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    boot: str
    switched: list[str]
    instances: list[Any]


class MigRecords:
    """All records, and the cards whose MIG mode the agent enabled. Nothing is added that is not in the file."""

    def __init__(self, folder: Path, *, boot: str) -> None:
        """`boot` changes with every boot, and no instance survives one."""
        self._path = folder / FILE
        self._boot = boot
        self._records: dict[RecordKey, InstanceRecord] = {}
        self._switched: frozenset[str] = frozenset()
        self._loaded = False
        self._behind = False
        """whether the file still has records that were dropped"""

    def all(self) -> tuple[InstanceRecord, ...]:
        return tuple(self._records.values())

    @property
    def switched(self) -> frozenset[str]:
        return self._switched

    def get(self, key: RecordKey) -> InstanceRecord | None:
        return self._records.get(key)

    def put(self, record: InstanceRecord) -> None:
        """Raises OSError if the file cannot be written; then the record is not added."""
        records = {**self._records, record.key: record}
        self._save(records, self._switched)
        self._records = records

    def drop(self, record: InstanceRecord) -> None:
        """Removes a record whose instance is gone, even if the file cannot be written now."""
        self._records.pop(record.key, None)
        self._behind = True
        self.catch_up()

    def switch(self, card: str, *, on: bool) -> None:
        """Records whether the agent enabled MIG on a card. Raises OSError like `put`."""
        switched = self._switched | {card} if on else self._switched - {card}
        if switched != self._switched:
            self._save(self._records, switched)
            self._switched = switched

    def catch_up(self) -> None:
        """Writes what could not be written before."""
        if self._behind:
            try:
                self._save(self._records, self._switched)
            except OSError as error:
                log.warning("cannot write the record of MIG instances", file=str(self._path), error=str(error))

    def load(self) -> None:
        """Reads the file once. Raises OSError if it exists and cannot be read; then it must not be overwritten."""
        if self._loaded:
            return
        found = None
        try:
            found = read_json(self._path, _RecordsFile)
        except ValueError as error:
            aside = set_aside(self._path)
            log.error("the record of MIG instances is unreadable", moved_to=str(aside), error=str(error))
        if found is not None:
            self._switched = frozenset(found.switched)
            # After a reboot, an instance at the same place was made by another program.
            for raw in found.instances if found.boot == self._boot else ():
                self._take(raw)
        self._loaded = True

    def _take(self, raw: Any) -> None:
        try:
            record = msgspec.convert(raw, InstanceRecord)
        except msgspec.MsgspecError as error:
            log.error("a record of a MIG instance is unreadable and left out", record=str(raw), error=str(error))
        else:
            self._records[record.key] = record

    def _save(self, records: Mapping[RecordKey, InstanceRecord], switched: Collection[str]) -> None:
        state = _RecordsFile(boot=self._boot, switched=sorted(switched), instances=list(records.values()))
        replace_file(self._path, msgspec.json.encode(state), durable=True)
        self._behind = False
