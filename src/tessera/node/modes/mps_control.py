"""Speaking to the MPS control daemon of one card: one command, one run of NVIDIA's program, one deadline.

The program says most refusals in text and ends with 0 all the same, so an answer counts only where it is what the
command answers when it worked. It never asks a daemon that has clients to quit: that daemon would answer nobody any
more until the last of them ended.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tessera.node.modes.mps_limits import Limits
from tessera.node.modes.mps_process import PIPES
from tessera.wire.quotes import quoted

PROGRAM = "nvidia-cuda-mps-control"
LOGS = "CUDA_MPS_LOG_DIRECTORY"
VISIBLE = "CUDA_VISIBLE_DEVICES"
OWN_VARIABLES = "CUDA_"
"""what begins so in the agent's own environment is not meant for the daemons"""

_GONE = re.compile(r"Server \d+ not found")


class ControlError(Exception):
    """The daemon, or the program that speaks to it, did not do what was asked; the text says what it said."""


@dataclass(frozen=True, slots=True)
class MpsProgram:
    """NVIDIA's program as it is called on this node."""

    command: tuple[str, ...] = (PROGRAM,)
    """may begin with what brings it to the driver's files or out of the agent's control group"""
    environ: Mapping[str, str] = field(default_factory=dict)
    answer_s: float = 5.0
    """for one command"""

    def environment(self, **more: str) -> dict[str, str]:
        own = {key: value for key, value in self.environ.items() if not key.startswith(OWN_VARIABLES)}
        return {**own, **more}


class MpsControl:
    """One daemon, by its folder of pipes. All methods raise ControlError."""

    def __init__(self, program: MpsProgram, *, pipes: Path, uuid: str) -> None:
        self._program = program
        self._pipes = pipes
        self._uuid = uuid

    async def servers(self) -> list[int]:
        """Process ids of the servers; an answer at all means that the daemon serves."""
        return _numbers(await self._ask("get_server_list"))

    async def clients(self, server: int) -> list[int]:
        answer = await self._ask(f"get_client_list {server}")
        return [] if _GONE.fullmatch(answer) else _numbers(answer)

    async def client_count(self) -> int:
        return sum([len(await self.clients(server)) for server in await self.servers()])

    async def set_ceiling(self, limits: Limits) -> None:
        """For all clients from now on, whether their server runs already or not."""
        await self._set_memory(f"set_default_device_pinned_mem_limit {self._uuid} {limits.memory_mib}M")
        await self._set_cores("set_default_active_thread_percentage", limits.cores)
        # Asked after the defaults are set: no server can come in between with the old ones.
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
        # The percentage that is now in force is the answer, also where the one that was asked for is refused.
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
