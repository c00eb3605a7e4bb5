"""`tessera mps-daemons`: starts MPS control daemons for the agent, in a container that outlives the agent's.

    agent --(<mps-dir>/daemons.sock: the card's uuid)--> mps-daemons --(spawn)--> control daemon of the card
          <---------(its process id and start time)-----

A container runtime ends every process of a container with it, so daemons that the agent itself starts end with its
container, and with them all their clients. This process only starts daemons and reaps them. Everything else stays with
the agent, which sees the same processes and directories: when a daemon is needed, ceilings, compute modes, records,
taking over, stopping. Both need the host's process ids, and the host's directory of pipes at the same path.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec
import structlog

from tessera.node.modes.mps.control import (
    ControlError,
    MpsProgram,
    ProcessIdentity,
    WatchedProcess,
    identify,
    watch_process,
)
from tessera.node.modes.mps.daemon import CardDir, launch_here
from tessera.services.process import signals
from tessera.wire.errors import quoted

log = structlog.get_logger(__name__)

SOCKET = "daemons.sock"
"""in the directory of pipes, of which containers see only the part of their card"""
ANSWER_S = 10.0
"""for one request; starting a process takes milliseconds"""
MAX_BYTES = 4096
"""of a request or answer"""

_UUID = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,127}", re.ASCII)
"""part of a path, so nothing that leads out of a directory"""


class LaunchRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    uuid: str


class LaunchAnswer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    process: ProcessIdentity | None = None
    """None if it has already ended"""
    problem: str = ""


class SocketLauncher:
    """The agent's side: asks `mps-daemons`. `launch` is a `daemon.Launch`."""

    def __init__(self, root: Path) -> None:
        self._socket = root / SOCKET

    async def launch(self, card_dir: CardDir, uuid: str) -> ProcessIdentity | None:
        """Raises ControlError."""
        try:
            async with asyncio.timeout(ANSWER_S):
                text = await self._ask(msgspec.json.encode(LaunchRequest(uuid)))
            answer = msgspec.json.decode(text, type=LaunchAnswer)
        except TimeoutError:
            raise ControlError(f"`tessera mps-daemons` gives no answer within {ANSWER_S:g} s") from None
        except (OSError, ValueError) as error:
            raise ControlError(f"`tessera mps-daemons` cannot be asked at {self._socket}: {error}") from error
        if answer.problem:
            raise ControlError(f"`tessera mps-daemons`: {answer.problem}")
        return answer.process

    async def _ask(self, request: bytes) -> bytes:
        reader, writer = await asyncio.open_unix_connection(self._socket, limit=MAX_BYTES)
        try:
            writer.write(request + b"\n")
            return await reader.readline()
        finally:
            writer.close()


class DaemonStarter:
    """The other side. Daemons run on when it ends."""

    def __init__(self, root: Path, program: MpsProgram) -> None:
        self._root = root
        self._program = program
        self._started: dict[str, WatchedProcess] = {}
        self._starting = asyncio.Lock()
        self.is_listening = False

    async def run(self, stop: asyncio.Event) -> None:
        """Serves until `stop`. Raises OSError if it cannot listen."""
        self._root.mkdir(parents=True, exist_ok=True)
        path = self._root / SOCKET
        server = await asyncio.start_unix_server(self._serve, path, limit=MAX_BYTES, start_serving=False)
        # Before it listens: a user who may connect can start a process on the cards.
        path.chmod(0o600)
        await server.start_serving()
        self.is_listening = True
        log.info("waiting for requests", socket=str(path))
        try:
            await stop.wait()
        finally:
            server.close()
            for each in self._started.values():
                each.close()

    async def start(self, uuid: str) -> LaunchAnswer:
        """Starts the daemon of a card, unless the one that it started before still runs."""
        if not _UUID.fullmatch(uuid):
            return LaunchAnswer(problem=f"{quoted(uuid)} is no uuid of a card")
        async with self._starting:
            known = self._started.get(uuid)
            if known is not None and identify(known.who.pid) == known.who:
                return LaunchAnswer(known.who)
            try:
                who = await launch_here(self._program, CardDir(self._root, uuid), uuid)
            except OSError as error:
                return LaunchAnswer(problem=str(error))
            process = watch_process(who, lambda: log.info("an MPS control daemon ended", card=uuid)) if who else None
            if process is not None:
                self._started[uuid] = process
                log.info("an MPS control daemon was started", card=uuid, pid=process.who.pid)
            return LaunchAnswer(process.who if process is not None else None)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(ANSWER_S):
                request = msgspec.json.decode(await reader.readline(), type=LaunchRequest)
            answer = await self.start(request.uuid)
        except (TimeoutError, OSError, ValueError) as error:
            answer = LaunchAnswer(problem=f"not a request: {error}")
        with suppress(OSError):
            writer.write(msgspec.json.encode(answer) + b"\n")
            await writer.drain()
        writer.close()


def run(root: Path, environ: Mapping[str, str]) -> int:
    """Runs until a signal. Returns the exit code."""
    return asyncio.run(_run(root, MpsProgram(environ=environ)))


async def _run(root: Path, program: MpsProgram) -> int:
    stopping = asyncio.Event()
    try:
        with signals(stopping):
            await DaemonStarter(root, program).run(stopping)
    except OSError as error:
        log.error("cannot listen", error=str(error))
        return 1
    return 0
