"""Lines of structlog and of libraries, and the thread that writes them: order, a stream that takes nothing, the end."""

from __future__ import annotations

import io
import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import TextIO

import pytest
import structlog

from tessera.services import logs
from tessera.services.common_settings import LogFormat, LogLevel, LogOptions
from tessera.services.logs import LogWriter, configure_logs, deferral

TIMEOUT_S = 60.0
Make = Callable[[TextIO], LogWriter]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def written(options: LogOptions, stream: io.StringIO | None = None) -> str:
    """What some lines of both kinds come out as."""
    stream = stream or io.StringIO()
    writer = configure_logs(options, stream)
    log = structlog.get_logger("tests")
    log.debug("fine")
    log.info("placed", pod="a/b", node="n1", text="ü")
    try:
        raise OSError("gone")
    except OSError:
        log.exception("failed")
    logging.getLogger("library").info("chatter")
    logging.getLogger("library").warning("from %s", "elsewhere")
    writer.close()
    return stream.getvalue()


def test_events_are_json_lines_away_from_a_terminal() -> None:
    lines = [json.loads(line) for line in written(LogOptions()).splitlines()]
    placed, failed, foreign = lines
    assert placed.pop("timestamp").endswith("Z")
    assert placed == {"message": "placed", "level": "info", "pod": "a/b", "node": "n1", "text": "ü"}
    assert "OSError: gone" in failed["exception"]
    assert (foreign["message"], foreign["level"], foreign["logger"]) == ("from elsewhere", "warning", "library")


def test_on_a_terminal_they_are_text() -> None:
    text = written(LogOptions(), Terminal())
    assert "placed" in text
    assert not text.startswith("{")


@pytest.mark.parametrize("format", list(LogFormat))
def test_the_format_can_be_chosen(format: LogFormat) -> None:
    for stream in (io.StringIO(), Terminal()):
        text = written(LogOptions(format=format), stream)
        assert text.startswith("{") is (format is LogFormat.JSON)


@pytest.mark.parametrize(
    ("level", "messages"),
    [
        (LogLevel.DEBUG, ["fine", "placed", "failed", "chatter", "from elsewhere"]),
        (LogLevel.INFO, ["placed", "failed", "from elsewhere"]),
        (LogLevel.WARNING, ["failed", "from elsewhere"]),
        (LogLevel.ERROR, ["failed"]),
    ],
)
def test_less_important_events_are_left_out(level: LogLevel, messages: list[str]) -> None:
    lines = written(LogOptions(level=level)).splitlines()
    assert [json.loads(line)["message"] for line in lines] == messages


def test_stderr_is_the_default(capsys: pytest.CaptureFixture[str]) -> None:
    writer = configure_logs(LogOptions())
    structlog.get_logger().info("hello")
    writer.close()
    captured = capsys.readouterr()
    assert captured.out == ""
    assert json.loads(captured.err)["message"] == "hello"


@pytest.mark.parametrize("format", list(LogFormat))
def test_a_deferred_line_has_the_bytes_that_structlog_writes_at_once(
    format: LogFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.time_ns", lambda: 1_700_000_000_123_456_000)
    stream, stock = io.StringIO(), io.StringIO()
    writer = configure_logs(LogOptions(format=format), stream)
    values = {"pod": 'team/"ü"\x7f\n', "node": "n1", "score": 0.125, "refusals": 3, "reason": None}
    log, defer = structlog.get_logger("tests"), deferral()
    defer(lambda: log.info("pod placed", **values))
    writer.close()
    renderers = structlog.get_config()["processors"][3:]
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            lambda _logger, _level, event: {**event, "timestamp": "2023-11-14T22:13:20.123456Z"},
            *renderers,
        ],
        logger_factory=structlog.WriteLoggerFactory(file=stock),
    )
    structlog.get_logger("others").info("pod placed", **values)
    assert stream.getvalue() == stock.getvalue() != ""


def test_without_a_writer_a_deferred_call_is_made_at_once() -> None:
    logging.getLogger().handlers.clear()
    made: list[int] = []
    deferral()(made.append, 1)
    assert made == [1]


# -- the thread that writes


class BlockedStream(io.StringIO):
    """Takes nothing until it is released."""

    def __init__(self) -> None:
        super().__init__()
        self.reached, self.released = threading.Event(), threading.Event()

    def write(self, text: str) -> int:
        self.reached.set()
        assert self.released.wait(TIMEOUT_S)
        return super().write(text)


