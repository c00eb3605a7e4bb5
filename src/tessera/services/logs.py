"""Logging of the services: structured events on stderr, as JSON lines or as coloured text on a terminal.

Log records of libraries have the same form. The process configures logging once; modules only get a logger, and
`deferral` where lines are many. structlog is imported late, so that `--help` stays quick.

A thread writes the lines, so that neither a slow stream nor one that is not read stops the event loop, and makes the
calls that are left to it. The queue of the standard library's QueueHandler would hold log records: to make one takes
the event loop 17 to 21 µs a line, to leave it the call 2.
"""

from __future__ import annotations

import json
import logging
import os
import select
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from queue import Full, Queue
from typing import TYPE_CHECKING, Any, TextIO, cast

from tessera.services.common_settings import LogFormat, LogLevel, LogOptions

if TYPE_CHECKING:
    from structlog.typing import EventDict, Processor, WrappedLogger

MAX_LINES = 10_000
"""that wait: some seconds of decisions at full speed"""
TOGETHER_S = 0.05
"""that a line waits for others: to wake the thread takes the event loop longer than to queue a line"""
CLOSE_S = 2.0
"""that closing waits for a stream that is blocked"""


DeferredCall = tuple[int, Callable[..., object], tuple[Any, ...]]
"""when it was made, in nanoseconds, and its arguments"""


class LogWriter:
    """A file for `logging` and structlog, used from any thread: a thread of its own writes.

    Lines keep their order. They wait for 50 milliseconds and are written together; a process that is killed loses
    those. While the stream takes nothing, lines are dropped and counted, and a line says so afterwards. A writer that
    is closed has written all that was queued, unless the stream stays blocked; later lines are written at once."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        try:
            self._descriptor: int | None = stream.fileno()
        except OSError:  # It is in memory.
            self._descriptor = None
        self._queue: Queue[DeferredCall | None] = Queue(MAX_LINES)
        """None: the last one"""
        self._dropped = self._reported = 0
        """lines"""
        self._rendered: list[str] = []
        """lines of calls that were made, to be written together"""
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
            _report_loss(lost - self._reported)
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
        data = text.encode(errors="backslashreplace")
        while data:
            try:
                data = data[os.write(self._descriptor, data) :]
            except BlockingIOError:
                # A program that shares the descriptor has made it non-blocking: wait here instead of there.
                select.select([], [self._descriptor], [])


def configure_logs(options: LogOptions, stream: TextIO | None = None) -> LogWriter:
    """Send the log of this process to `stream`, by default stderr. Close the writer before the process ends."""
    import structlog

    stream = stream or sys.stderr
    chosen = options.format or (LogFormat.CONSOLE if stream.isatty() else LogFormat.JSON)
    writer = LogWriter(stream)

    def add_time(_logger: WrappedLogger, _level: str, event: EventDict) -> EventDict:
        event["timestamp"] = datetime.fromtimestamp(writer.now() / 1e9, UTC).isoformat().replace("+00:00", "Z")
        return event

    common: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        add_time,
    ]
    renderers = _renderers(chosen, colors=stream.isatty())
    structlog.configure(
        processors=[*common, *renderers],
        wrapper_class=structlog.make_filtering_bound_logger(options.level.number),
        logger_factory=structlog.WriteLoggerFactory(file=cast("TextIO", writer)),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(writer)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*common, structlog.stdlib.add_logger_name],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderers],
        )
    )
    # At info, libraries log too much; their debug output comes with ours.
    level = options.level.number if options.level is not LogLevel.INFO else logging.WARNING
    logging.basicConfig(handlers=[handler], level=level, force=True)
    return writer


Defer = Callable[..., None]
"""`defer(call, *arguments)` makes a call that logs, now or later, but in its turn and with the time of now"""


def deferral() -> Defer:
    """Leaves such calls to the thread that writes the log of this process; without one they are made at once."""
    for handler in logging.getLogger().handlers:
        stream = getattr(handler, "stream", None)
        if isinstance(stream, LogWriter):
            return stream.defer
    return lambda call, *arguments: call(*arguments)


def _report_loss(lines: int) -> None:
    import structlog

    structlog.get_logger(__name__).warning("log lines are lost: the log did not take them", lines=lines)


def _json(event: Mapping[str, object], *, default: Callable[[object], object]) -> str:
    """A tenth of the time that the standard library takes, for almost all lines."""
    import msgspec

    try:
        return msgspec.json.encode(event, enc_hook=default).decode()
    except (TypeError, ValueError):  # Texts that are not Unicode, keys that are no texts.
        return json.dumps(event, ensure_ascii=False, default=default)


def _renderers(chosen: LogFormat, *, colors: bool) -> list[Processor]:
    import structlog

    if chosen is LogFormat.CONSOLE:
        return [structlog.dev.ConsoleRenderer(colors=colors)]
    return [
        structlog.processors.format_exc_info,
        structlog.processors.EventRenamer("message"),
        structlog.processors.JSONRenderer(serializer=_json),
    ]
