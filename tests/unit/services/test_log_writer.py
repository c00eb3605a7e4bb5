"""The thread that writes the log: order, a stream that takes nothing, and the end."""

from __future__ import annotations

import errno
import io
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import TextIO

import pytest

from tessera.services import log_writer
from tessera.services.log_writer import LogWriter

TIMEOUT_S = 60.0


class BlockedStream(io.StringIO):
    """Takes nothing until it is released."""

    def __init__(self) -> None:
        super().__init__()
        self.reached, self.released = threading.Event(), threading.Event()

    def write(self, text: str) -> int:
        self.reached.set()
        assert self.released.wait(TIMEOUT_S)
        return super().write(text)


def writer_on(stream: TextIO) -> LogWriter:
    writer = LogWriter(stream, report_loss=lambda lines: writer.write(f"lost {lines}\n"))
    return writer


def test_lines_and_deferred_calls_keep_their_order_and_closing_writes_all_of_them() -> None:
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
        writer = LogWriter(stream, report_loss=lambda lines: None)
        for _ in range(500):  # More than a pipe holds.
            writer.write(line)
        assert reader.read(500_000) == line.encode() * 500
        writer.close()


def test_a_deferred_call_sees_the_time_at_which_it_was_deferred() -> None:
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
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(log_writer, "MAX_LINES", 3)
    stream = BlockedStream()
    writer = writer_on(stream)
    writer.write("first\n")
    assert stream.reached.wait(TIMEOUT_S)
    for number in range(10):
        writer.write(f"{number}\n")
    stream.released.set()
    writer.close()
    assert stream.getvalue().splitlines() == ["first", "0", "1", "2", "lost 7"]


def test_lines_of_a_write_that_fails_are_counted() -> None:
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


def test_a_line_that_a_full_disk_cut_off_does_not_spoil_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    room, write = [5, 0], os.write

    def take(descriptor: int, data: bytes) -> int:
        if descriptor != stream.fileno() or not room:
            return write(descriptor, data)
        if taken := room.pop(0):
            return write(descriptor, data[:taken])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", take)
    with (tmp_path / "log").open("w") as stream:
        writer = writer_on(stream)
        writer.write("half a line\n")
        writer.close()
    assert (tmp_path / "log").read_text() == "half \nlost 1\n"


def test_a_deferred_call_that_fails_loses_its_own_line_only() -> None:
    stream = io.StringIO()
    writer = writer_on(stream)
    writer.defer(lambda: 1 / 0)
    writer.write("kept\n")
    writer.close()
    assert stream.getvalue() == "kept\nlost 1\n"


PROCESS = """
import os, sys
from contextlib import closing
from tessera.services import log_writer
from tessera.services.logs import LogOptions, configure_logs
import structlog
log_writer.CLOSE_S = 0.05
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


def test_a_line_after_the_end_that_cannot_be_written_stops_no_caller() -> None:
    stream = io.StringIO()
    writer = writer_on(stream)
    writer.close()
    stream.close()
    writer.write("what follows must be done nevertheless\n")
