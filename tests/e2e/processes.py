"""Programs that a test starts: each has its own log, is ended by its pid, and never outlives the test.

Start them from the main thread: the kernel ends them together with the thread that started them.
"""

from __future__ import annotations

import ctypes
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from tests.support.fork_server import ForkServer, end_with_parent

END_S = 60.0
"""for a clean stop, before SIGKILL"""
LOOK_S = 0.02
"""between two polls"""
LOG_LINES = 20
"""of a program that did not start, in the message"""

FEWER_COLLECTIONS = {"GOGC": "400", "GOMEMLIMIT": "768MiB"}
"""environment of programs written in Go: here memory costs less than the garbage collector's processor time, up to so
much for each of them"""

PR_SET_CHILD_SUBREAPER = 36

_libc = ctypes.CDLL(None, use_errno=True)


class NotStarted(AssertionError):
    """A program ended, or did nothing, instead of becoming ready."""


class Process(Protocol):
    """As much of `subprocess.Popen` as `Program` uses."""

    pid: int

    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def send_signal(self, sig: int) -> None: ...
    def kill(self) -> None: ...


class Program:
    """One program. It may be started again after its end, and then appends to its log."""

    def __init__(self, name: str, command: Sequence[str], *, folder: Path, environ: Mapping[str, str]) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        self._command = list(command)
        self._environ = dict(environ)
        self._process: Process | None = None

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def has_ended(self) -> bool:
        """By itself, or by a signal that was not sent from here."""
        return self._process is not None and self._process.poll() is not None

    @property
    def is_stopped(self) -> bool:
        """By SIGSTOP."""
        if not self.is_running:
            return False
        state = Path(f"/proc/{self.pid}/stat").read_text().rpartition(") ")[2]
        return state.startswith("T")

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self, **environ: str) -> None:
        """`environ` is added for this life alone."""
        assert not self.is_running, f"{self.name} runs already"
        with self.log.open("ab") as log:
            self._process = self._spawn(self._environ | environ, log.fileno())

    def send(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def stop(self) -> int:
        """Stops it cleanly; returns the exit code."""
        return self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Sends SIGKILL."""
        self._end(signal.SIGKILL)

    def words(self) -> str:
        """The end of its log."""
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return "\n".join(lines[-LOG_LINES:])

    def ready(self, is_ready: Callable[[], bool], *, within_s: float) -> None:
        """Waits until it is ready; fails as soon as the program ends instead."""
        deadline = time.monotonic() + within_s
        while not is_ready():
            if not self.is_running:
                raise NotStarted(f"{self.name} ended:\n{self.words()}")
            if time.monotonic() > deadline:
                raise NotStarted(f"{self.name} is not ready after {within_s:g} s:\n{self.words()}")
            time.sleep(LOOK_S)

    def _spawn(self, environ: Mapping[str, str], log: int) -> Process:
        return subprocess.Popen(
            self._command,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            preexec_fn=end_with_parent,
        )

    def _end(self, number: int) -> int:
        if self._process is None:
            return 0
        process, self._process = self._process, None
        if process.poll() is None:
            process.send_signal(number)
        try:
            return process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()


class ForkedProgram(Program):
    """`tessera` with these arguments, forked by a server."""

    def __init__(
        self, name: str, command: Sequence[str], *, folder: Path, environ: Mapping[str, str], server: ForkServer
    ) -> None:
        super().__init__(name, command, folder=folder, environ=environ)
        self._server = server

    def _spawn(self, environ: Mapping[str, str], log: int) -> Process:
        return self._server.fork(self._command, environ=environ, stdout=log, stderr=log)


def adopt_orphans() -> None:
    """This process adopts, and must wait for, the orphans of its children."""
    _libc.prctl(PR_SET_CHILD_SUBREAPER, 1)
