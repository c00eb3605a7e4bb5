from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from tessera.files.reader import is_packed, open_file, read_file


def test_a_file_of_the_limit_is_read_and_one_of_more_is_not(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_bytes(b"12345")
    assert read_file(file, limit=5) == b"12345"
    with pytest.raises(OSError, match="has more than 4 bytes") as caught:
        read_file(file, limit=4)
    assert caught.value.filename == str(file)


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/tty", "/", "/nonexistent"])
def test_what_is_no_file_is_refused(path: str) -> None:
    with pytest.raises(OSError, match=r"neither a file nor a pipe|directory|No such|device"):
        read_file(path)


def test_a_pipe_is_read_if_there_is_a_writer_and_never_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert read_file(pipe) == b""
    ours, theirs = os.pipe()

    def write() -> None:
        with open(theirs, "wb") as file:
            file.write(b"a" * 100_000)

    writer = threading.Thread(target=write)
    writer.start()
    # As a shell names the output of a command: <(command)
    assert read_file(f"/dev/fd/{ours}") == b"a" * 100_000
    writer.join()
    os.close(ours)


def test_a_refused_file_is_closed(tmp_path: Path) -> None:
    before = len(os.listdir("/dev/fd"))
    for path in ("/dev/zero", tmp_path):
        with pytest.raises(OSError, match=r"neither|directory"):
            open_file(path)
    assert len(os.listdir("/dev/fd")) == before
    (tmp_path / "f").write_bytes(b"\x1f\x8bx")
    assert is_packed(tmp_path / "f")
