"""Which CDI spec files are the agent's, on disk, so that a later agent without CDI can take them away.

Other plugins use the same names, so a file is ours only while its content is one that an agent wrote down here, before
it was written there. A file that anybody changed stays.
"""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path

import msgspec
import structlog

log = structlog.get_logger(__name__)

FILE = "cdi.json"
REMEMBERED = 2
"""contents of one file: the one before, in case that the agent ends between writing down and writing"""


class CdiRecord:
    """All methods block; `add` and `retire` raise OSError."""

    def __init__(self, state: Path) -> None:
        self._path = state / FILE

    def add(self, spec: Path, text: bytes) -> None:
        """The agent is about to write this."""
        known = self._load()
        digests = known.get(str(spec), [])
        digest = sha256(text).hexdigest()
        if digests[-1:] != [digest]:
            self._save({**known, str(spec): [*digests, digest][-REMEMBERED:]})

    def retire(self) -> None:
        """Remove every file that is still as an agent wrote it, and forget all of them."""
        known = self._load()
        for name, digests in known.items():
            spec = Path(name)
            try:
                text = spec.read_bytes()
            except FileNotFoundError:
                continue
            if sha256(text).hexdigest() in digests:
                spec.unlink(missing_ok=True)
                log.info("a CDI spec that nobody needs any more is removed", file=name)
            else:
                log.warning("a CDI spec stays: somebody changed it", file=name)
        self._path.unlink(missing_ok=True)

    def _load(self) -> dict[str, list[str]]:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=dict[str, list[str]])
        except FileNotFoundError:
            return {}
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            log.warning("the record of CDI specs is unreadable", file=str(self._path), error=str(error))
            return {}

    def _save(self, known: dict[str, list[str]]) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        draft = self._path.with_suffix(".draft")
        draft.write_bytes(msgspec.json.encode(known))
        os.replace(draft, self._path)