@pytest.fixture
def writer_on(monkeypatch: pytest.MonkeyPatch) -> Callable[[TextIO], LogWriter]:
    def make(stream: TextIO) -> LogWriter:
        writer = LogWriter(stream)
        monkeypatch.setattr(logs, "_report_loss", lambda lines: writer.write(f"lost {lines}\n"))
        return writer

    return make


def test_lines_and_deferred_calls_keep_their_order_and_closing_writes_all_of_them(writer_on: Make) -> None:
    stream = io.StringIO()
    writer = writer_on(stream)
    for number in range(0, 3000, 2):
        writer.write(f"{number}\n")
        writer.defer(lambda text: writer.write(f"{text}\n"), number + 1)
    writer.close()
    writer.write("3000\n")
    writer.defer(writer.write, "3001\n")
    assert stream.getvalue().split() == [str(number) for number in range(3002)]


def test_a_pipe_that_does_not_block_gets_whole_lines() -> None:
    read, write = os.pipe()
    os.set_blocking(write, False)
    line = "x" * 999 + "\n"
    with os.fdopen(read, "rb") as reader, os.fdopen(write, "w") as stream:
        writer = LogWriter(stream)
        for _ in range(500):  # More than a pipe holds.
            writer.write(line)
        assert reader.read(500_000) == line.encode() * 500
        writer.close()


def test_a_deferred_call_sees_the_time_at_which_it_was_deferred(writer_on: Make) -> None:
    stream = BlockedStream()
    writer = writer_on(stream)
    seen: list[int] = []
    writer.write("first\n")
    assert stream.reached.wait(TIMEOUT_S)
    writer.defer(lambda: seen.append(writer.now()))
    later = writer.now()
    stream.released.set()
    writer.close()
    assert len(seen) == 1
    assert seen[0] <= later


def test_a_stream_that_takes_nothing_blocks_no_caller_and_the_lost_lines_are_counted(
    writer_on: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "MAX_LINES", 3)
    stream = BlockedStream()
    writer = writer_on(stream)
    writer.write("first\n")
    assert stream.reached.wait(TIMEOUT_S)
    for number in range(10):
        writer.write(f"{number}\n")
    stream.released.set()
    writer.close()
    assert stream.getvalue().splitlines() == ["first", "0", "1", "2", "lost 7"]


def test_lines_of_a_write_that_fails_are_counted(writer_on: Make) -> None:
    class FullOnce(io.StringIO):
        is_full = True

        def write(self, text: str) -> int:
            if self.is_full:
                self.is_full = False
                raise OSError("no space")
            return super().write(text)

    stream = FullOnce()
    writer = writer_on(stream)
    writer.write("gone\n")
    writer.close()
    assert stream.getvalue() == "lost 1\n"


def test_a_deferred_call_that_fails_loses_its_own_line_only(writer_on: Make) -> None:
    stream = io.StringIO()
    writer = writer_on(stream)
    writer.defer(lambda: 1 / 0)
    writer.write("kept\n")
    writer.close()
    assert stream.getvalue() == "kept\nlost 1\n"


PROCESS = """
import os, sys
from contextlib import closing
from tessera.services import logs
from tessera.services.common_settings import LogOptions
from tessera.services.logs import configure_logs
import structlog
logs.CLOSE_S = 0.05
with closing(configure_logs(LogOptions())):
    log = structlog.get_logger()
    for number in range(int(sys.argv[1])):
        log.info("line", number=number, text="x" * 1000)
    print("went on", flush=True)
    if sys.argv[2] == "raise":
        raise RuntimeError("after the lines")
"""


def test_a_process_whose_stderr_is_not_read_goes_on_and_ends_well() -> None:
    reading, writing = os.pipe()
    try:
        done = subprocess.run(
            [sys.executable, "-c", PROCESS, "500", "return"], stderr=writing, stdout=subprocess.PIPE, timeout=TIMEOUT_S
        )
    finally:
        os.close(reading)
        os.close(writing)
    assert (done.returncode, done.stdout) == (0, b"went on\n")


def test_the_traceback_of_a_process_that_fails_stands_behind_all_its_lines() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROCESS, "200", "raise"], capture_output=True, text=True, timeout=TIMEOUT_S
    )
    lines = done.stderr.splitlines()
    assert [f'"number":{number},' in line for number, line in enumerate(lines[:200])] == [True] * 200
    assert lines[200].startswith("Traceback")
    assert lines[-1] == "RuntimeError: after the lines"


def test_a_line_after_the_end_that_cannot_be_written_stops_no_caller(writer_on: Make) -> None:
    stream = io.StringIO()
    writer = writer_on(stream)
    writer.close()
    stream.close()
    writer.write("what follows must be done nevertheless\n")
