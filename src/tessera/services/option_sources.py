"""The flags and environment that a process was started with, read as typed values, with every problem noted.

A value that cannot be read counts as not given, so that reading goes on and all problems come in one message
(`check`). What the values mean together is not decided here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

T = TypeVar("T")
D = TypeVar("D")

Flags = Mapping[str, str | tuple[str, ...]]
"""what was written behind each flag that was given, by its first name without dashes; a tuple where it may repeat"""

MAX_PROBLEMS = 50
"""listed in a message; with more it is the whole command line that is wrong"""


class OptionsError(ValueError):
    """A configuration that cannot be used, with everything that is wrong with it."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        more = len(self.problems) - MAX_PROBLEMS
        super().__init__(
            "\n".join([*self.problems[:MAX_PROBLEMS], *([f"and {more} more problems"] if more > 0 else [])])
        )


class Given:
    """What was given, and what is wrong with it."""

    def __init__(self, flags: Flags, environ: Mapping[str, str]) -> None:
        self._flags = flags
        self.environ = environ
        self.problems: list[str] = []

    def __contains__(self, name: object) -> bool:
        """Whether the flag was written, well or not."""
        return name in self._flags

    def read(self, name: str, parse: Callable[[str], T], default: D) -> T | D:
        """A flag's value."""
        written = self._flags.get(name)
        if written is None:
            return default
        return self._parsed(f"--{name}", _joined(written), parse, default)

    def read_each(self, name: str, parse: Callable[[str], T]) -> tuple[T, ...]:
        """All values of a flag that may repeat."""
        written = self._flags.get(name, ())
        texts = (written,) if isinstance(written, str) else written
        values = (self._parsed(f"--{name}", text, parse, None) for text in texts)
        return tuple(value for value in values if value is not None)

    def from_environment(self, name: str, parse: Callable[[str], T], default: D) -> T | D:
        """A variable's value; an empty one counts as not set."""
        text = self.environ.get(name, "")
        return self._parsed(name, text, parse, default) if text else default

    def blame(self, name: str, text: str) -> None:
        """Note a problem with a flag."""
        self.problems.append(f"--{name}: {text}")

    def check(self) -> None:
        """Raise if anything is wrong."""
        if self.problems:
            raise OptionsError(self.problems)

    def _parsed(self, source: str, text: str, parse: Callable[[str], T], default: D) -> T | D:
        try:
            return parse(text)
        except ValueError as error:
            self.problems.append(f"{source}: {error}")
            return default


def _joined(written: str | tuple[str, ...]) -> str:
    return written if isinstance(written, str) else ",".join(written)
