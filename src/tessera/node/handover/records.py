"""Which answer went to which container, on disk, so that a restarted agent knows.

Pods of equal slices may take each other's answer. Then a pod's folder or instance serves another pod, and must stay as
long as that one lives: `live` says so. A file with all answers is written ahead of every write to the API. An answer
that kubelet would never show again is in a journal before kubelet has it. What cannot be read or written is logged and
costs nothing but this knowledge.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import msgspec
import structlog

from tessera.node.handover.answers import Given, Spot, spot
from tessera.node.handover.claims import Claim

log = structlog.get_logger(__name__)

FILE = "handovers.json"
JOURNAL = "handovers.journal"
"""answers since the file was written, one a line; not forced to the disk, so that no answer waits for one. Numbered:
while the file is being written, answers go to the next one"""
MOST_RECORDS = 2048
"""some hundred bytes each"""
MOST_BYTES = 16 * 1024 * 1024
"""of a file that is read at start"""


@dataclass(frozen=True, slots=True)
class Record:
    """One answer that carried a slice."""

    ids: tuple[str, ...]
    """as kubelet counts them, sorted"""
    claim: Claim
    """whose slice was answered"""
    holder: Spot | None = None
    """the container that really got it; None while kubelet has not said"""

    @property
    def is_swap(self) -> bool:
        return self.holder is not None and self.holder != spot(self.claim)


class Records:
    """In memory, and in a file below `folder`."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._journal = 0
        """number of the one that is written to"""
        self._records: dict[tuple[str, ...], Record] = {}
        self._dirty = False
        # One thread each: an older state never replaces a newer one, and no answer waits for a whole file.
        self._disk = ThreadPoolExecutor(1, thread_name_prefix="records")
        self._pen = ThreadPoolExecutor(1, thread_name_prefix="records-journal")

    def __iter__(self) -> Iterator[Record]:
        return iter(self._records.values())

    async def load(self) -> Sequence[Record]:
        """What an earlier process left."""
        try:
            found = await asyncio.to_thread(_read, self._path)
        except (OSError, ValueError, RecursionError) as error:
            log.warning("records of handovers cannot be read", path=str(self._path), error=str(error))
            found = []
        self._records = {record.ids: record for record in found[-MOST_RECORDS:]}
        journals = await asyncio.to_thread(_journals, self._path.parent)
        for number in sorted(journals):
            for record in await asyncio.to_thread(_read_journal, journals[number]):
                self._put(record)
        self._journal = max(journals, default=0) + 1
        return list(self._records.values())

    def add(self, given: Given) -> None:
        """An answer that carries a slice, or what is now known of its holder."""
        if given.claim is None:
            return
        record = Record(tuple(sorted(given.ids)), given.claim, given.holder)
        if self._records.get(record.ids) != record:
            self._put(record)

    async def keep(self, given: Given) -> None:
        """Add it, and see that a later process knows it also if this one ends at once; never raises."""
        self.add(given)
        record = self._records.get(tuple(sorted(given.ids)))
        if record is None:
            return
        line = msgspec.json.encode(record) + b"\n"
        try:
            await asyncio.get_running_loop().run_in_executor(self._pen, _append, self._journal_path, line)
        except OSError as error:
            log.warning("records of handovers cannot be written", path=str(self._journal_path), error=str(error))

    @property
    def _journal_path(self) -> Path:
        return self._path.with_name(f"{JOURNAL}.{self._journal}")

    def _put(self, record: Record) -> None:
        ids = set(record.ids)
        for old in [each for each in self._records if not ids.isdisjoint(each)]:
            del self._records[old]
        self._records[record.ids] = record
        if len(self._records) > MOST_RECORDS:
            del self._records[next(iter(self._records))]
        self._dirty = True

    def drop(self, ids: Iterable[str]) -> None:
        """The answer was taken back."""
        self._dirty |= self._records.pop(tuple(sorted(ids)), None) is not None

    def prune(self, is_alive: Callable[[str], bool]) -> None:
        """Forget what concerns no pod that is there; by uid."""
        gone = [
            record.ids
            for record in self._records.values()
            if not is_alive(record.claim.pod.uid if record.holder is None else record.holder[0])
        ]
        for ids in gone:
            del self._records[ids]
        self._dirty |= bool(gone)

    def live(self, claims: Sequence[Claim], is_alive: Callable[[str], bool]) -> list[Claim]:
        """These claims, and those of other pods that live pods got instead of their own."""
        lent = {
            spot(record.claim): record.claim
            for record in self._records.values()
            if record.is_swap and record.holder is not None and is_alive(record.holder[0])
        }
        own = {spot(claim) for claim in claims}
        return [*claims, *(claim for where, claim in lent.items() if where not in own)]

    async def save(self) -> None:
        """Write what changed, and wait for what is being written; never raises."""
        data = msgspec.json.encode(list(self._records.values())) if self._dirty else None
        self._dirty = False
        self._journal += data is not None
        try:
            await asyncio.get_running_loop().run_in_executor(self._disk, _write, self._path, data, self._journal)
        except OSError as error:
            log.warning("records of handovers cannot be written", path=str(self._path), error=str(error))

    def close(self) -> None:
        self._disk.shutdown(wait=False)
        self._pen.shutdown(wait=False)


def _read(path: Path) -> list[Record]:
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES)
    except FileNotFoundError:
        return []
    return msgspec.json.decode(data, type=list[Record])


def _read_journal(path: Path) -> list[Record]:
    """Up to the first line that is not whole."""
    found: list[Record] = []
    try:
        with path.open("rb") as file:
            lines = file.read(MOST_BYTES).split(b"\n")
        for line in lines[:-1]:
            found.append(msgspec.json.decode(line, type=Record))
    except FileNotFoundError:
        pass
    except (OSError, ValueError, RecursionError) as error:
        log.warning("records of handovers cannot be read", path=str(path), error=str(error))
    return found


def _append(path: Path, line: bytes) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
    try:
        descriptor = os.open(path, flags, 0o600)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, flags, 0o600)
    try:
        os.write(descriptor, line)
    finally:
        os.close(descriptor)


def _journals(folder: Path) -> dict[int, Path]:
    try:
        found = {each.suffix[1:]: each for each in folder.glob(f"{JOURNAL}.*")}
    except OSError:
        return {}
    return {int(number): path for number, path in found.items() if number.isascii() and number.isdecimal()}


def _write(path: Path, data: bytes | None, journal: int) -> None:
    """`journal` is the first whose answers are not all in `data`."""
    if data is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
    for number, older in _journals(path.parent).items():
        if number < journal:
            older.unlink(missing_ok=True)
