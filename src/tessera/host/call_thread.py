"""A thread for calls that block and cannot be interrupted.

Calls run one after the other, and each caller has a deadline. A call that outlives its deadline keeps the thread; later
callers are refused instead of queueing behind it. The thread never keeps the process from exiting.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")


class CallTimeout(Exception):
    """The call did not end in time; the text says after how long."""


class CallThread:
    """Used from one event loop. Call nothing after `close`."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._abandoned: Future[Any] | None = None

    async def call(self, work: Callable[[], T], *, deadline: float) -> T:
        """Returns or raises what `work` does. Raises CallTimeout after `deadline` seconds."""
        if self._thread is None:
            # A daemon thread, unlike those of executors: the interpreter does not wait for a driver that hangs.
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        try:
            async with asyncio.timeout(deadline):
                if self._abandoned is not None:
                    await _ended(self._abandoned)
                    self._abandoned = None
                future: Future[T] = Future()
                self._calls.put((future, work))
                try:
                    await _ended(future)
                finally:
                    if not future.done() and not future.cancel():
                        self._abandoned = future
        except TimeoutError:
            raise CallTimeout(f"no answer within {deadline:g} s") from None
        return future.result()

    def follow_up(self, work: Callable[[], object]) -> None:
        """Runs `work` after the calls so far and drops its outcome. Does nothing before the first call."""
        if self._thread is not None:
            self._calls.put((Future(), work))

    async def close(self, *, patience: float) -> None:
        """Ends the thread, waiting at most `patience` seconds for the call in progress."""
        if self._thread is None:
            return
        self._thread = None
        self._calls.put(None)
        with suppress(TimeoutError):
            async with asyncio.timeout(patience):
                if self._abandoned is not None:
                    await _ended(self._abandoned)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            future, work = call
            if not future.set_running_or_notify_cancel():
                continue
            try:
                result = work()
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)


async def call_once(name: str, work: Callable[[], T], *, deadline: float) -> T:
    """Like `CallThread.call`, in a thread for this call alone."""
    thread = CallThread(name)
    try:
        return await thread.call(work, deadline=deadline)
    finally:
        await thread.close(patience=0.0)


async def _ended(future: Future[Any]) -> None:
    """Waits until the call has ended. Cancelling this does not affect the call."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()

    def tell(_: Future[Any]) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(ended.set)

    future.add_done_callback(tell)
    await ended.wait()
