"""Writes log lines in a thread of its own, so that neither a slow stream nor one that is not read stops the event loop.
Calls that log can be left to the thread as well.

Lines keep their order. They wait for 50 milliseconds and are written together; a process that is killed loses those.
The queue is bounded: while the stream takes nothing, lines are dropped and counted, and a line says so afterwards. A
writer that is closed has written all that was queued, unless the stream stays blocked; later lines are written at once.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from queue import Full, Queue
from typing import Any, TextIO

MAX_LINES = 10_000
"""that wait: some seconds of decisions at full speed"""
TOGETHER_S = 0.05
"""that a line waits for others: to wake the thread takes the event loop longer than to queue a line"""
CLOSE_S = 2.0
"""that closing waits for a stream that is blocked"""

DeferredCall = tuple[int, Callable[..., object], tuple[Any, ...]]
"""when it was made, in nanoseconds, and its arguments"""


class LogWriter:
    """A file for `logging` and structlog. Used from any thread."""

    def __init__(self, stream: TextIO, *, report_loss: Callable[[int], object]) -> None:
        """`report_loss` logs that so many lines are lost."""
        self._stream = stream
        try:
            self._descriptor: int | None = stream.fileno()
        except OSError:  # It is in memory.
            self._descriptor = None
        self._report_loss = report_loss
        self._queue: Queue[DeferredCall | None] = Queue(MAX_LINES)
        """None: the last one"""
        self._dropped = self._reported = 0
        """lines"""
        self._rendered: list[str] = []
        """lines of calls that were made, to be written together"""
        self._is_cut = False
        """the last write ended within a line: the disk was full"""
        self._deferred_at: int | None = None
        self._is_closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="log-writer", daemon=True)
        self._thread.start()

    def write(self, line: str) -> None:
        """`line` has its end."""
        if threading.current_thread() is self._thread:
            self._rendered.append(line)
        else:
            self.defer(self._rendered.append, line)

    def flush(self) -> None:
        """For callers that flush each line; it is written soon anyway."""

    def defer(self, call: Callable[..., object], *arguments: Any) -> None:
        """Make a call that logs in the thread that writes. What it gets must not change any more."""
        if self._is_closing.is_set() and not self._thread.is_alive():
            call(*arguments)
            with suppress(OSError, ValueError):  # What ends the process goes on with a full disk, too.
                self._write_rendered()
            return
        try:
            self._queue.put_nowait((time.time_ns(), call, arguments))
        except Full:
            self._dropped += 1

    def now(self) -> int:
        """Nanoseconds since the epoch; in a deferred call, those at which it was deferred."""
        deferred = self._deferred_at if threading.current_thread() is self._thread else None
        return deferred or time.time_ns()

    def close(self) -> None:
        self._is_closing.set()
        with suppress(Full):
            self._queue.put(None, timeout=CLOSE_S)
        self._thread.join(CLOSE_S)

    # -- in the thread

    def _run(self) -> None:
        is_last = False
        while not is_last:
            calls = [self._queue.get()]
            self._is_closing.wait(TOGETHER_S)
            calls += [self._queue.get_nowait() for _ in range(self._queue.qsize())]
            is_last = None in calls
            for deferred in calls:
                if deferred is not None:
                    self._make(deferred)
            self._write_and_report()
        self._write_and_report()  # What the last write has lost.

    def _make(self, deferred: DeferredCall) -> None:
        self._deferred_at, call, arguments = deferred
        try:
            call(*arguments)
        except Exception:  # Perhaps the log is what fails.
            self._dropped += 1
        self._deferred_at = None

    def _write_and_report(self) -> None:
        lost = self._dropped
        if lost > self._reported:
            self._report_loss(lost - self._reported)
        lines = len(self._rendered)
        try:
            self._write_rendered()
            self._reported = lost
        except (OSError, ValueError):
            # A full disk, or a stream that is closed: there is no better place to say so.
            self._dropped += lines

    def _write_rendered(self) -> None:
        text = "".join(self._rendered)
        self._rendered.clear()
        if self._descriptor is None:
            self._stream.write(text)
            self._stream.flush()
            return
        # Not through the stream: at its end, the interpreter aborts if a thread is blocked in the stream's buffer.
        data = (("\n" if self._is_cut and text else "") + text).encode(errors="backslashreplace")
        while data:
            try:
                written = os.write(self._descriptor, data)
                self._is_cut = data[written - 1] != ord("\n")
                data = data[written:]
            except BlockingIOError:
                # A program that shares the descriptor has made it non-blocking: wait here instead of there.
                select.select([], [self._descriptor], [])
