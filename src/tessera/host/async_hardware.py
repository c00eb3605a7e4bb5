"""The hardware for the event loop: every call runs in a thread with a deadline and raises only InventoryError.

Scans and events have separate threads, so that waiting for an event delays no scan. One thread makes all calls about
events: an event set is never replaced while another thread waits on it. Closing ends the threads; the owner of the
hardware closes the hardware.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from tessera.host.call_thread import CallThread, CallTimeout
from tessera.host.cards import CardEvent, ComputeMode, ComputeModes, Found, Inventory, InventoryError, Links

T = TypeVar("T")

SCAN_DEADLINE_S = 60.0
"""without persistence mode, the driver needs seconds for each card"""
ANSWER_S = 10.0
"""for all other calls; a wait for events may take this much longer than its timeout"""
STOP_S = 2.0


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
