"""A snapshot and a journal in one compressed archive: what a bug report needs.

The archive is a `.tgz` with two members, so that people can look inside with tar. Commands that read a snapshot or a
journal read it as well. Members are streamed: a journal is never in memory as a whole.
"""

from __future__ import annotations

import io
import tarfile
import tempfile
from collections.abc import AsyncIterable
from typing import IO

import msgspec

from tessera.files.reader import GZIP, ArchiveMember, ByteSource, UnpackedFile, open_file, read_stream
from tessera.inspect.anonymize import Names, anonymize_state
from tessera.inspect.anonymize_journal import JournalAnonymizer
from tessera.inspect.snapshots import encode_snapshot
from tessera.inspect.state import ClusterState, InspectionError
from tessera.wire.journal import Record, encode_record

SNAPSHOT = "snapshot.json"
JOURNAL = "journal.jsonl"


async def write_bundle(path: str, state: ClusterState, records: AsyncIterable[Record], *, key: bytes | None) -> int:
    """Writes the archive, with other names in both members if there is a key; returns the number of records.

    The file is not touched before all records were read. Raises OSError.
    """
    found = Names()
    anonymizer = JournalAnonymizer(found)
    count = 0
    with tempfile.TemporaryFile() as spool:
        async for record in records:
            count += 1
            line = encode_record(record)
            spool.write(line)
            if key is not None:
                anonymizer.anonymize(msgspec.json.decode(line))
        if key is None:
            _write(path, encode_snapshot(state), spool, taken=state.taken)
            return count
        anonymize_state(state, found)
        names = found.renamed(key)
        anonymizer = JournalAnonymizer(names)
        spool.seek(0)
        with tempfile.TemporaryFile() as renamed:
            for line in spool:
                renamed.write(msgspec.json.encode(anonymizer.anonymize(msgspec.json.decode(line))) + b"\n")
            _write(path, encode_snapshot(anonymize_state(state, names), hashed=True), renamed, taken=state.taken)
    return count


def _write(path: str, snapshot: bytes, journal: IO[bytes], *, taken: float) -> None:
    size = journal.tell()
    journal.seek(0)
    with open(path, "wb") as target, tarfile.open(fileobj=target, mode="w|gz") as archive:
        for name, content, length in ((SNAPSHOT, io.BytesIO(snapshot), len(snapshot)), (JOURNAL, journal, size)):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode, entry.mtime = length, 0o644, int(taken)
            archive.addfile(entry, content)


def read_snapshot_file(path: str) -> bytes:
    """The snapshot in a file: the file itself, or that of an archive. Raises OSError and InspectionError."""
    with open_file(path) as file:
        start = file.peek(len(GZIP))[: len(GZIP)]
        stream = open_member(file, SNAPSHOT, file=path) if start == GZIP else file
        return read_stream(stream, path)


def open_member(raw: IO[bytes], name: str, *, file: str) -> ByteSource:
    """A member of the archive, as a stream that reads `raw` piece by piece. Raises InspectionError."""
    try:
        return ArchiveMember(UnpackedFile(raw, file), name, file)
    except OSError as error:
        raise InspectionError(
            f"{file}: {error.strerror}; make one with tessera snapshot --with-journal -o FILE"
        ) from error
