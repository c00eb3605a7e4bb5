"""A card's folder: its pipes, its logs, and the record that lets a later agent take the daemon over.

    <paths.mps>/<uuid>/daemon.json   process, ceiling, and the compute mode to go back to; for the agent alone
                       pipe/         what containers see
                       log/

The record is written before the compute mode is touched, so that no crash forgets what it was. One that cannot be read
is as good as none. Nothing here waits or speaks to the daemon.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

import msgspec
import structlog

from tessera.node.inventory.cards import ComputeMode
from tessera.node.modes.mps_limits import Limits
from tessera.node.modes.mps_process import Identity

log = structlog.get_logger(__name__)

RECORD = "daemon.json"
PIPE = "pipe"
LOG = "log"
CONSOLE = "console.log"
OPEN_MODE = 0o755
"""folders: clients of any user reach the pipes, and only the agent changes them"""
LOG_LIMIT_BYTES = 8 * 1024 * 1024
"""of one file: the daemon writes a few lines for every command, and /run is memory"""
CONSOLE_TAIL = 400
"""characters"""


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    compute_mode: ComputeMode
    """of the card before the agent came"""
    process: Identity | None = None
    ceiling: Limits | None = None


class CardFolder:
    """All methods block, and all but `load` raise OSError."""

    def __init__(self, root: Path, uuid: str) -> None:
        self.root = root
        self.path = root / uuid
        self.pipe = self.path / PIPE
        self.log = self.path / LOG
        self.console = self.log / CONSOLE
        self._record = self.path / RECORD

    def prepare(self) -> None:
        for folder in (self.root, self.path, self.pipe, self.log):
            folder.mkdir(parents=True, exist_ok=True)
            # Whatever the umask: a client that cannot reach the pipe would run without its limits or not at all.
            folder.chmod(OPEN_MODE)

    def load(self) -> Record | None:
        try:
            return msgspec.json.decode(self._record.read_bytes(), type=Record)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            log.warning("the record of an MPS daemon is unreadable", file=str(self._record), error=str(error))
            return None

    def save(self, record: Record) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        draft = self._record.with_suffix(".draft")
        draft.write_bytes(msgspec.json.encode(record))
        os.replace(draft, self._record)

    def trim(self) -> None:
        """Empty logs that have grown too long; what cannot be emptied stays."""
        for file in self.log.glob("*.log"):
            with suppress(OSError):
                if file.stat().st_size > LOG_LIMIT_BYTES:
                    os.truncate(file, 0)

    def last_words(self) -> str:
        """The end of what the daemon printed."""
        return " ".join(self.console.read_text(errors="replace")[-CONSOLE_TAIL:].split())

    def remove(self) -> None:
        shutil.rmtree(self.path)


def folders(root: Path) -> list[CardFolder]:
    """Of all cards that have a record. Raises OSError."""
    if not root.is_dir():
        return []
    return [CardFolder(root, each.name) for each in sorted(root.iterdir()) if (each / RECORD).is_file()]
