"""The ResourceClaims that are prepared on this node, in memory and in a file, and the CDI spec of each.

    (absent) --begin--> being prepared --put--> prepared (in the file) --drop--> (absent)
                              \\--abandon--> (absent)

A claim counts as live in both states, so nothing of it is released meanwhile. The file is replaced as a whole. If it
cannot be read it is kept aside, and the claims are found again through the API (`ClaimPreparer.recover`).
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import structlog

from tessera.host.atomic_file import read_json, replace_file, set_aside
from tessera.host.call_thread import CallThread, CallTimeout
from tessera.node.handover.assignments import Assignment, Holding, ObjectKey
from tessera.node.watched_value import WatchedValue
from tessera.wire.errors import quoted
from tessera.wire.resource_api import DRIVER, AllocatedDevice

log = structlog.get_logger(__name__)

FILE = "claims.json"
FILE_MODE = 0o600
DEADLINE_S = 10.0
"""for one file; a few milliseconds on a working disk"""
CDI_CLASS = "claim"
PREFIX = f"{DRIVER}-{CDI_CLASS}-"
"""of the names of CDI specs"""

_UID = re.compile(r"[0-9A-Za-z-]{1,64}", re.ASCII)

T = TypeVar("T")


class PreparedClaim(msgspec.Struct, frozen=True, rename={"assignments": "claims"}):
    """One claim, with everything that answers kubelet again."""

    key: ObjectKey
    """of the ResourceClaim"""
    boot: str
    """in which it was prepared; nothing of it survives a later one"""
    devices: tuple[AllocatedDevice, ...]
    assignments: tuple[Assignment, ...]
    """one per request"""
    cdi_devices: dict[str, tuple[str, ...]]
    """qualified names by request"""
    spec: dict[str, Any] | None
    """the CDI spec; None if a request needs none of its own"""


class _File(msgspec.Struct, frozen=True):
    claims: list[PreparedClaim]


def checked_uid(uid: str) -> str:
    """Returns the uid if it can be part of a file's name. Raises ValueError."""
    if _UID.fullmatch(uid) is None:
        raise ValueError(f"{quoted(uid)} is not the uid of a ResourceClaim")
    return uid


def cdi_kind() -> str:
    return f"{DRIVER}/{CDI_CLASS}"


def cdi_device(uid: str, request: str) -> str:
    """The name of a request's device in the spec of its claim."""
    return f"{uid}-{request}"


