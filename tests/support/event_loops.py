"""Decorators that run coroutine tests in real time, or in fake time, where waiting takes no time and timers are exact.

Each test has its own event loop, which is closed afterwards. A test that hangs fails.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import ParamSpec

import looptime
import uvloop

P = ParamSpec("P")

HANGS_AFTER_S = 100.0
"""more than any helper waits, and less than the limit of pytest-timeout, which cannot say where a test was waiting"""
HANGS_AFTER_FAKE_S = 30 * 86400.0


class FakeTimeLoop(looptime.LoopTimeEventLoop, asyncio.SelectorEventLoop):
    """The clock starts at 0 and jumps to the next timer whenever nothing else is left to do."""

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """Without the timeout of Python 3.12 and later, which expires at once in fake time."""
        await super().shutdown_default_executor()


def in_real_time(test: Callable[P, Awaitable[None]]) -> Callable[P, None]:
    """For tests that call another process. They wait for events, never for a fixed time."""
    return _running(test, asyncio.new_event_loop, HANGS_AFTER_S)


def on_uvloop(test: Callable[P, Awaitable[None]]) -> Callable[P, None]:
    """In real time, on the loop that the services use: loops differ in TLS and sockets."""
    return _running(test, uvloop.new_event_loop, HANGS_AFTER_S)


def in_fake_time(test: Callable[P, Awaitable[None]]) -> Callable[P, None]:
    """On a `FakeTimeLoop`. Sockets and threads work."""
    return _running(test, FakeTimeLoop, HANGS_AFTER_FAKE_S)


def _running(
    test: Callable[P, Awaitable[None]], new_loop: Callable[[], asyncio.AbstractEventLoop], limit: float
) -> Callable[P, None]:
    @wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(limit):
                await test(*args, **kwargs)

        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(bounded())

    return run
