"""Calls that block and cannot be interrupted, each with a deadline; and the hardware for the event loop on top of it.

The calls of one `CallThread` run one after the other. A call that outlives its deadline keeps the thread; later callers
are refused instead of queueing behind it. The thread never keeps the process from exiting.

Scans of the hardware and its events have separate threads, so that waiting for an event delays no scan. One thread
makes all calls about events: an event set is never replaced while another thread waits on it. All raise InventoryError
only. Closing ends the threads; the owner of the hardware closes the hardware.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, TypeVar

from tessera.host.cards import CardEvent, ComputeMode, ComputeModes, Found, Inventory, InventoryError, Links

T = TypeVar("T")

SCAN_DEADLINE_S = 60.0
"""without persistence mode, the driver needs seconds for each card"""
ANSWER_S = 10.0
"""for all other calls; a wait for events may take this much longer than its timeout"""
STOP_S = 2.0


class CallTimeout(Exception):
    """The call did not end in time; the text says after how long."""


class CallThread:
    """Used from one event loop. Call nothing after `close`."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._abandoned: Future[Any] | None = None

    async def call(self, work: Callable[[], T], *, deadline: float) -> T:
        """Returns or raises what `work` does. Raises CallTimeout after `deadline` seconds."""
        if self._thread is None:
            # A daemon thread, unlike those of executors: the interpreter does not wait for a driver that hangs.
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        try:
            async with asyncio.timeout(deadline):
                if self._abandoned is not None:
                    await _ended(self._abandoned)
                    self._abandoned = None
                future: Future[T] = Future()
                self._calls.put((future, work))
                try:
                    await _ended(future)
                finally:
                    if not future.done() and not future.cancel():
                        self._abandoned = future
        except TimeoutError:
            raise CallTimeout(f"no answer within {deadline:g} s") from None
        return future.result()

    def follow_up(self, work: Callable[[], object]) -> None:
        """Runs `work` after the calls so far and drops its outcome. Does nothing before the first call."""
        if self._thread is not None:
            self._calls.put((Future(), work))

    async def close(self, *, patience: float) -> None:
        """Ends the thread, waiting at most `patience` seconds for the call in progress."""
        if self._thread is None:
            return
        self._thread = None
        self._calls.put(None)
        with suppress(TimeoutError):
            async with asyncio.timeout(patience):
                if self._abandoned is not None:
                    await _ended(self._abandoned)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            future, work = call
            if not future.set_running_or_notify_cancel():
                continue
            try:
                result = work()
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)


async def call_once(name: str, work: Callable[[], T], *, deadline: float) -> T:
    """Like `CallThread.call`, in a thread for this call alone."""
    thread = CallThread(name)
    try:
        return await thread.call(work, deadline=deadline)
    finally:
        await thread.close(patience=0.0)


async def _ended(future: Future[Any]) -> None:
    """Waits until the call has ended. Cancelling this does not affect the call."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()

    def tell(_: Future[Any]) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(ended.set)

    future.add_done_callback(tell)
    await ended.wait()


class AsyncInventory:
    """`cards.Inventory` as coroutines."""

    def __init__(self, inventory: Inventory, *, scan_deadline: float = SCAN_DEADLINE_S) -> None:
        self._inventory = inventory
        self._scan_deadline = scan_deadline
        self._scans = CallThread("cards")
        self._events = CallThread("card-events")

    async def scan(self) -> Sequence[Found]:
        return await _call(self._scans, self._inventory.scan, deadline=self._scan_deadline)

    async def links(self, uuids: Sequence[str]) -> Mapping[tuple[str, str], Links]:
        return await _call(self._scans, lambda: self._inventory.links(uuids), deadline=ANSWER_S)

    async def listen(self, uuids: Sequence[str]) -> Mapping[str, str]:
        return await _call(self._events, lambda: self._inventory.listen(uuids), deadline=ANSWER_S)

    async def wait(self, timeout: float) -> CardEvent | None:
        return await _call(self._events, lambda: self._inventory.wait(timeout), deadline=timeout + ANSWER_S)

    async def close(self) -> None:
        await self._events.close(patience=STOP_S)
        await self._scans.close(patience=STOP_S)


class AsyncComputeModes:
    """`cards.ComputeModes` as coroutines.

    EXCLUSIVE_PROCESS lets only the MPS server open the card, so no process escapes its limits; PROHIBITED lets none.
    """

    def __init__(self, modes: ComputeModes, *, answer_s: float = ANSWER_S) -> None:
        self._modes = modes
        self._answer_s = answer_s
        self._thread = CallThread("compute-modes")

    async def current(self, uuid: str) -> ComputeMode:
        return await self._call(lambda: self._modes.compute_mode(uuid))

    async def ensure(self, uuid: str, mode: ComputeMode) -> None:
        if await self.current(uuid) is not mode:
            await self._call(lambda: self._modes.set_compute_mode(uuid, mode))

    async def restore(self, uuid: str, mode: ComputeMode) -> None:
        """Goes back to an earlier mode. DEFAULT stays: another program chose it since then."""
        if await self.current(uuid) is not ComputeMode.DEFAULT:
            await self.ensure(uuid, mode)

    async def close(self) -> None:
        await self._thread.close(patience=STOP_S)

    async def _call(self, work: Callable[[], T]) -> T:
        return await _call(self._thread, work, deadline=self._answer_s)


async def _call(thread: CallThread, work: Callable[[], T], *, deadline: float) -> T:
    try:
        return await thread.call(work, deadline=deadline)
    except InventoryError:
        raise
    except CallTimeout as error:
        raise InventoryError(f"the driver gives {error}") from error
    except Exception as error:
        # No exception of a driver or its binding may end the agent.
        raise InventoryError(f"{type(error).__name__}: {error}") from error
