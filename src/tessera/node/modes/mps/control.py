"""Commands to the MPS control daemon of one card, and the limits that they set.

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
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tessera.core.requests import WHOLE_CARD_CORES
from tessera.host.cards import CardFacts
from tessera.node.handover.assignments import Assignment
from tessera.node.modes.mps.process import PIPES
from tessera.wire.quotes import quoted

PROGRAM = "nvidia-cuda-mps-control"
LOGS = "CUDA_MPS_LOG_DIRECTORY"
VISIBLE = "CUDA_VISIBLE_DEVICES"
OWN_VARIABLES = "CUDA_"
"""prefix of variables in the agent's environment that the daemons must not inherit"""
_GONE = re.compile(r"Server \d+ not found")


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
