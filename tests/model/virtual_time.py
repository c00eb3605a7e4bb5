"""An event loop whose clock moves when nothing else is left to do: waiting takes no time and is deterministic.

Work takes time too: each look of a program at the clock moves it a little, so that long searches pause, at the same
places in each run. It has no sockets and no threads. A loop with nothing to wait for raises instead of hanging.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

T = TypeVar("T")

RESOLUTION = 1e-6
"""seconds"""
LOOK_S = 2e-4
"""seconds of work between two looks at the clock: ten or more make a slice"""


class _Jump(selectors.BaseSelector):
    """Moves the clock instead of waiting for files."""

    def __init__(self) -> None:
        self.now = 0.0
        self._keys: dict[Any, selectors.SelectorKey] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        key = self._keys[fileobj] = selectors.SelectorKey(fileobj, 0, events, data)
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._keys.pop(fileobj)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("nothing will ever happen again")
        self.now += max(timeout, 0.0)
        return []

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._keys


class VirtualLoop(asyncio.SelectorEventLoop):
    """Starts at 0 seconds."""

    def __init__(self) -> None:
        self._jump = _Jump()
        super().__init__(self._jump)
        self._clock_resolution = RESOLUTION

    def time(self) -> float:
        self._jump.now += LOOK_S
        return self._jump.now

    @property
    def now(self) -> float:
        """The time, for those that only watch."""
        return self._jump.now


def now() -> float:
    """Of the running loop."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    return loop.now


def run(main: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
