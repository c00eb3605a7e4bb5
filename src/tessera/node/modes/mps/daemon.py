"""The MPS control daemon of one card: started or taken over, queried, stopped.

    none, card closed --start, ceiling, open--> serving, card exclusive to it --(it ended)--> none, card closed
    serving --retire--> none, compute mode as it was before the agent came

    <paths.mps>/<uuid>/daemon.json   process, ceiling, and the compute mode to restore; for the agent alone
                       pipe/         what containers see
                       log/

The daemon outlives the agent, so a restart does not disturb running clients; a later agent takes the recorded process
over. In a cluster it also outlives the agent's container, if another one starts it (`launcher`). The record is written
before the compute mode changes, so no crash loses the old mode. One daemon serves clients of all users
(`-multiuser-server`); otherwise one user's clients would wait for another's to end.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import msgspec
import structlog

from tessera.host.atomic_file import read_json, replace_file
from tessera.host.call_thread import AsyncComputeModes
from tessera.host.cards import ComputeMode
from tessera.node.modes.mps.control import (
    LOGS,
    PIPES,
    VISIBLE,
    ControlError,
    Limits,
    MpsControl,
    MpsProgram,
    ProcessIdentity,
    WatchedProcess,
    find_stray,
    identify,
    spawn,
    watch_process,
)

log = structlog.get_logger(__name__)

RECORD = "daemon.json"
PIPE = "pipe"
LOG = "log"
CONSOLE = "console.log"
OPEN_MODE = 0o755
"""for directories: clients of any user reach the pipes, and only the agent changes them"""
LOG_LIMIT_BYTES = 8 * 1024 * 1024
"""per file: the daemon logs a few lines per command, and /run is in memory"""
CONSOLE_TAIL = 400
"""characters"""

ARGUMENTS = ("-f", "-multiuser-server")
"""in the foreground: with `-d` only a file that every client may write would name the process"""
START_S = 10.0
"""until a new daemon must answer; a healthy one needs milliseconds"""
ASK_AGAIN_S = 0.05
END_S = 5.0
"""between `quit` and the end of the process"""


class DaemonRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    compute_mode: ComputeMode
    """of the card before the agent changed it"""
    process: ProcessIdentity | None = None
    ceiling: Limits | None = None


class CardDir:
    """The directory of one card. All methods block, and all but `load` raise OSError."""

    def __init__(self, root: Path, uuid: str) -> None:
        self.root = root
        self.path = root / uuid
        self.pipe = self.path / PIPE
        self.log = self.path / LOG
        self.console = self.log / CONSOLE
        self._record = self.path / RECORD

    def prepare(self) -> None:
        for path in (self.root, self.path, self.pipe, self.log):
            path.mkdir(parents=True, exist_ok=True)
            # Whatever the umask: a client that cannot reach the pipe would run without limits or not at all.
            path.chmod(OPEN_MODE)

    def load(self) -> DaemonRecord | None:
        try:
            return read_json(self._record, DaemonRecord)
        except (OSError, ValueError) as error:
            log.warning("the record of an MPS daemon is unreadable", file=str(self._record), error=str(error))
            return None

    def save(self, record: DaemonRecord) -> None:
        replace_file(self._record, msgspec.json.encode(record))

    def trim(self) -> None:
        """Truncates long logs; one that cannot be truncated stays."""
        for file in self.log.glob("*.log"):
            with suppress(OSError):
                if file.stat().st_size > LOG_LIMIT_BYTES:
                    os.truncate(file, 0)

    def last_words(self) -> str:
        """Returns the end of the daemon's output."""
        return " ".join(self.console.read_text(errors="replace")[-CONSOLE_TAIL:].split())

    def remove(self) -> None:
        shutil.rmtree(self.path)


def card_dirs(root: Path) -> list[CardDir]:
    """Returns the directories of all cards with a record. Raises OSError."""
    if not root.is_dir():
        return []
    return [CardDir(root, each.name) for each in sorted(root.iterdir()) if (each / RECORD).is_file()]


Launch = Callable[[CardDir, str], Awaitable[ProcessIdentity | None]]
"""starts the daemon of a card, by uuid; None if it has already ended. Raises ControlError and OSError"""


async def launch_here(program: MpsProgram, card_dir: CardDir, uuid: str) -> ProcessIdentity | None:
    """Starts it as a child of this process. Raises OSError."""
    environ = program.environment(**{VISIBLE: uuid, PIPES: str(card_dir.pipe), LOGS: str(card_dir.log)})
    command = (*program.command, *ARGUMENTS)
    return await asyncio.to_thread(spawn, command, environ=environ, console=card_dir.console)


