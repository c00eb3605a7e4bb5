"""Searches among nodes: a node for a pod, places for a gang, victims, moves, and advice where nothing fits.

A search may pause, so it is a generator: its yields are places to pause, and its return value is the result. It reads
the ledger, and tries changes in transactions or on copies.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")
Steps = Generator[None, None, T]


def finish(steps: Steps[T]) -> T:
    """The result, without a pause."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: T = end.value
            return found
