"""The MIG instances that belong to the agent, kept in a file so that a restart knows them.

A record is written before its instance is made and completed afterwards, so that a crash in between leaves nothing
that nobody owns. What has no record is foreign. Used only from the thread that changes the hardware. The file is
replaced as a whole; what cannot be read in it is left out, and its instance becomes foreign rather than destroyed.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import structlog

from tessera.node.modes.mig_ownership import Owned, Purpose

log = structlog.get_logger(__name__)

FILE = "mig.json"
UNREADABLE = "mig.json.unreadable"
"""where a file that is no JSON is put aside for a person to look at"""
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str:
    """Another after every start of the machine; empty where the machine does not tell."""
    try:
        return BOOT_ID.read_text(encoding="ascii").strip()
    except (OSError, UnicodeError):
        return ""


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    boot: str
    switched: list[str]
    instances: list[Any]


class Records:
    """All records, and the cards whose MIG mode the agent turned on. Nothing is added that is not in the file."""

    def __init__(self, folder: Path, *, boot: str) -> None:
        """`boot` is another after every start of the machine, which no instance outlives."""
        self._path = folder / FILE
        self._boot = boot
        self._owned: dict[Purpose, Owned] = {}
        self._switched: frozenset[str] = frozenset()
        self._loaded = False
        self._behind = False
        """whether the file has something that is gone"""

    def all(self) -> tuple[Owned, ...]:
        return tuple(self._owned.values())

    @property
    def switched(self) -> frozenset[str]:
        return self._switched

    def get(self, purpose: Purpose) -> Owned | None:
        return self._owned.get(purpose)

    def put(self, record: Owned) -> None:
        """Raises OSError where it cannot be written; then it is not there."""
        before = self._owned
        self._owned = {**before, record.purpose: record}
        try:
            self._save()
        except OSError:
            self._owned = before
            raise

    def drop(self, record: Owned) -> None:
        """Its instance is gone, whether or not that can be written now."""
        self._owned.pop(record.purpose, None)
        self._behind = True
        self.catch_up()

    def switch(self, card: str, *, on: bool) -> None:
        """Remember, or forget, that the agent turned MIG on. Raises OSError like `put`."""
        before = self._switched
        self._switched = before | {card} if on else before - {card}
        try:
            if self._switched != before:
                self._save()
        except OSError:
            self._switched = before
            raise

    def catch_up(self) -> None:
        """Write what could not be written before."""
        if self._behind:
            try:
                self._save()
            except OSError as error:
                log.warning("cannot write the record of MIG instances", file=str(self._path), error=str(error))

    def load(self) -> None:
        """Once. Raises OSError where a file is there and cannot be read: then nothing may be written over it."""
        if self._loaded:
            return
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            self._loaded = True
            return
        try:
            found = msgspec.json.decode(data, type=_File)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            aside = self._path.with_name(UNREADABLE)
            os.replace(self._path, aside)
            log.error("the record of MIG instances is unreadable", moved_to=str(aside), error=str(error))
        else:
            self._switched = frozenset(found.switched)
            # Another machine start: whatever sits at the same place now was made by somebody else.
            for raw in found.instances if found.boot == self._boot else ():
                self._take(raw)
        self._loaded = True

    def _take(self, raw: Any) -> None:
        try:
            record = msgspec.convert(raw, Owned)
        except msgspec.MsgspecError as error:
            log.error("a record of a MIG instance is unreadable and left out", record=str(raw), error=str(error))
        else:
            self._owned[record.purpose] = record

    def _save(self) -> None:
        state = _File(boot=self._boot, switched=sorted(self._switched), instances=list(self._owned.values()))
        data = msgspec.json.encode(state)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        draft = self._path.with_suffix(".draft")
        with draft.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, self._path)
        folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        self._behind = False
