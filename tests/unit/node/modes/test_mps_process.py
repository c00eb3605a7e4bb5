"""Processes that outlive the agent are known for certain, or not at all."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tessera.node.modes.mps.control import PID_FILE, PIPES, ProcessIdentity, find_stray, identify, spawn, watch_process

WAIT = (sys.executable, "-ISc", "import signal, sys; print('here', flush=True); signal.pause()")
OVER_S = 60.0


@pytest.fixture
def started(tmp_path: Path) -> Iterator[ProcessIdentity]:
    os.mkfifo(tmp_path / "console")
    heard = os.open(tmp_path / "console", os.O_RDONLY | os.O_NONBLOCK)
    who = spawn(WAIT, environ={PIPES: str(tmp_path)}, console=tmp_path / "console")
    assert who is not None
    # Until a process runs its own program, it has no environment.
    assert select.select([heard], [], [], OVER_S)[0]
    assert os.read(heard, 100) == b"here\n"
    os.close(heard)
    yield who
    with suppress(ProcessLookupError):
        os.kill(who.pid, signal.SIGKILL)
    with suppress(ChildProcessError):
        os.waitpid(who.pid, 0)


async def ended(who: ProcessIdentity) -> list[str]:
    told: list[str] = []
    process = watch_process(who, lambda: told.append("ended"))
    assert process is not None
    os.kill(who.pid, signal.SIGKILL)
    async with asyncio.timeout(OVER_S):
        await process.ended.wait()
    process.close()
    process.kill()
    return told


async def test_a_process_has_a_session_of_its_own_and_no_input(started: ProcessIdentity) -> None:
    assert os.getsid(started.pid) == started.pid
    assert os.readlink(f"/proc/{started.pid}/fd/0") == os.devnull


async def test_the_end_of_a_child_is_heard_and_it_is_collected(started: ProcessIdentity) -> None:
    assert await ended(started) == ["ended"]
    assert not Path(f"/proc/{started.pid}").exists()


async def test_a_process_that_is_no_child_is_heard_of_too() -> None:
    code = (
        "import os, sys; r, w = os.pipe(); pid = os.fork()\n"
        "if pid == 0:\n os.close(w); os.close(1); os.setsid(); import signal; signal.pause()\n"
        "print(pid)"
    )
    parent = await asyncio.create_subprocess_exec(sys.executable, "-ISc", code, stdout=asyncio.subprocess.PIPE)
    output, _ = await parent.communicate()
    who = identify(int(output))
    assert who is not None
    assert await ended(who) == ["ended"]


async def test_another_process_with_the_same_id_is_not_taken_for_it(started: ProcessIdentity) -> None:
    assert watch_process(ProcessIdentity(started.pid, started.began - 1), lambda: None) is None
    assert identify(started.pid) == started


async def test_a_process_that_is_gone_is_not_found() -> None:
    gone = await asyncio.create_subprocess_exec(sys.executable, "-ISc", "")
    await gone.wait()
    assert identify(gone.pid) is None
    assert watch_process(ProcessIdentity(gone.pid, 1), lambda: None) is None


async def test_letting_go_of_a_process_leaves_it_running(started: ProcessIdentity) -> None:
    process = watch_process(started, lambda: None)
    assert process is not None
    process.close()
    process.close()
    assert identify(started.pid) == started


async def test_a_process_can_be_killed_and_nobody_else(started: ProcessIdentity) -> None:
    process = watch_process(started, lambda: None)
    assert process is not None
    process.kill()
    async with asyncio.timeout(OVER_S):
        await process.ended.wait()
    assert identify(started.pid) is None


def test_a_process_that_is_over_when_it_is_looked_for_is_collected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    monkeypatch.setattr("tessera.node.modes.mps.control.identify", asked.append)
    assert spawn(("true",), environ={}, console=tmp_path / "console") is None
    with pytest.raises(ChildProcessError):
        os.waitpid(asked[0], os.WNOHANG)


def test_a_program_that_does_not_exist_cannot_be_begun(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="nowhere"):
        spawn(("/nowhere/mps",), environ={}, console=tmp_path / "console")


def test_the_daemon_of_a_folder_is_found_by_its_own_environment(tmp_path: Path, started: ProcessIdentity) -> None:
    (tmp_path / PID_FILE).write_text(f"{started.pid}")
    assert find_stray(tmp_path) == started


@pytest.mark.parametrize("text", ["", "abc", "-1", "0", "999999999", "1", "{own}", "\u0661"])
def test_a_pid_file_that_names_somebody_else_is_not_believed(tmp_path: Path, text: str) -> None:
    (tmp_path / PID_FILE).write_text(text.format(own=os.getpid()))
    assert find_stray(tmp_path) is None