class ClaimSpecs:
    """The CDI specs of claims in one folder. All methods block and raise OSError."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path(self, uid: str) -> Path:
        return self._folder / f"{PREFIX}{checked_uid(uid)}.json"

    def write(self, uid: str, spec: Mapping[str, Any]) -> None:
        """Writes it where it is not there already."""
        text = (json.dumps(spec, indent=2) + "\n").encode()
        path = self.path(uid)
        try:
            if path.read_bytes() == text:
                return
        except FileNotFoundError:
            pass
        replace_file(path, text)

    def remove(self, uid: str) -> None:
        self.path(uid).unlink(missing_ok=True)

    def read(self, uid: str) -> dict[str, Any] | None:
        """None if there is none that can be read."""
        try:
            found = json.loads(self.path(uid).read_bytes())
        except (FileNotFoundError, ValueError):
            return None
        return found if isinstance(found, dict) else None

    def uids(self) -> list[str]:
        """The uids of claims that have a spec file."""
        try:
            names = sorted(os.listdir(self._folder))
        except FileNotFoundError:
            return []
        parts = [each.removeprefix(PREFIX).removesuffix(".json") for each in names if each.startswith(PREFIX)]
        return [each for each in parts if _UID.fullmatch(each)]


class PreparedClaims:
    """Used from the event loop; files are written by one thread, in the order of the calls."""

    def __init__(self, state: Path, cdi: Path) -> None:
        self._path = state / FILE
        self._specs = ClaimSpecs(cdi)
        self._thread = CallThread("claims")
        self._records: dict[str, PreparedClaim] = {}
        self._pending: dict[str, Holding] = {}
        self._leaving: set[str] = set()
        """uids of claims that count until the file is without them"""
        self.ready = asyncio.Event()
        """set when all claims of an earlier process are known"""
        self.version = WatchedValue(0)

    def get(self, uid: str) -> PreparedClaim | None:
        return self._records.get(uid)

    def all(self) -> tuple[PreparedClaim, ...]:
        return tuple(self._records.values())

    def live_assignments(self) -> list[Assignment] | None:
        """None while they are unknown."""
        if not self.ready.is_set():
            return None
        return [held for each in self.holdings() or () for held in each.assignments]

    def holdings(self) -> list[Holding] | None:
        """What each claim holds; None while they are unknown."""
        if not self.ready.is_set():
            return None
        done = {uid: Holding(each.key, each.assignments) for uid, each in self._records.items()}
        # A claim that is prepared anew after a boot has nothing of what it had before.
        return list((done | self._pending).values())

    def keep_only(self, boot: str) -> None:
        """Forgets the claims of earlier boots, in memory."""
        self._records = {uid: each for uid, each in self._records.items() if each.boot == boot}

    # -- changes

    def begin(self, holding: Holding) -> None:
        self._pending[holding.key.uid] = holding
        self._notify()

    def abandon(self, uid: str) -> None:
        if self._pending.pop(uid, None) is not None:
            self._notify()

    async def put(self, record: PreparedClaim) -> None:
        """Its spec is in place when this returns. Raises OSError; then kubelet must ask again."""
        uid = record.key.uid
        before = self._records.get(uid)
        self._records[uid] = record
        self._pending.pop(uid, None)
        self._notify()
        try:
            await self._call(self._save)
        except OSError:
            self._set_back(uid, before)
            raise
        await self.restore_spec(record)

    async def restore_spec(self, record: PreparedClaim) -> None:
        """Writes the claim's spec if it is missing or was changed. Raises OSError."""
        spec = record.spec
        if spec is not None:
            await self._call(lambda: self._specs.write(record.key.uid, spec))

    async def drop(self, uid: str) -> None:
        """Removes what is there of a claim: nothing, if it is not prepared. Raises OSError."""
        await self._call(lambda: self._specs.remove(uid))
        if uid not in self._records:
            return
        # Until it is written: after a failure or a crash the claim is there again, so its room is not free before.
        self._leaving.add(uid)
        try:
            await self._call(self._save)
            self._records.pop(uid, None)
        finally:
            self._leaving.discard(uid)
        self._notify()

    def _set_back(self, uid: str, before: PreparedClaim | None) -> None:
        if before is None:
            self._records.pop(uid, None)
        else:
            self._records[uid] = before
        self._notify()

    # -- start and end

    async def load(self) -> None:
        """Reads the file. Raises OSError, and ValueError if its contents cannot be read."""
        found = await self._call(lambda: _read_records(self._path))
        self._records = {each.key.uid: each for each in found}

    async def set_aside(self) -> Path:
        """Moves a file that cannot be read out of the way, and returns where it is then. Raises OSError."""
        return await self._call(lambda: set_aside(self._path))

    def open(self) -> None:
        """All claims are known from now on."""
        self.ready.set()
        self._notify()

    async def spec_uids(self) -> list[str]:
        """Of all claims with a CDI spec, prepared or not. Raises OSError."""
        return await self._call(self._specs.uids)

    async def read_spec(self, uid: str) -> dict[str, Any] | None:
        return await self._call(lambda: self._specs.read(uid))

    async def close(self) -> None:
        await self._thread.close(patience=DEADLINE_S)

    async def _call(self, work: Callable[[], T]) -> T:
        try:
            return await self._thread.call(work, deadline=DEADLINE_S)
        except CallTimeout as error:
            raise OSError(f"the disk gives {error}") from error

    def _notify(self) -> None:
        self.version.set(self.version.value + 1)

    # -- in the thread

    def _save(self) -> None:
        """Always all that is known when the thread comes to it, so that no later call is undone by an earlier one."""
        replace_file(
            self._path,
            msgspec.json.encode(_File([each for uid, each in self._records.items() if uid not in self._leaving])),
            mode=FILE_MODE,
            durable=True,
        )


def _read_records(path: Path) -> list[PreparedClaim]:
    """The claims in a file; none if it is missing. Blocks. Raises OSError, and ValueError if it cannot be read."""
    try:
        found = read_json(path, _File)
    except NotADirectoryError:
        # Without a folder nothing was ever recorded.
        found = None
    return [] if found is None else found.claims
