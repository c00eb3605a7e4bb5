"""The control daemon of one card: begun or taken over, asked, ended.

    none, card shut --begin, ceiling, open--> serving, card exclusive to it --(it ended)--> none, card shut
    serving --retire--> none, compute mode as it was before the agent came

The daemon outlives the agent, so that running clients notice nothing of a restart: a later agent takes the recorded
process over. One daemon serves clients of all users (`-multiuser-server`); without that, those of another user would
wait for the last of the first to end. Used by one task only (`mps_card`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tessera.node.inventory.cards import ComputeMode
from tessera.node.modes.compute_modes import AskedModes
from tessera.node.modes.mps_control import LOGS, VISIBLE, ControlError, MpsControl, MpsProgram
from tessera.node.modes.mps_limits import Limits
from tessera.node.modes.mps_process import PIPES, Watched, identity, spawn, stray, watch
from tessera.node.modes.mps_record import CardFolder, Record

ARGUMENTS = ("-f", "-multiuser-server")
"""in the foreground: with `-d` nobody would know its process but a file that every client may write"""
START_S = 10.0
"""until a daemon that has just begun must answer; a healthy one needs milliseconds"""
ASK_AGAIN_S = 0.05
END_S = 5.0
"""between `quit` and the end of the process"""


class MpsDaemon:
    """All methods raise ControlError, CardError and OSError."""

    def __init__(
        self,
        folder: CardFolder,
        uuid: str,
        *,
        program: MpsProgram,
        modes: AskedModes,
        start_s: float = START_S,
    ) -> None:
        self._folder = folder
        self._uuid = uuid
        self._program = program
        self._modes = modes
        self.on_end: Callable[[], None] = lambda: None
        """called as soon as the daemon ended"""
        self._start_s = start_s
        self._process: Watched | None = None
        self._record: Record | None = None
        self.control = MpsControl(program, pipes=folder.pipe, uuid=uuid)

    @property
    def ended(self) -> bool:
        """Whether there was a process and is none any more."""
        return self._process is not None and self._process.ended.is_set()

    @property
    def running(self) -> bool:
        return self._process is not None and not self._process.ended.is_set()

    @property
    def remembered(self) -> Limits | None:
        """The ceiling that was last set, also by an agent before this one."""
        return self._record.ceiling if self._record else None

    async def find(self) -> bool:
        """Take over a daemon that an agent before this one began; False where there is none."""
        self.close()
        self._record = self._record or await asyncio.to_thread(self._folder.load)
        who = self._record.process if self._record else None
        if who is None or identity(who.pid) != who:
            # Begun and not yet written down when that agent was killed.
            who = await asyncio.to_thread(stray, self._folder.pipe)
        self._process = watch(who, self.on_end) if who is not None else None
        return self._process is not None

    async def begin(self) -> bool:
        """Have a daemon on the card; whether it is a new one. On failure none is left behind, and the card is shut."""
        await self.find()
        before = self._record or Record(compute_mode=await self._modes.current(self._uuid))
        if self._process is not None:
            before = Record(before.compute_mode, self._process.who, before.ceiling)
        await asyncio.to_thread(self._folder.prepare)
        await self._keep(before)
        if self._process is not None:
            return False
        await self.shut()
        await self._start(before)
        return True

    async def shut(self) -> None:
        """Nobody may open the card: without a daemon a client would run on it alone and without limits."""
        await self._modes.ensure(self._uuid, ComputeMode.PROHIBITED)

    async def open(self) -> None:
        """Nobody but the MPS server may open the card."""
        await self._modes.ensure(self._uuid, ComputeMode.EXCLUSIVE_PROCESS)

    async def set_ceiling(self, limits: Limits) -> None:
        await self.control.set_ceiling(limits)
        if self._record is not None and self._record.ceiling != limits:
            await self._keep(Record(self._record.compute_mode, self._record.process, limits))

    async def trim_logs(self) -> None:
        await asyncio.to_thread(self._folder.trim)

    async def kill(self) -> None:
        """Its clients end with it: only where nobody has a right to the card."""
        if self._process is not None:
            self._process.kill()
            await self._process.over(within=END_S)

    async def retire(self) -> None:
        """End it, give the card its compute mode back and forget it. Only for a card that nobody has a right to."""
        if self._process is not None and not self._process.ended.is_set():
            await self._quit(self._process)
        if self._record is not None:
            await self._modes.restore(self._uuid, self._record.compute_mode)
            await asyncio.to_thread(self._folder.remove)
            self._record = None

    def close(self) -> None:
        """Hear of it no more; it goes on."""
        if self._process is not None:
            self._process.close()
            self._process = None

    async def _start(self, before: Record) -> None:
        environ = self._program.environment(
            **{VISIBLE: self._uuid, PIPES: str(self._folder.pipe), LOGS: str(self._folder.log)}
        )
        command = (*self._program.command, *ARGUMENTS)
        who = await asyncio.to_thread(spawn, command, environ=environ, console=self._folder.console)
        self._process = watch(who, self.on_end) if who is not None else None
        if who is None or self._process is None:
            raise ControlError(await self._ended_at_once())
        try:
            await self._keep(Record(before.compute_mode, who, before.ceiling))
            await self._until_answering(self._process)
        except Exception:
            await self.kill()
            self.close()
            raise

    async def _quit(self, process: Watched) -> None:
        try:
            count = await self.control.client_count()
            if not count:
                await self.control.quit()
        except ControlError:
            # It answers nobody, as after a `quit` that a client came in before.
            await self.kill()
            return
        if count:
            raise ControlError(f"{count} processes still use it through MPS")
        if not await process.over(within=END_S):
            await self.kill()

    async def _until_answering(self, process: Watched) -> None:
        last = ""
        try:
            async with asyncio.timeout(self._start_s):
                while not process.ended.is_set():
                    try:
                        await self.control.servers()
                    except ControlError as error:
                        last = str(error)
                        await process.over(within=ASK_AGAIN_S)
                    else:
                        return
        except TimeoutError:
            raise ControlError(f"the MPS control daemon does not answer: {last}") from None
        raise ControlError(await self._ended_at_once())

    async def _ended_at_once(self) -> str:
        words = await asyncio.to_thread(self._folder.last_words)
        return f"the MPS control daemon ended at once: {words or 'it said nothing'}"

    async def _keep(self, record: Record) -> None:
        if record != self._record:
            await asyncio.to_thread(self._folder.save, record)
            self._record = record
