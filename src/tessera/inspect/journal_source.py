"""Where the records of a journal come from: files, or a running scheduler.

Files are read piece by piece, so their size does not matter. Lines that cannot be read are left out and noted: half of
one that a process left when it died, and what a disk damaged. A reader that must have every record asks for `strict`.
A scheduler's journal that is followed goes on after its process or the connection has ended: from the next record if it
is the same process, else with the state that the new one begins with.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import ExitStack, aclosing
from typing import IO, Protocol

from tessera.files.reader import GZIP, ByteSource, UnpackedFile, open_file
from tessera.inspect.installation import FindAddress, SchedulerAddress
from tessera.inspect.snapshots import JOURNAL, open_member
from tessera.inspect.state import InspectionError
from tessera.kube.backoff import Backoff
from tessera.kube.client import KubeClient
from tessera.kube.errors import ApiError, KubeError, is_forbidden, is_not_found
from tessera.wire.errors import WireError
from tessera.wire.journal import NewerFormat, Record, Start, decode_record

POLL_S = 0.5
"""between looks at a file that is followed"""
MAX_LINE_BYTES = 64 << 20
"""far more than the largest node or pod needs"""
MAX_NOTES = 20
"""places in a file that are named"""
CHUNK_BYTES = 1 << 20
START = b'{"kind":"start"'
"""how Tessera writes the beginning of a `Start`"""

READ_S = 600.0
"""for a journal that is read once"""
FOLLOW_S = 3600.0
"""for one request of a journal that is followed"""
NEW_LINE = "\n"
RETRY = Backoff(initial=0.5, cap=5.0)
"""in seconds; a person watches"""


class JournalSource(Protocol):
    """Something that has records."""

    @property
    def name(self) -> str:
        """What people call it."""
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

    def __init__(self, name: str, notes: list[str], *, strict: bool = False) -> None:
        """Adds to `notes` what is left out. `strict`: only before a `Start` and at the end may lines be left out."""
        self._name = name
        self._notes = notes
        self._strict = strict
        self._line = 0
        self._records = 0
        self._unread: tuple[int, str] | None = None
        """number of the first of the lines before this one that cannot be read, and what is wrong with it"""
        self._gaps = 0
        self.is_damaged = False
        """lines were left out since the last `Start`: what follows does not fit what is before"""

    def decode(self, line: bytes) -> Record | None:
        """None for a line that has no record, or only half of one. Raises InspectionError."""
        self._line += 1
        if not line.strip():
            return None
        try:
            record: Record | None = decode_record(line)
        except NewerFormat as error:
            raise InspectionError(f"{self._name}: line {self._line}: {error}") from error
        except WireError as error:
            self._unread = self._unread or (self._line, str(error))
            self.is_damaged = True
            record = _start_behind(line)
        if record is None:
            return None
        is_start = isinstance(record, Start)
        if self._unread is not None:
            self._end_gap(self._line - 1, is_harmless=is_start)
        self.is_damaged &= not is_start
        self._records += 1
        return record

    def end(self) -> None:
        """No line follows."""
        if not self._records:
            line, problem = self._unread or (0, "")
            raise InspectionError(f"{self._name}: line {line}: {problem}" if line else f"{self._name}: has no records")
        if self._unread is not None:
            self._end_gap(self._line, is_harmless=True)
        if self._gaps > MAX_NOTES:
            self._notes.append(f"{self._name} has {self._gaps - MAX_NOTES} more places that cannot be read")

    def _end_gap(self, last: int, *, is_harmless: bool) -> None:
        assert self._unread is not None
        first, problem = self._unread
        if self._strict and not is_harmless:
            raise InspectionError(f"{self._name}: line {first}: {problem}")
        self._unread = None
        self._gaps += 1
        if self._gaps > MAX_NOTES:
            return
        if first < last:
            lines = f"lines {first} to {last} of {self._name} cannot be read and are left out"
        else:
            lines = f"line {first} of {self._name} cannot be read and is left out"
        self._notes.append(f"{lines}: {problem}")


def _start_behind(line: bytes) -> Record | None:
    """The `Start` behind half a record that has no end of line."""
    at = line.find(START, 1)
    try:
        return decode_record(line[at:]) if at > 0 else None
    except WireError:
        return None


class FileSource:
    """Journal files in their order, as the scheduler or `tessera journal -o json` writes them, also compressed or in a
    bundle. The last one may be followed: what is appended, and the file that replaces it when it is rotated."""

    def __init__(self, *paths: str, strict: bool = False) -> None:
        """`strict`: raise where a record is missing that later ones depend on."""
        self._paths = paths
        self._strict = strict
        self.is_damaged = False
        """the last record does not fit the state that the last `Start` began"""
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
            decoder = LineDecoder(path, self._notes, strict=self._strict)
            async with aclosing(self._lines(path, follow=follow and path == self._paths[-1])) as lines:
                async for line in lines:
                    record = decoder.decode(line)
                    self.is_damaged = decoder.is_damaged
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
                            # No record, such as the zeros of a file system that crashed: it need not be kept to see.
                            rest = rest[: len(START)]
                        for line in lines:
                            yield line
                    if is_replaced:
                        raw = stack.enter_context(open_file(path))
                        stream = raw
                    elif follow:
                        await asyncio.sleep(POLL_S)
                    else:
                        break
        except OSError as error:
            raise InspectionError(f"cannot read {path}: {error.strerror or error}") from error
        if rest:
            yield rest


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


class SchedulerSource:
    """A `JournalSource`."""

    def __init__(self, client: KubeClient, find: FindAddress, *, on_note: Callable[[str], None] = lambda _note: None):
        """`on_note` is called with each note at once, for journals that are followed."""
        self._client = client
        self._find = find
        self._on_note = on_note
        self._notes: list[str] = []
        self._name = "the running scheduler"
        self._position: tuple[str, int] | None = None
        """process and number of the last record"""

    @property
    def name(self) -> str:
        return self._name

    @property
    def notes(self) -> Sequence[str]:
        return self._notes

    async def records(self, *, follow: bool = False) -> AsyncGenerator[Record, None]:
        failures = 0
        while True:
            failures += 1
            try:
                async with aclosing(self._read(follow=follow)) as records:
                    async for record in records:
                        failures = 0
                        yield record
            except (KubeError, InspectionError) as error:
                # What never worked is a mistake of the caller; what worked comes back.
                if not follow or self._position is None:
                    raise
                if failures < 2:
                    self._note(f"the journal ended: {str(error).partition(NEW_LINE)[0]}. Trying again")
            if not follow:
                return
            await asyncio.sleep(RETRY.delay(failures))

    async def _read(self, *, follow: bool) -> AsyncGenerator[Record, None]:
        """One request."""
        address = await self._find()
        self._name = address.name
        query = {"follow": "true"} if follow else {}
        if self._position is not None:
            process, sequence = self._position
            query |= {"process": process, "since": str(sequence), "snapshot": "false"}
        lines = self._client.stream_lines(
            address.path,
            query=query,
            duration=FOLLOW_S if follow else READ_S,
            token_header=address.token_header,
        )
        try:
            async with aclosing(lines):
                async for line in lines:
                    if line.strip():
                        yield self._decode(line)
        except ApiError as error:
            raise InspectionError(_refusal(error, address)) from error
        except KubeError as error:
            raise InspectionError(f"cannot read the journal of {address.name}: {error}\n{address.help}") from error

    def _decode(self, line: bytes) -> Record:
        try:
            record = decode_record(line)
        except WireError as error:
            raise InspectionError(f"{self._name}: {error}") from error
        process = self._position[0] if self._position is not None else ""
        if isinstance(record, Start):
            if process and process != record.identity:
                self._note(f"another process of the scheduler from here on: {record.identity}")
            elif process:
                self._note("records are missing here; what follows begins with the state after them")
            process = record.identity
        self._position = process, record.sequence
        return record

    def _note(self, text: str) -> None:
        self._notes.append(text)
        self._on_note(text)


def _refusal(error: ApiError, address: SchedulerAddress) -> str:
    if is_not_found(error) and error.reason and address.is_assumed:
        # The apiserver's own answer: the scheduler's has no reason.
        return f"no scheduler of Tessera was found in this cluster: {error.message}\n{address.help}"
    if is_not_found(error):
        return (
            f"{address.name} has no journal ({error.message.strip() or error}): it is not the scheduler of Tessera, is"
            f" older than this command, or its journal is off.\n{address.help}"
        )
    what = "you may not read the journal of" if is_forbidden(error) else "cannot read the journal of"
    return f"{what} {address.name}: {error.message.strip() or error}\n{address.help}"
