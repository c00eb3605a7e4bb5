"""Bytes of files, within limits.

Only regular files and pipes are read: a device may never end. What is compressed may unpack to so many times its size
at most. Every refusal is an OSError whose `strerror` says what is wrong.
"""

from __future__ import annotations

import errno
import gzip
import io
import os
import stat
import sys
import tarfile
import zlib
from pathlib import Path
from typing import IO, Protocol

MAX_BYTES = 256 << 20
"""of a file that is read as a whole; a snapshot of 5000 nodes and 80,000 pods has 91 MB"""
MAX_SMALL_BYTES = 4 << 20
"""of a kubeconfig, certificate, key or token"""
MAX_RATIO = 200
"""of what is unpacked to what is packed, above MAX_BYTES; snapshots and journals have 10 to 40, a bomb 1000"""

GZIP = b"\x1f\x8b"
"""the first bytes of everything that gzip compressed"""
_PIECE = 1 << 20


def open_file(path: str | Path) -> io.BufferedReader:
    """A regular file or a pipe, to read. Raises OSError for everything else, and never waits for a pipe's writer."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode)):
            raise OSError(errno.EINVAL, "is neither a file nor a pipe", str(path))
        os.set_blocking(descriptor, True)
        return open(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_file(path: str | Path, *, limit: int | None = None) -> bytes:
    """`limit`: MAX_BYTES unless given. Raises OSError, also for a file of more bytes."""
    with open_file(path) as file:
        return read_stream(file, str(path), limit=limit)


def read_stdin() -> bytes:
    """Raises OSError."""
    return read_stream(sys.stdin.buffer, "standard input")


def read_stream(stream: ByteSource, name: str, *, limit: int | None = None) -> bytes:
    """Everything in a stream. Raises OSError if there is more than the limit."""
    limit = MAX_BYTES if limit is None else limit
    pieces, size = [], 0
    while piece := stream.read(min(_PIECE, limit + 1 - size)):
        pieces.append(piece)
        size += len(piece)
        if size > limit:
            raise OSError(errno.EFBIG, f"has more than {_spoken(limit)}, which is the limit for such a file", name)
    return b"".join(pieces)


def is_packed(path: str | Path) -> bool:
    """Whether gzip compressed the file. Raises OSError."""
    with open_file(path) as file:
        return file.read(len(GZIP)) == GZIP


class ByteSource(Protocol):
    """As much of a file as is used here."""

    def read(self, size: int, /) -> bytes: ...


class UnpackedFile:
    """What gzip compressed, up to a limit. Reading raises OSError for what is damaged or too much."""

    def __init__(self, packed: IO[bytes], name: str) -> None:
        self._unpacked = gzip.GzipFile(fileobj=packed)
        self._name = name
        self._limit = max(MAX_BYTES, MAX_RATIO * os.fstat(packed.fileno()).st_size)
        self._size = 0

    def read(self, size: int, /) -> bytes:
        try:
            piece = self._unpacked.read(size)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise OSError(errno.EIO, f"is damaged: {error}", self._name) from error
        self._size += len(piece)
        if self._size > self._limit:
            raise OSError(errno.EFBIG, f"unpacks to more than {_spoken(self._limit)}", self._name)
        return piece


class ArchiveMember:
    """A member of a tar archive. Only the fixed headers are read, never the members that describe others: those have
    no bound."""

    def __init__(self, archive: ByteSource, member: str, name: str) -> None:
        """Raises OSError if there is no such member."""
        self._archive = archive
        while True:
            entry = _read_header(archive, name)
            if entry is None:
                raise OSError(errno.ENOENT, f"has no {member}", name)
            if entry.name == member and entry.isreg():
                break
            left = -(-entry.size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
            while piece := archive.read(min(left, _PIECE)):
                left -= len(piece)
        self._left = entry.size

    def read(self, size: int, /) -> bytes:
        piece = self._archive.read(min(size, self._left))
        self._left -= len(piece)
        return piece


def _read_header(archive: ByteSource, name: str) -> tarfile.TarInfo | None:
    """None at the end. Raises OSError."""
    block = archive.read(tarfile.BLOCKSIZE)
    if not block.strip(b"\0"):
        return None
    try:
        entry = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    except tarfile.HeaderError as error:
        raise OSError(errno.EINVAL, f"is not an archive: {error}", name) from error
    if entry.size < 0:
        raise OSError(errno.EINVAL, "is not an archive: a member has a negative size", name)
    return entry


def _spoken(size: int) -> str:
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size} bytes"
