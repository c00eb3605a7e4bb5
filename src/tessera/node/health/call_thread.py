"""A thread of its own for calls that block and cannot be stopped.

Calls run one after the other; each has a deadline for its caller. One that outlives its deadline keeps the thread, and
nobody queues up behind it: later callers are told so. The thread never keeps the process from ending.
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


class NoAnswer(Exception):
    """The call has not ended in time; the text says how long that was."""


class CallThread:
    """Use from one event loop; `close` at the end, and call no more."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._abandoned: Future[Any] | None = None

    async def call(self, work: Callable[[], T], *, deadline: float) -> T:
        """What `work` returns or raises, within so many seconds. Raises NoAnswer."""
        if self._thread is None:
            # A daemon, unlike the threads of executors: the interpreter does not wait for a driver that hangs.
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
            raise NoAnswer(f"no answer within {deadline:g} s") from None
        return future.result()

    def follow_up(self, work: Callable[[], object]) -> None:
        """Run it after the calls so far, with nobody waiting; what it raises is lost. Not before the first call."""
        if self._thread is not None:
            self._calls.put((Future(), work))

    async def close(self, *, patience: float) -> None:
        """End the thread, waiting no longer than `patience` seconds for what it is doing."""
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


async def _ended(future: Future[Any]) -> None:
    """Until the call has ended, however it did; cancelling this does not touch the call."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()

    def tell(_: Future[Any]) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(ended.set)

    future.add_done_callback(tell)
    await ended.wait()
