"""Files that keep state, replaced as a whole: a reader, or a later process, sees the old contents or the new."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec

_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC

UNREADABLE = ".unreadable"
"""follows the name of a file that was set aside"""

T = TypeVar("T")


def read_json(path: Path, kind: type[T]) -> T | None:
    """Returns None if there is no such file. Raises OSError, and ValueError if the contents cannot be read."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise ValueError(str(error)) from error


def set_aside(path: Path) -> Path:
    """Moves a file out of the way, for inspection, and returns where it is then. Raises OSError."""
    aside = path.with_name(f"{path.name}{UNREADABLE}")
    os.replace(path, aside)
    return aside


def replace_file(path: Path, data: bytes, *, mode: int = 0o644, durable: bool = False) -> None:
    """Writes the file and, where they are missing, its folders. Raises OSError; then the old file is still there.

    `durable`: the contents survive a power failure as soon as this returns. One process at a time may write a file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".draft")
    try:
        with open(os.open(draft, _FLAGS, mode), "wb") as file:
            # Whatever the umask.
            os.fchmod(file.fileno(), mode)
            file.write(data)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.replace(draft, path)
    except OSError:
        with suppress(OSError):
            draft.unlink()
        raise
    if durable:
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
