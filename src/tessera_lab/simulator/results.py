"""Results of simulation runs in a file, one line of JSON each, and how far a series of runs has come.

A line is written when a run ends, so that a series that was interrupted goes on with what is missing. The first line
says what the results belong to: results of other options are refused rather than mixed. A line that was cut off in the
middle of writing is dropped.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tessera.files.documents import read_json
from tessera.files.reader import read_file

QUIET_S = 5.0
"""between two lines about the progress"""


BEGIN = '{"purpose": '


class ResultsError(Exception):
    """A file that cannot be used as results of these runs."""


class ResultsFile:
    """Results by key; `add` appends to the file, if there is one."""

    def __init__(self, path: Path | None, results: dict[str, Any]) -> None:
        self._path = path
        self.results = results

    @classmethod
    def open(cls, path: Path | None, *, purpose: str) -> ResultsFile:
        """Reads what the file has, or begins it. `purpose` must be the same for all results of a file."""
        if path is None:
            return cls(None, {})
        if path.exists() and not path.is_file():
            raise ResultsError(f"{path} is not a file")
        try:
            text = read_file(path).decode() if path.exists() else ""
        except OSError as error:
            raise ResultsError(f"{path} cannot be read: {error.strerror or error}") from error
        except UnicodeError as error:
            raise ResultsError(f"{path} is not a file of results") from error
        whole, _, _ = text.rpartition("\n")
        lines = whole.splitlines()
        if not lines:
            if not BEGIN.startswith(text[: len(BEGIN)]):
                raise ResultsError(f"{path} is not a file of results")
            path.write_text(json.dumps({"purpose": purpose}) + "\n")
            return cls(path, {})
        try:
            head, *entries = (read_json(line.encode()) for line in lines)
            if head["purpose"] != purpose:
                raise ResultsError(f"{path} has results of other options; name another file or delete it")
            found = {entry["key"]: entry["result"] for entry in entries}
        except (ValueError, KeyError, TypeError) as error:
            raise ResultsError(f"{path} is not a file of results") from error
        if not text.endswith("\n"):
            path.write_text(whole + "\n")
        return cls(path, found)

    @property
    def is_file(self) -> bool:
        return self._path is not None

    def add(self, key: str, result: Any) -> None:
        self.results[key] = result
        if self._path is not None:
            with self._path.open("a") as file:
                file.write(json.dumps({"key": key, "result": result}) + "\n")


class Progress:
    """Says after each run, but not too often, how many are left and about how long they take."""

    def __init__(self, total: int, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._total, self._say, self._clock = total, say, clock
        self._began = self._said = clock()
        self._done = 0

    def step(self, name: str) -> None:
        """A run of this name has ended."""
        self._done += 1
        now = self._clock()
        if self._done < self._total and now - self._said >= QUIET_S:
            self._said = now
            left = (now - self._began) / self._done * (self._total - self._done)
            self._say(f"{self._done} of {self._total} runs, about {spoken(left)} left ({name})")


def spoken(seconds: float) -> str:
    """`45 s`, `12 min` or `2 h 5 min`."""
    if seconds < 90.0:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60.0)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"
