"""Where the description of simulated cards comes from: a value, or a file that may change.

A file that became wrong is reported once, and the last right one stays.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import structlog

from tessera.node.inventory.simulated_file import Description, load_description
from tessera.wire.documents import ConfigError

log = structlog.get_logger(__name__)

Source = Callable[[], Description]
"""the description of the moment; called from several threads"""

_Stamp = tuple[int, int, int]


class WatchedFile:
    """A `Source`. What two threads read at the same time is the same."""

    def __init__(self, path: Path, first: Description) -> None:
        self._path = path
        self._known: tuple[_Stamp | None, Description] = (_stamp(path), first)

    def __call__(self) -> Description:
        stamp, description = self._known
        now = _stamp(self._path)
        if now == stamp:
            return description
        try:
            description = load_description(self._path)
        except ConfigError as error:
            log.warning("the simulated cards stay as they were", problem=str(error))
        self._known = (now, description)
        return description


def _stamp(path: Path) -> _Stamp | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
