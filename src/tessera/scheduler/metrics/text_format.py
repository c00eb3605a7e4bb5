"""Prometheus' text format, version 0.0.4: how names, labels and values are written.

Only the format is here. Callers group series by name: a family is one header followed by all of its lines.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")

_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def escaped(text: str) -> str:
    """A label's value as it stands between the quotes."""
    return text.translate(_ESCAPES) if "\\" in text or '"' in text or "\n" in text else text


def encoded(text: str) -> bytes:
    """UTF-8 whatever a node registered: half a surrogate pair, which JSON can carry, becomes a question mark."""
    return text.encode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class Series(Generic[T]):
    """A family of series, and how one thing is shown in it."""

    name: str
    help: str
    """one line, without backslashes"""
    sample: Callable[[T], str]
    """labels in braces, a space and the value; empty where this thing has no sample"""
    kind: str = "gauge"

    @property
    def header(self) -> bytes:
        return encoded(f"# HELP {self.name} {self.help}\n# TYPE {self.name} {self.kind}\n")

    def lines(self, things: list[T]) -> bytes:
        name, sample = self.name, self.sample
        return encoded("".join([f"{name}{text}\n" for thing in things if (text := sample(thing))]))
