"""A snapshot and a journal in one compressed archive: what a bug report needs.

The archive is a `.tgz` with two members, so that people can look inside with tar. Commands that read a snapshot or a
journal read it as well. Members are streamed: a journal is never in memory as a whole.
"""

from __future__ import annotations

import io
import tarfile
import tempfile
from collections.abc import AsyncIterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from tessera.inspect.state import InspectionError

SNAPSHOT = "snapshot.json"
JOURNAL = "journal.jsonl"

GZIP = b"\x1f\x8b"
"""the first bytes of everything that gzip compressed"""


async def write_bundle(target: IO[bytes], snapshot: bytes, journal: AsyncIterable[bytes]) -> int:
    """Writes the archive; returns the number of lines of the journal."""
    lines = 0
    with tempfile.TemporaryFile() as spool, tarfile.open(fileobj=target, mode="w|gz") as archive:
        async for line in journal:
            spool.write(line)
            lines += 1
        _add(archive, SNAPSHOT, io.BytesIO(snapshot), len(snapshot))
        size = spool.tell()
        spool.seek(0)
        _add(archive, JOURNAL, spool, size)
    return lines


def read_snapshot_file(path: str) -> bytes:
    """The snapshot in a file: the file itself, or that of an archive. Raises OSError and InspectionError."""
    if not is_compressed(path):
        return Path(path).read_bytes()
    with open(path, "rb") as raw, open_member(raw, SNAPSHOT, file=path) as member:
        return member.read()


def is_compressed(path: str) -> bool:
    with open(path, "rb") as file:
        return file.read(len(GZIP)) == GZIP


@contextmanager
def open_member(raw: IO[bytes], name: str, *, file: str) -> Iterator[IO[bytes]]:
    """A member of the archive, as a stream that reads `raw` piece by piece."""
    try:
        with tarfile.open(fileobj=raw, mode="r|gz") as archive:
            for entry in archive:
                found = archive.extractfile(entry) if entry.name == name and entry.isfile() else None
                if found is not None:
                    yield found
                    return
    except (tarfile.TarError, EOFError, OSError) as error:
        raise InspectionError(f"{file}: not an archive of tessera snapshot --with-journal: {error}") from error
    raise InspectionError(f"{file}: has no {name}; make one with tessera snapshot --with-journal -o FILE")


def _add(archive: tarfile.TarFile, name: str, content: IO[bytes], size: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = size, 0o644
    archive.addfile(entry, content)
