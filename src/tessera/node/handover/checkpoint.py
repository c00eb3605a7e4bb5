"""The answers of this agent on disk, so that a restarted agent knows them.

One JSON object per line. An answer is appended before kubelet gets it; kubelet never shows what an init container got,
so only this file can tell. Lines of pods that are gone are dropped by rewriting the file. The file is not forced to the
disk, so that no answer waits for one. What cannot be read or written is logged and costs only this knowledge.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import structlog

from tessera.core.model.grants import Span
from tessera.host.atomic_file import replace_file
from tessera.node.handover.assignments import Assignment, ContainerKey
from tessera.services.failpoints import Failpoint, failpoint

log = structlog.get_logger(__name__)

FILE = "allocations.jsonl"
FILE_MODE = 0o600
MAX_RECORDS = 2048
"""a few hundred bytes each; a node has a few hundred containers at most"""
MAX_BYTES = 16 * 1024 * 1024
"""of a file that is read at start"""


class Record(msgspec.Struct, frozen=True, rename={"assignment": "claim"}):
    """One answer with a slice."""

    ids: tuple[str, ...]
    """none where it is not known whether the container was answered"""
    assignment: Assignment
    askers: tuple[ContainerKey, ...]
    """the containers that can have asked"""
    spans: tuple[Span, ...] = ()
    """when the containers of the assignment's pod run; unknown in records of older agents"""


class Checkpoint:
    """In memory, and in a file below `folder`."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._records: list[Record] = []
        self._assignments: dict[str, dict[int, Assignment]] = {}
        """by uid and position: the last record of each container that certainly asked"""
        self._behind: set[asyncio.Task[None]] = set()
        """writes that nothing waits for"""
        self._discarded = False
        """whether the file has records that do not count"""
        # One thread: a line is never lost to a rewrite that began before it.
        self._disk = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._before_record = failpoint(Failpoint.BEFORE_RECORD)
        self._after_record = failpoint(Failpoint.AFTER_RECORD)

    def __iter__(self) -> Iterator[Record]:
        return iter(tuple(self._records))

    async def load(self) -> Sequence[Record]:
        """The answers of an earlier process, oldest first."""
        self._keep((await asyncio.to_thread(_read, self._path))[-MAX_RECORDS:])
        return tuple(self._records)

    def assignments_of(self, uid: str) -> Mapping[int, Assignment]:
        """The slices on record of containers of a pod, by position."""
        return self._assignments.get(uid, {})

    def _keep(self, records: Iterable[Record]) -> None:
        self._records, self._assignments = [], {}
        for each in records:
            self._put(each)

    def _put(self, record: Record) -> None:
        self._records.append(record)
        if len(record.askers) == 1:
            ((uid, position),) = record.askers
            self._assignments.setdefault(uid, {})[position] = record.assignment

    async def add(self, record: Record) -> None:
        """A later process knows the answer as soon as this returns; never raises."""
        self._put(record)
        self._before_record()
        # A line break ahead as well: a line that a full disk cut off would spoil this one.
        await self._write(_append, b"\n" + msgspec.json.encode(record) + b"\n")
        self._after_record()

    def note(self, assignments: Iterable[Assignment], spans: Mapping[str, tuple[Span, ...]]) -> None:
        """One of these containers was answered, and reads its slices from its own pod. Written behind the answer: until
        then the pod itself tells. `spans` by uid."""
        new = [each for each in assignments if each.position not in self.assignments_of(each.pod.uid)]
        added = [Record((), assignment, (assignment.key,), spans.get(assignment.pod.uid, ())) for assignment in new]
        if added:
            for each in added:
                self._put(each)
            lines = b"".join(b"\n" + msgspec.json.encode(each) + b"\n" for each in added)
            task = asyncio.ensure_future(self._write(_append, lines))
            self._behind.add(task)
            task.add_done_callback(self._behind.discard)

    def discard(self, record: Record) -> None:
        """The answer never left this process. The file says so from the next `prune` on."""
        self._keep([each for each in self._records if each is not record])
        self._discarded = True

    async def prune(self, is_there: Callable[[str], bool]) -> None:
        """Forget answers that concern no pod that exists, by uid; never raises."""
        kept = [each for each in self._records if any(is_there(uid) for uid, _ in each.askers)][-MAX_RECORDS:]
        if kept != self._records or self._discarded:
            self._keep(kept)
            self._discarded = False
            await self._write(_rewrite, b"".join(msgspec.json.encode(each) + b"\n" for each in kept))

    async def _write(self, how: Callable[[Path, bytes], None], data: bytes) -> None:
        try:
            await asyncio.get_running_loop().run_in_executor(self._disk, how, self._path, data)
        except OSError as error:
            log.warning("allocation checkpoint cannot be written", path=str(self._path), error=str(error))


def _read(path: Path) -> list[Record]:
    """Every line that is whole."""
    found: list[Record] = []
    problem = ""
    try:
        with path.open("rb") as file:
            lines = file.read(MAX_BYTES).splitlines()
    except FileNotFoundError:
        return []
    except OSError as error:
        lines, problem = [], str(error)
    for line in filter(None, lines):
        try:
            found.append(msgspec.json.decode(line, type=Record))
        except (ValueError, RecursionError) as error:
            problem = str(error)
    if problem:
        log.warning("allocation checkpoint cannot be read", path=str(path), error=problem)
    return found


def _append(path: Path, data: bytes) -> None:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW)
    except FileNotFoundError:
        _rewrite(path, data)
        return
    with open(descriptor, "wb") as file:
        if os.write(file.fileno(), data) < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _rewrite(path: Path, data: bytes) -> None:
    replace_file(path, data, mode=FILE_MODE)
