"""Starts processes of `tessera` without importing it again for each: most of what a start costs.

A server has imported the services and what commands ask a cluster with, runs nothing, and forks a child for each
start. The child gets arguments, environment and output as if it had been executed, and ends as any other program does.
Programs whose start is itself under test are executed instead. Linux only.

    python -m tests.support.fork_server FD        the server, which reads its orders from this socket
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path

PRELOADED = (
    "tessera.cli.device_plugin",
    "tessera.cli.monitor",
    "tessera.cli.scheduler",
    "tessera.inspect.diagnosis",
    "tessera.inspect.explanation",
    "tessera.inspect.simulation",
    "tessera.monitor.process",
    "tessera.node.configuration",
    "tessera.node.process",
    "tessera.scheduler.configuration",
    "tessera.scheduler.process",
)
LONGEST = 1 << 17
"""bytes of an order"""
ROOT = Path(__file__).resolve().parents[2]
PR_SET_PDEATHSIG = 1

_libc = ctypes.CDLL(None, use_errno=True)


def end_with_parent(number: int = signal.SIGKILL) -> None:
    """This process gets the signal when its parent ends, so that nothing outlives tests that are killed."""
    _libc.prctl(PR_SET_PDEATHSIG, number)


class ForkServer:
    """One server, started when it is needed first. Everything that it forked ends with it."""

    def __init__(self) -> None:
        self._running: subprocess.Popen[bytes] | None = None
        self._connection: socket.socket | None = None

    def fork(self, command: Sequence[str], *, environ: Mapping[str, str], stdout: int, stderr: int) -> ForkedProcess:
        """`command` is what comes behind `tessera`."""
        order = json.dumps({"command": list(command), "environ": dict(environ)}).encode()
        assert len(order) < LONGEST
        ours, theirs = os.pipe()
        try:
            socket.send_fds(self._connected(), [order], [stdout, stderr, theirs])
        finally:
            os.close(theirs)
        return ForkedProcess(ours)

    def stop(self) -> None:
        if self._connection is not None and self._running is not None:
            self._connection.close()
            self._running.wait()
            self._connection = self._running = None

    def _connected(self) -> socket.socket:
        if self._connection is None:
            self._connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                self._running = subprocess.Popen(
                    [sys.executable, "-m", "tests.support.fork_server", str(theirs.fileno())],
                    cwd=ROOT,
                    stdin=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                )
        return self._connection


class ForkedProcess:
    """A child of the server. May be used from several threads, as `subprocess.Popen` may."""

    def __init__(self, status: int) -> None:
        """`status` is a pipe: the server writes the process id to it, and the exit code once there is one."""
        self._status = os.fdopen(status, "rb")
        self.pid = int(self._status.readline() or 0)
        assert self.pid, "the server that forks processes of tessera has ended"
        self._returncode: int | None = None
        self._has_ended = threading.Event()
        # One thread reads and closes the pipe: if two did, the second could close what has got its number since.
        threading.Thread(target=self._read_end, daemon=True).start()

    def poll(self) -> int | None:
        return self._returncode

    def wait(self, timeout: float | None = None) -> int:
        self._has_ended.wait(timeout)
        if self._returncode is None:
            raise subprocess.TimeoutExpired("tessera", timeout or 0.0)
        return self._returncode

    def send_signal(self, sig: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, sig)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _read_end(self) -> None:
        with self._status:
            # Without a line the server has ended, and with it everything that it forked.
            self._returncode = int(self._status.readline() or -signal.SIGKILL)
        self._has_ended.set()


# -- the server


def serve(connection: socket.socket) -> list[str] | None:
    """Forks children until the connection ends, and then returns None. In each child it returns the child's command."""
    children: dict[int, int] = {}
    reading, writing = os.pipe()
    for end in (reading, writing):
        os.set_blocking(end, False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(writing)
    while True:
        ready, _, _ = select.select([connection.fileno(), reading], [], [])
        if reading in ready:
            os.read(reading, 1024)
            _report_ends(children)
        if connection.fileno() in ready:
            order, handles, _, _ = socket.recv_fds(connection, LONGEST, 3)
            if not order:
                break
            stdout, stderr, status = handles
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                end_with_parent()
                os.dup2(stdout, 1)
                os.dup2(stderr, 2)
                for handle in (connection.detach(), reading, writing, *handles, *children.values()):
                    os.close(handle)
                given = json.loads(order)
                os.environ.clear()
                os.environ.update(given["environ"])
                command: list[str] = given["command"]
                return command
            os.close(stdout)
            os.close(stderr)
            os.write(status, b"%d\n" % pid)
            children[pid] = status
    for pid in children:
        os.kill(pid, signal.SIGKILL)
    return None


def _report_ends(children: dict[int, int]) -> None:
    while children:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        handle = children.pop(pid)
        try:
            os.write(handle, b"%d\n" % os.waitstatus_to_exitcode(status))
        except BrokenPipeError:
            continue  # Nothing waits for it any more.
        finally:
            os.close(handle)


def main() -> None:
    # Here, not in a `preexec_fn`: with one, Popen runs gRPC's handlers for forks in the process of the tests.
    end_with_parent()
    connection = socket.socket(fileno=int(sys.argv[1]))
    # The terminal sends it to the tests too, which then end this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in PRELOADED:
        import_module(name)
    gc.freeze()
    command = serve(connection)
    if command is not None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        from tessera.cli import main as tessera

        sys.argv = ["tessera", *command]
        tessera(prog_name="tessera")


if __name__ == "__main__":
    main()
