"""The process of a control daemon, which outlives the agent: started in its own session and found again later.

A process is identified by its id and start time, so another process with the same id is never mistaken for it. A pidfd
reports its end, whether this agent or an earlier one started it. asyncio's subprocesses are not used, because the event
loop kills them when it closes.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

PIPES = "CUDA_MPS_PIPE_DIRECTORY"
PID_FILE = "nvidia-cuda-mps-control.pid"
"""in the pipe directory; written by the daemon"""
ENDED_STATES = frozenset("ZXx")
"""in /proc/<pid>/stat: the process has ended, though the entry still exists"""
_START_TIME = 19
"""index of the start time in /proc/<pid>/stat, after the name in brackets (clock ticks)"""


class ProcessIdentity(NamedTuple):
    """One process, and no later process with the same id."""

    pid: int
    began: int
    """clock ticks since the machine started"""


def identify(pid: int) -> ProcessIdentity | None:
    """Returns the running process with this id; None if there is none."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if words[0] in ENDED_STATES else ProcessIdentity(pid, int(words[_START_TIME]))


def spawn(command: Sequence[str], *, environ: Mapping[str, str], console: Path) -> ProcessIdentity | None:
    """Starts a process that survives the agent. Returns None if it has already ended. Raises OSError."""
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, str(console), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    pid = os.posix_spawnp(command[0], list(command), environ, file_actions=actions, setsid=True)
    found = identify(pid)
    if found is None:
        os.waitpid(pid, 0)
    return found


def find_stray(pipes: Path) -> ProcessIdentity | None:
    """Finds the daemon of a pipe directory by its pid file and its environment."""
    try:
        pid = int((pipes / PID_FILE).read_bytes())
        who = identify(pid)
        # Other users may write the file, but they cannot change the environment of a foreign process.
        matches = f"{PIPES}={pipes}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except (OSError, ValueError):
        return None
    return who if matches and pid > 0 else None


class WatchedProcess:
    """Reports the end of a process. `close` stops watching; the process continues."""

    def __init__(self, who: ProcessIdentity, descriptor: int, on_end: Callable[[], None]) -> None:
        self.who = who
        self.ended = asyncio.Event()
        self._descriptor: int | None = descriptor
        self._on_end = on_end
        asyncio.get_running_loop().add_reader(descriptor, self._on_readable, descriptor)

    def kill(self) -> None:
        if self._descriptor is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)

    def close(self) -> None:
        if self._descriptor is not None:
            asyncio.get_running_loop().remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = None

    async def wait_ended(self, *, within: float) -> bool:
        """Returns whether it ends within so many seconds."""
        try:
            async with asyncio.timeout(within):
                await self.ended.wait()
        except TimeoutError:
            return False
        return True

    def _on_readable(self, descriptor: int) -> None:
        # Only a child must be reaped.
        with suppress(ChildProcessError):
            os.waitid(os.P_PIDFD, descriptor, os.WEXITED | os.WNOHANG)
        self.close()
        self.ended.set()
        self._on_end()


def watch_process(who: ProcessIdentity, on_end: Callable[[], None]) -> WatchedProcess | None:
    """Watches a process; None if it has already ended."""
    try:
        descriptor = os.pidfd_open(who.pid)
    except OSError:
        return None
    # Checked after opening: from then on the descriptor cannot mean another process.
    if identify(who.pid) != who:
        os.close(descriptor)
        return None
    return WatchedProcess(who, descriptor, on_end)
