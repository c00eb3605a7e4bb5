"""Where the records of a journal come from: files, or a running scheduler.

Files are read piece by piece, so their size does not matter. A process that dies may leave half a line, at the end of a
file or before the `Start` of the next process that writes to it; that is left out and noted. Everything else that
cannot be read is an error: the record that is missing could be the one that matters.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Sequence
from contextlib import ExitStack, aclosing
from typing import IO, NoReturn, Protocol

import msgspec

from tessera.files.reader import GZIP, ByteSource, UnpackedFile, open_file
from tessera.inspect.bundle import JOURNAL, open_member
from tessera.inspect.state import InspectionError
from tessera.wire.errors import WireError
from tessera.wire.journal import Record, Start, decode_record

POLL_SECONDS = 0.5
"""between looks at a file that is followed"""
MAX_LINE_BYTES = 64 << 20
"""far more than the largest node or pod needs"""
CHUNK_BYTES = 1 << 20
START = b'{"kind":"start"'
"""how Tessera writes the beginning of a `Start`"""


class JournalSource(Protocol):
    """Something that has records."""

    @property
    def name(self) -> str:
        """For people."""
        ...

    @property
    def notes(self) -> Sequence[str]:
        """What was left out so far, and why."""
        ...

    def records(self, *, follow: bool = False) -> AsyncGenerator[Record, None]:
        """Oldest first; with `follow` for ever, as they come. Raises InspectionError."""
        ...


class LineDecoder:
    """Decodes the lines of one file."""

    def __init__(self, name: str, notes: list[str]) -> None:
        """Adds to `notes` what is left out."""
        self._name = name
        self._notes = notes
        self._line = 0
        self._records = 0
        self._torn: tuple[int, str] | None = None
        """number of a line that is not complete, and what is wrong with it"""

    def decode(self, line: bytes) -> Record | None:
        """None for a line that has no record, or only half of one. Raises InspectionError."""
        self._line += 1
        if not line.strip():
            return None
        record = self._decode(line)
        if record is None:
            return None
        if self._torn is not None:
            if not isinstance(record, Start):
                self._fail(*self._torn)
            self._note("is cut off: the process that wrote it ended")
        self._records += 1
        return record

    def end(self) -> None:
        """No line follows."""
        if self._torn is not None:
            if not self._records:
                self._fail(*self._torn)
            self._note("is the last and is cut off: the process that wrote it ended, or is writing it now")
        elif not self._records:
            raise InspectionError(f"{self._name}: has no records")

    def _decode(self, line: bytes) -> Record | None:
        """The record of a line, or the `Start` behind half a record that has no end of line; None if there is none."""
        try:
            return decode_record(line)
        except WireError as error:
            problem = str(error)
        if self._torn is not None:
            self._fail(*self._torn)
        if _is_json(line):
            self._fail(self._line, problem)
        self._torn = self._line, problem
        at = line.find(START, 1)
        try:
            return decode_record(line[at:]) if at > 0 else None
        except WireError:
            return None

    def _note(self, what: str) -> None:
        assert self._torn is not None
        self._notes.append(f"line {self._torn[0]} of {self._name} {what}. It is left out")
        self._torn = None

    def _fail(self, line: int, problem: str) -> NoReturn:
        raise InspectionError(f"{self._name}: line {line}: {problem}")


class FileSource:
    """Journal files in their order, as the scheduler or `tessera journal -o json` writes them, also compressed or in a
    bundle. The last one may be followed: what is appended, and the file that replaces it when it is rotated."""

    def __init__(self, *paths: str) -> None:
        self._paths = paths
        self._notes: list[str] = []
        self._size = _sizes(paths)
        self._read = 0
        """bytes of the files that were read"""

    @property
    def name(self) -> str:
        return ", ".join(self._paths)

    @property
    def notes(self) -> Sequence[str]:
        return self._notes

    @property
    def progress(self) -> float:
        """How much of the files was read; 1 = all."""
        return min(self._read / max(self._size, 1), 1.0)

    async def records(self, *, follow: bool = False) -> AsyncGenerator[Record, None]:
        for path in self._paths:
            decoder = LineDecoder(path, self._notes)
            async with aclosing(self._lines(path, follow=follow and path == self._paths[-1])) as lines:
                async for line in lines:
                    record = decoder.decode(line)
                    if record is not None:
                        yield record
            decoder.end()

    async def _lines(self, path: str, *, follow: bool) -> AsyncGenerator[bytes, None]:
        before, rest = self._read, b""
        try:
            with ExitStack() as stack:
                raw = stack.enter_context(open_file(path))
                stream = _unpacked(raw, path)
                while True:
                    # Looked up before reading: what was written to the old file until then is read.
                    is_replaced = follow and _is_replaced(raw, path)
                    while chunk := stream.read(CHUNK_BYTES):
                        self._read = before + raw.tell()
                        *lines, rest = (rest + chunk).split(b"\n")
                        if len(rest) > MAX_LINE_BYTES:
                            raise InspectionError(f"{path}: not a journal: a line of more than {MAX_LINE_BYTES} bytes")
                        for line in lines:
                            yield line
                    if is_replaced:
                        raw = stack.enter_context(open_file(path))
                        stream = raw
                    elif follow:
                        await asyncio.sleep(POLL_SECONDS)
                    else:
                        break
        except OSError as error:
            raise InspectionError(f"cannot read {path}: {error.strerror or error}") from error
        if rest:
            yield rest


def _is_json(line: bytes) -> bool:
    try:
        msgspec.json.decode(line)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return False
    return True


def _sizes(paths: Sequence[str]) -> int:
    try:
        return sum(os.stat(path).st_size for path in paths)
    except OSError as error:
        raise InspectionError(f"cannot read {error.filename}: {error.strerror}") from error


def _is_replaced(file: IO[bytes], path: str) -> bool:
    """Whether another file has this name now, or the file begins afresh."""
    try:
        now = os.stat(path)
    except FileNotFoundError:
        return False
    return now.st_ino != os.fstat(file.fileno()).st_ino or now.st_size < file.tell()


def _unpacked(raw: IO[bytes], path: str) -> ByteSource:
    """The journal in a file: the file itself, decompressed, or the member of a bundle."""
    is_packed = raw.read(len(GZIP)) == GZIP
    raw.seek(0)
    if not is_packed:
        return raw
    is_journal = UnpackedFile(raw, path).read(1) == b"{"
    raw.seek(0)
    return UnpackedFile(raw, path) if is_journal else open_member(raw, JOURNAL, file=path)
