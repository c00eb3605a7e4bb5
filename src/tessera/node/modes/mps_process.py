"""The process of a control daemon, which outlives the agent: begun in a session of its own, found again later.

A process is known by its id and the moment it began, so that another one with the same id is never taken for it. Its
end is heard through a pidfd, whether it is a child of this agent or of one before. asyncio's own subprocesses will not
do: they are killed when the event loop lets go of them.
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
"""in the folder of pipes; written by the daemon"""
ENDED_STATES = frozenset("ZXx")
"""of /proc/<pid>/stat: nothing runs any more, though the entry is still there"""
_BEGAN = 19
"""the word of /proc/<pid>/stat, after the name in brackets, that says when the process began (clock ticks)"""


class Identity(NamedTuple):
    """One process, and no later one with its id."""

    pid: int
    began: int
    """clock ticks since the machine started"""


def identity(pid: int) -> Identity | None:
    """Of the process that has this id now; None where none runs."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if words[0] in ENDED_STATES else Identity(pid, int(words[_BEGAN]))


def spawn(command: Sequence[str], *, environ: Mapping[str, str], console: Path) -> Identity | None:
    """Begin a process that no end of the agent touches; None where it is over already. Raises OSError."""
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, str(console), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    pid = os.posix_spawnp(command[0], list(command), environ, file_actions=actions, setsid=True)
    found = identity(pid)
    if found is None:
        os.waitpid(pid, 0)
    return found


def stray(pipes: Path) -> Identity | None:
    """The daemon that serves a folder of pipes, as its pid file and its own environment say."""
    try:
        pid = int((pipes / PID_FILE).read_bytes())
        who = identity(pid)
        # Others may write the file, but they cannot make a process of somebody else the daemon of this folder.
        bears = f"{PIPES}={pipes}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except (OSError, ValueError):
        return None
    return who if bears and pid > 0 else None


class Watched:
    """A process whose end is heard. `close` stops hearing; the process goes on."""

    def __init__(self, who: Identity, descriptor: int, on_end: Callable[[], None]) -> None:
        self.who = who
        self.ended = asyncio.Event()
        self._descriptor: int | None = descriptor
        self._on_end = on_end
        asyncio.get_running_loop().add_reader(descriptor, self._hear, descriptor)

    def kill(self) -> None:
        if self._descriptor is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)

    def close(self) -> None:
        if self._descriptor is not None:
            asyncio.get_running_loop().remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = None

    async def over(self, *, within: float) -> bool:
        """Whether it ends in so many seconds."""
        try:
            async with asyncio.timeout(within):
                await self.ended.wait()
        except TimeoutError:
            return False
        return True

    def _hear(self, descriptor: int) -> None:
        # Only a child is there to be collected.
        with suppress(ChildProcessError):
            os.waitid(os.P_PIDFD, descriptor, os.WEXITED | os.WNOHANG)
        self.close()
        self.ended.set()
        self._on_end()


def watch(who: Identity, on_end: Callable[[], None]) -> Watched | None:
    """Hear of its end; None where it is over already."""
    try:
        descriptor = os.pidfd_open(who.pid)
    except OSError:
        return None
    # Looked at after it was opened: the id cannot come to mean another process any more.
    if identity(who.pid) != who:
        os.close(descriptor)
        return None
    return Watched(who, descriptor, on_end)
