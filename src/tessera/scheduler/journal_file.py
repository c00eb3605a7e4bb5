"""The decision journal as files of JSON lines: FILE, and older ones as FILE.1, FILE.2 and so on.

Each file begins with `Start`, the state and `SnapshotEnd`, so that it can be replayed alone. Records are made on the
event loop a few at a time, and written by a thread. Nothing waits here but this task itself: where the disk is slower
than the scheduler, or fails, the journal's ring goes on without it, and the file goes on with the state as it is then.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import stat
from contextlib import aclosing

import structlog

from tessera.kube.backoff import Backoff
from tessera.scheduler.journal import Journal
from tessera.wire.journal import SnapshotEnd, Start, encode_record

log = structlog.get_logger(__name__)

WRITE_EVERY = 0.5
"""seconds; a process that is killed loses the records of so long"""
CHUNK_BYTES = 256 << 10
"""written at once"""
PAUSES = Backoff(initial=1.0, cap=60.0)
"""after a failed write"""
FILE_MODE = 0o600
"""the records name the pods of all tenants"""


class JournalFile:
    """Writes one journal."""

    def __init__(self, journal: Journal, path: str, *, limit: int, files: int) -> None:
        """A file of `limit` bytes is replaced; `files` are kept in all."""
        self._journal = journal
        self._path = path
        self._limit = limit
        self._files = files
        self.position: int | None = None
        """number of the last record that was written"""
        self._descriptor: int | None = None
        self._size = self._snapshot_size = 0
        """bytes of the file, and of the state that it begins with"""
        self._complete: tuple[int, int | None] = (0, None)
        """size and position before a state that is not written as a whole; else as they are"""
        self._stop = asyncio.Event()
        self.errors = 0
        """writes that failed"""
        self.lost = 0
        """records that left the journal before they were written"""

    async def run(self) -> None:
        """Until told to stop; what was recorded until then is written."""
        failures = 0
        try:
            while True:
                is_last = self._stop.is_set()
                try:
                    await self._write_new()
                    if failures:
                        log.info("journal file written again", file=self._path, failures=failures)
                    failures = 0
                except OSError as error:
                    await self._note_failure(failures := failures + 1, error=str(error))
                except Exception as error:
                    # A fault of ours ends neither the file nor the scheduler, but must be seen.
                    await self._note_failure(failures := failures + 1, exc_info=error)
                if is_last:
                    return
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(PAUSES.delay(failures) if failures else WRITE_EVERY):
                        await self._stop.wait()
        finally:
            self._close()

    def stop(self) -> None:
        self._stop.set()

    async def _note_failure(self, failures: int, **facts: object) -> None:
        self.errors += 1
        if self._descriptor is not None:
            await asyncio.to_thread(self._cut_back)
            self._close()
        if failures == 1:
            # Further ones are only counted.
            log.error("journal file not written", file=self._path, **facts)

    async def _write_new(self) -> None:
        """Everything up to the newest record."""
        if self._descriptor is not None and self._size >= max(self._limit, 2 * self._snapshot_size):
            self._close()
        if self.position == self._journal.sequence and self._descriptor is not None:
            return
        is_new = await asyncio.to_thread(self._open)
        lines: list[bytes] = []
        length, began, position = 0, self._size, self.position
        in_state, gap = False, 0
        reading = self._journal.batches(self.position, snapshot=is_new)
        async with aclosing(reading) as batches:
            async for batch in batches:
                for record in batch:
                    # A reload has a number of its own.
                    known = position or 0
                    if isinstance(record, Start) and record.sequence > known + 1:
                        gap += record.sequence - known
                    in_state = isinstance(record, Start) or (in_state and not isinstance(record, SnapshotEnd))
                    position = max(known, record.sequence)
                    line = encode_record(record)
                    lines.append(line)
                    length += len(line)
                    if isinstance(record, SnapshotEnd):
                        self._snapshot_size = self._size + length - began
                if length >= CHUNK_BYTES:
                    await self._write(b"".join(lines), position, is_complete=not in_state)
                    lines, length = [], 0
        if lines:
            await self._write(b"".join(lines), position, is_complete=not in_state)
        if gap:
            # Only now: what is not written is tried again, and would be counted again.
            self.lost += gap
            log.warning("journal file fell behind, and goes on with the state as it is", records=gap)

    async def _write(self, data: bytes, position: int | None, *, is_complete: bool) -> None:
        descriptor = self._descriptor
        assert descriptor is not None
        await asyncio.to_thread(_write_all, descriptor, data)
        self._size += len(data)
        self.position = position
        if is_complete:
            self._complete = self._size, position

    # -- in a thread

    def _open(self) -> bool:
        """Opens the file, unless it is open and still the one of this name; whether it was opened."""
        if self._descriptor is not None:
            if self._is_in_place(self._descriptor):
                return False
            self._close()
        with contextlib.suppress(FileNotFoundError):
            if os.stat(self._path).st_size >= self._limit:
                self._rotate()
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, FILE_MODE)
        try:
            size = os.fstat(descriptor).st_size
            if size and os.pread(descriptor, 1, size - 1) != b"\n":
                # An earlier process was killed in the middle of a line.
                _write_all(descriptor, b"\n")
                size += 1
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor, self._size, self._snapshot_size = descriptor, size, 0
        self._complete = size, self.position
        return True

    def _is_in_place(self, descriptor: int) -> bool:
        """Whether what was written is still there: the file may have been deleted, moved or emptied."""
        with contextlib.suppress(OSError):
            own, there = os.fstat(descriptor), os.stat(self._path)
            size = self._size if stat.S_ISREG(own.st_mode) else own.st_size
            return (own.st_dev, own.st_ino, own.st_size) == (there.st_dev, there.st_ino, size)
        return False

    def _cut_back(self) -> None:
        """Takes away half a line, and half a state: they are of no use, and on a full disk they take the room that is
        needed to begin again."""
        assert self._descriptor is not None
        size, position = self._complete
        with contextlib.suppress(OSError):
            os.ftruncate(self._descriptor, size)
            self.position = position

    def _rotate(self) -> None:
        for number in range(self._files - 1, 0, -1):
            source = self._path if number == 1 else f"{self._path}.{number - 1}"
            with contextlib.suppress(FileNotFoundError):
                os.replace(source, f"{self._path}.{number}")
        if self._files == 1:
            os.remove(self._path)

    def _close(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with contextlib.suppress(OSError):
                os.close(descriptor)


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        written = os.write(descriptor, view)
        if not written:
            raise OSError(errno.EIO, "nothing was written")
        view = view[written:]
