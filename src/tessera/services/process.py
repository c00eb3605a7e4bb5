"""A service as a process: what ends it, and when it reads its configuration again.

    SIGTERM, SIGINT:                           the service stops in order
    SIGHUP, or a file changed or disappeared:  the configuration is read again

Files are compared by inode, modification time and size; they are not read.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

STOPS = (signal.SIGTERM, signal.SIGINT)
CHECK_EVERY_S = 5.0

Stamp = tuple[int, int, int]


@contextmanager
def signals(
    stopping: asyncio.Event,
    *,
    stops: Sequence[signal.Signals] = STOPS,
    on_hangup: Callable[[], None] | None = None,
) -> Iterator[None]:
    """Handles signals on the running event loop: `stops` set `stopping`."""
    loop = asyncio.get_running_loop()
    handlers = dict.fromkeys(stops, stopping.set)
    if on_hangup is not None:
        handlers[signal.SIGHUP] = on_hangup
    for number, handler in handlers.items():
        loop.add_signal_handler(number, handler)
    try:
        yield
    finally:
        for number in handlers:
            loop.remove_signal_handler(number)


async def run_until(
    stopping: asyncio.Event,
    work: Coroutine[Any, Any, None],
    *,
    end: Callable[[asyncio.Task[None]], Awaitable[None]] | None = None,
) -> tuple[bool, Exception | None]:
    """Runs the work until `stopping` is set or the work ends, lets `end` finish it in order, and cancels the rest.

    Returns whether it was stopped, and the fault of the work."""
    running, stop = asyncio.create_task(work), asyncio.create_task(stopping.wait())
    try:
        await asyncio.wait([running, stop], return_when=asyncio.FIRST_COMPLETED)
        was_stopped = stop.done()
        if end is not None:
            await end(running)
    finally:
        running.cancel()
        stop.cancel()
        (fault, _) = await asyncio.gather(running, stop, return_exceptions=True)
    return was_stopped, fault if isinstance(fault, Exception) else None


class FileWatch:
    """`files` returns the paths to watch at this moment."""

    def __init__(self, files: Callable[[], Sequence[str]]) -> None:
        self._files = files
        self._is_requested = asyncio.Event()
        self._stamps: tuple[Stamp, ...] | None = None

    def request_reload(self) -> None:
        """What SIGHUP does."""
        self._is_requested.set()

    async def start(self) -> None:
        """Changes are counted from now on."""
        self._stamps = await asyncio.to_thread(self._take_stamps)

    async def wait_for_change(self) -> bool:
        """Returns when the configuration should be read again, and whether that was requested."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(CHECK_EVERY_S):
                    await self._is_requested.wait()
            is_requested = self._is_requested.is_set()
            self._is_requested.clear()
            before, self._stamps = self._stamps, await asyncio.to_thread(self._take_stamps)
            if is_requested or self._stamps != before:
                return is_requested

    def _take_stamps(self) -> tuple[Stamp, ...]:
        return tuple(_stamp_of(name) for name in self._files())


def _stamp_of(path: str) -> Stamp:
    try:
        status = os.stat(path)
    except OSError:
        return (0, 0, 0)
    return (status.st_ino, status.st_mtime_ns, status.st_size)
