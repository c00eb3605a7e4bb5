"""The MPS control daemon of one card as a process, the commands to it, and the limits that they set.

The process outlives the agent: it is started in its own session and found again later. It is identified by its id and
start time, so another process with the same id is never mistaken for it. A pidfd reports its end, whether this agent or
an earlier one started it. asyncio's subprocesses are not used, because the event loop kills them when it closes.

Each command is one run of NVIDIA's program with one deadline. The program prints most refusals and still exits with 0,
so a reply counts only if it is what a successful command prints. A daemon with clients is never asked to quit: it would
stop answering until the last client ended.

A container's variables hold its own limits. A process that drops them gets the daemon's, so the daemon's limits are the
card's ceiling: as low as the largest assignment on the card allows. The ceiling rises before the first client of a
larger assignment can connect, and falls only while the card has no client. Each process is a client, so limits count
per process.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tessera.core.model.requests import WHOLE_CARD_CORES
from tessera.host.cards import CardFacts
from tessera.node.handover.assignments import Assignment
from tessera.node.watched_value import is_set_within
from tessera.wire.errors import quoted

PIPES = "CUDA_MPS_PIPE_DIRECTORY"
PID_FILE = "nvidia-cuda-mps-control.pid"
"""in the pipe directory; written by the daemon"""
ENDED_STATES = frozenset("ZXx")
"""in /proc/<pid>/stat: the process has ended, though the entry still exists"""
_START_TIME = 19
"""index of the start time in /proc/<pid>/stat, after the name in brackets (clock ticks)"""

PROGRAM = "nvidia-cuda-mps-control"
LOGS = "CUDA_MPS_LOG_DIRECTORY"
VISIBLE = "CUDA_VISIBLE_DEVICES"
OWN_VARIABLES = "CUDA_"
"""prefix of variables in the agent's environment that the daemons must not inherit"""
_GONE = re.compile(r"Server \d+ not found")


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
        return await is_set_within(self.ended, within)

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


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one client. Both are positive: CUDA takes zero or nothing for no limit."""

    memory_mib: int
    cores: int
    """percent of the card's multiprocessors, 1 to 100"""

    def covers(self, other: Limits) -> bool:
        return self.memory_mib >= other.memory_mib and self.cores >= other.cores

    def joined(self, other: Limits) -> Limits:
        """Returns the lowest limits that cover both."""
        return Limits(max(self.memory_mib, other.memory_mib), max(self.cores, other.cores))


def largest(every: Iterable[Limits]) -> Limits | None:
    """Returns the lowest limits that cover all; None if there are none."""
    found: Limits | None = None
    for each in every:
        found = each if found is None else found.joined(each)
    return found


def limits_on(assignment: Assignment, card: CardFacts, *, limit_cores: bool = True) -> Limits | None:
    """Returns what one process of the container may use of the card; None if the assignment has no memory there.

    More memory than the card has, e.g. because of scaling, becomes all of it.
    """
    slices = [each for each in assignment.slices if each.uuid == card.uuid]
    memory = sum(each.memory for each in slices)
    if memory <= 0:
        return None
    if card.memory_mib is not None:
        memory = min(memory, max(1, card.memory_mib))
    # A slice without a core limit may use all cores.
    shares = [each.cores if limit_cores and 0 < each.cores < WHOLE_CARD_CORES else WHOLE_CARD_CORES for each in slices]
    return Limits(memory, min(sum(shares), WHOLE_CARD_CORES))


class ControlError(Exception):
    """A command failed; the text has the output."""


@dataclass(frozen=True, slots=True)
class MpsProgram:
    """How NVIDIA's program is run on this node."""

    command: tuple[str, ...] = (PROGRAM,)
    """may have a prefix that changes the root or the control group"""
    environ: Mapping[str, str] = field(default_factory=dict)
    answer_s: float = 5.0
    """for one command"""

    def environment(self, **more: str) -> dict[str, str]:
        own = {key: value for key, value in self.environ.items() if not key.startswith(OWN_VARIABLES)}
        return {**own, **more}


class MpsControl:
    """One daemon, addressed by its pipe directory. All methods raise ControlError."""

    def __init__(self, program: MpsProgram, *, pipes: Path, uuid: str) -> None:
        self._program = program
        self._pipes = pipes
        self._uuid = uuid

    async def servers(self) -> list[int]:
        """Returns process ids of the servers. Any valid reply means that the daemon works."""
        return _numbers(await self._ask("get_server_list"))

    async def clients(self, server: int) -> list[int]:
        answer = await self._ask(f"get_client_list {server}")
        return [] if _GONE.fullmatch(answer) else _numbers(answer)

    async def client_count(self) -> int:
        return sum([len(await self.clients(server)) for server in await self.servers()])

    async def set_ceiling(self, limits: Limits) -> None:
        """Limits all future clients, whether or not their server is running."""
        await self._set_memory(f"set_default_device_pinned_mem_limit {self._uuid} {limits.memory_mib}M")
        await self._set_cores("set_default_active_thread_percentage", limits.cores)
        # After the defaults are set, no new server can start with the old ones.
        for server in await self.servers():
            await self._set_memory(f"set_device_pinned_mem_limit {server} {self._uuid} {limits.memory_mib}M")
            await self._set_cores(f"set_active_thread_percentage {server}", limits.cores)

    async def quit(self) -> None:
        """Only for a daemon without clients."""
        await self._ask("quit")

    async def _set_memory(self, command: str) -> None:
        answer = await self._ask(command)
        if answer and not _GONE.fullmatch(answer):
            raise ControlError(f"{command}: {quoted(answer)}")

    async def _set_cores(self, command: str, cores: int) -> None:
        answer = await self._ask(f"{command} {cores}")
        if _GONE.fullmatch(answer):
            return
        # The reply is the percentage in force, also if the requested one was refused.
        with suppress(ValueError):
            if float(answer) == cores:
                return
        raise ControlError(f"{command} {cores}: {quoted(answer)}")

    async def _ask(self, command: str) -> str:
        environ = self._program.environment(**{PIPES: str(self._pipes)})
        try:
            asking = await asyncio.create_subprocess_exec(
                *self._program.command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                env=environ,
            )
        except OSError as error:
            raise ControlError(f"cannot run {self._program.command[0]}: {error}") from error
        try:
            async with asyncio.timeout(self._program.answer_s):
                output, _ = await asking.communicate(f"{command}\n".encode())
        except TimeoutError:
            raise ControlError(f"{command}: no answer within {self._program.answer_s:g} s") from None
        finally:
            if asking.returncode is None:
                with suppress(ProcessLookupError):
                    asking.kill()
                await asking.wait()
        answer = output.decode(errors="replace").strip()
        if asking.returncode != 0:
            raise ControlError(f"{command}: {quoted(answer)} (exit status {asking.returncode})")
        return answer


def _numbers(answer: str) -> list[int]:
    lines = answer.split()
    if not all(line.isascii() and line.isdecimal() for line in lines):
        raise ControlError(f"not a list of process ids: {quoted(answer)}")
    return [int(line) for line in lines]