class MpsDaemon:
    """Used by one task only (`MpsCard.run`). All methods raise ControlError, InventoryError and OSError."""

    def __init__(
        self,
        card_dir: CardDir,
        uuid: str,
        *,
        program: MpsProgram,
        modes: AsyncComputeModes,
        launch: Launch | None = None,
        start_s: float = START_S,
    ) -> None:
        """Without `launch` the daemon is a child of this process."""
        self._dir = card_dir
        self._uuid = uuid
        self._launch = launch or partial(launch_here, program)
        self._modes = modes
        self.on_end: Callable[[], None] = lambda: None
        """called when the daemon ended"""
        self._start_s = start_s
        self._process: WatchedProcess | None = None
        self._record: DaemonRecord | None = None
        self.control = MpsControl(program, pipes=card_dir.pipe, uuid=uuid)

    @property
    def ended(self) -> bool:
        """Whether there was a process that has ended."""
        return self._process is not None and self._process.ended.is_set()

    @property
    def running(self) -> bool:
        return self._process is not None and not self._process.ended.is_set()

    @property
    def remembered(self) -> Limits | None:
        """The last ceiling, also if an earlier agent set it."""
        return self._record.ceiling if self._record else None

    async def find(self) -> bool:
        """Takes over the daemon of an earlier agent; returns False if there is none."""
        self.close()
        self._record = self._record or await asyncio.to_thread(self._dir.load)
        who = self._record.process if self._record else None
        if who is None or identify(who.pid) != who:
            # The earlier agent was killed after starting it and before recording it.
            who = await asyncio.to_thread(find_stray, self._dir.pipe)
        self._process = watch_process(who, self.on_end) if who is not None else None
        return self._process is not None

    async def start(self) -> bool:
        """Ensures that a daemon runs; returns whether it is new. On failure none is left, and the card is closed."""
        await self.find()
        before = self._record or DaemonRecord(compute_mode=await self._modes.current(self._uuid))
        if self._process is not None:
            before = DaemonRecord(before.compute_mode, self._process.who, before.ceiling)
        await asyncio.to_thread(self._dir.prepare)
        await self._keep(before)
        if self._process is not None:
            return False
        await self.close_card()
        await self._spawn(before)
        return True

    async def close_card(self) -> None:
        """Lets no process open the card: without a daemon a client would run on it without limits."""
        await self._modes.ensure(self._uuid, ComputeMode.PROHIBITED)

    async def open_card(self) -> None:
        """Lets only the MPS server open the card."""
        await self._modes.ensure(self._uuid, ComputeMode.EXCLUSIVE_PROCESS)

    async def set_ceiling(self, limits: Limits) -> None:
        await self.control.set_ceiling(limits)
        if self._record is not None and self._record.ceiling != limits:
            await self._keep(DaemonRecord(self._record.compute_mode, self._record.process, limits))

    async def trim_logs(self) -> None:
        await asyncio.to_thread(self._dir.trim)

    async def kill(self) -> None:
        """Kills the daemon and with it its clients: only if no container may use the card."""
        if self._process is not None:
            self._process.kill()
            await self._process.wait_ended(within=END_S)

    async def retire(self) -> None:
        """Stops the daemon and restores the compute mode. Only for a card that no container may use."""
        if self._process is not None and not self._process.ended.is_set():
            await self._quit(self._process)
        if self._record is not None:
            await self._modes.restore(self._uuid, self._record.compute_mode)
            await asyncio.to_thread(self._dir.remove)
            self._record = None

    def close(self) -> None:
        """Stops watching the daemon, which continues."""
        if self._process is not None:
            self._process.close()
            self._process = None

    async def _spawn(self, before: DaemonRecord) -> None:
        who = await self._launch(self._dir, self._uuid)
        self._process = watch_process(who, self.on_end) if who is not None else None
        if who is None or self._process is None:
            raise ControlError(await self._ended_at_once())
        try:
            await self._keep(DaemonRecord(before.compute_mode, who, before.ceiling))
            await self._until_answering(self._process)
        except Exception:
            await self.kill()
            self.close()
            raise

    async def _quit(self, process: WatchedProcess) -> None:
        try:
            count = await self.control.client_count()
            if not count:
                await self.control.quit()
        except ControlError:
            # It does not answer, e.g. because a client connected just before a `quit`.
            await self.kill()
            return
        if count:
            raise ControlError(f"{count} processes still use it through MPS")
        if not await process.wait_ended(within=END_S):
            await self.kill()

    async def _until_answering(self, process: WatchedProcess) -> None:
        last = ""
        try:
            async with asyncio.timeout(self._start_s):
                while not process.ended.is_set():
                    try:
                        await self.control.servers()
                    except ControlError as error:
                        last = str(error)
                        await process.wait_ended(within=ASK_AGAIN_S)
                    else:
                        return
        except TimeoutError:
            raise ControlError(f"the MPS control daemon does not answer: {last}") from None
        raise ControlError(await self._ended_at_once())

    async def _ended_at_once(self) -> str:
        words = await asyncio.to_thread(self._dir.last_words)
        return f"the MPS control daemon ended at once: {words or 'no output'}"

    async def _keep(self, record: DaemonRecord) -> None:
        if record != self._record:
            await asyncio.to_thread(self._dir.save, record)
            self._record = record
