"""A command of `tessera` in its own process, watched through its logs."""

from __future__ import annotations

import asyncio
import atexit
import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import cache
from typing import Any, Protocol, TypeVar

from tests.support.fork_server import ForkedProcess, ForkServer

Json = dict[str, Any]
T = TypeVar("T")

WAIT_S = 60.0
"""for a log line or the end; only a process that hangs takes so long"""
LAST_EVENTS = 20
"""shown when a test fails"""
OWN_PORTS = ("--extender-bind=127.0.0.1:0", "--metrics-bind-address=127.0.0.1:0")


class Process(Protocol):
    """As much of `asyncio.subprocess.Process` as is used here."""

    @property
    def pid(self) -> int: ...
    @property
    def stdout(self) -> asyncio.StreamReader | None: ...
    @property
    def stderr(self) -> asyncio.StreamReader | None: ...
    def send_signal(self, signal: int) -> None: ...
    def kill(self) -> None: ...
    async def wait(self) -> int: ...


class Command:
    """A running command. It logs JSON, one event per line; other lines are kept as text."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._news = asyncio.Event()
        self._reading = asyncio.gather(self._read_events(), self._read_output())
        self._reading.add_done_callback(lambda _reading: self._news.set())
        self.events: list[Json] = []
        self.words: list[str] = []
        """lines of stderr that are not events"""
        self.output = ""
        """stdout, complete at the end"""

    async def said(self, message: str) -> Json:
        """Waits for the first event with this message."""
        async with asyncio.timeout(WAIT_S):
            while True:
                self._news.clear()
                found = next((event for event in self.events if event["message"] == message), None)
                if found is not None:
                    return found
                assert not self._reading.done(), f"it ended without {message!r}"
                await self._news.wait()

    async def until(self, happening: Awaitable[T]) -> T:
        """Waits for an effect of the command; fails as soon as the command ends instead."""
        waiting = asyncio.ensure_future(happening)
        try:
            await asyncio.wait((waiting, self._reading), timeout=WAIT_S, return_when=asyncio.FIRST_COMPLETED)
            assert waiting.done(), "it ended too early" if self._reading.done() else f"nothing happened for {WAIT_S} s"
            return await waiting
        finally:
            waiting.cancel()

    def last_words(self) -> str:
        """What it wrote to stderr, and its last events."""
        return "\n".join([*self.words, *(json.dumps(event) for event in self.events[-LAST_EVENTS:])])

    async def address(self, what: str) -> str:
        """The address of a listener; all are known once the command is ready."""
        await self.said("ready")
        return str(next(event["address"] for event in self.events if event.get("what") == what))

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, number: int) -> None:
        self._process.send_signal(number)

    async def end(self) -> int:
        """Waits for the end; returns the exit code."""
        async with asyncio.timeout(WAIT_S):
            await self._reading
            return await self._process.wait()

    async def kill(self) -> None:
        with suppress(ProcessLookupError):
            self._process.kill()
        await self._reading
        await self._process.wait()

    async def _read_events(self) -> None:
        assert self._process.stderr is not None
        async for line in self._process.stderr:
            try:
                self.events.append(json.loads(line))
            except ValueError:
                self.words.append(line.decode().rstrip("\n"))
            self._news.set()

    async def _read_output(self) -> None:
        assert self._process.stdout is not None
        self.output = (await self._process.stdout.read()).decode()


def started(name: str, *arguments: str, **environ: str) -> AbstractAsyncContextManager[Command]:
    """Starts the command with only this environment, and ends it afterwards. Where it can be, it is forked."""
    spawn = _fork if sys.platform == "linux" else _execute
    return _watched(name, spawn([name, *arguments], {"PATH": os.defpath, **environ}))


def executed(name: str, *arguments: str, **environ: str) -> AbstractAsyncContextManager[Command]:
    """The same with a new interpreter: for tests of the start itself, and for what the fork server has not imported."""
    return _watched(name, _execute([name, *arguments], {"PATH": os.defpath, **environ}))


@asynccontextmanager
async def _watched(name: str, starting: Awaitable[Process]) -> AsyncIterator[Command]:
    command = Command(await starting)
    try:
        yield command
    except Exception as error:
        error.add_note(f"tessera {name} said:\n{command.last_words() or 'nothing'}")
        raise
    finally:
        await command.kill()


async def _execute(command: Sequence[str], environ: Mapping[str, str]) -> Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tessera", *command),
        # The same code as this process, wherever that comes from.
        env={"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **environ},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


class _Forked:
    """A forked command with the ends of its pipes."""

    def __init__(self, process: ForkedProcess, stdout: asyncio.StreamReader, stderr: asyncio.StreamReader) -> None:
        self._process = process
        self.pid = process.pid
        self.stdout = stdout
        self.stderr = stderr
        self.send_signal = process.send_signal
        self.kill = process.kill

    async def wait(self) -> int:
        return await asyncio.to_thread(self._process.wait)


async def _fork(command: Sequence[str], environ: Mapping[str, str]) -> Process:
    pipes = [os.pipe() for _ in range(2)]
    try:
        process = _fork_server().fork(command, environ=environ, stdout=pipes[0][1], stderr=pipes[1][1])
    finally:
        for _, theirs in pipes:
            os.close(theirs)
    stdout, stderr = [await _reader(ours) for ours, _ in pipes]
    return _Forked(process, stdout, stderr)


async def _reader(pipe: int) -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(pipe, "rb", 0)
    )
    return reader


@cache
def _fork_server() -> ForkServer:
    """One for all tests of this process."""
    server = ForkServer()
    atexit.register(server.stop)
    return server


def scheduler(*arguments: str, **environ: str) -> AbstractAsyncContextManager[Command]:
    return started("scheduler", *arguments, **environ)


async def ended(*arguments: str, **environ: str) -> tuple[int, Command]:
    """Starts the scheduler and waits for its end."""
    async with scheduler(*arguments, **environ) as command:
        return await command.end(), command
