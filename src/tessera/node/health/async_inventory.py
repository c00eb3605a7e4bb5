"""The inventory for the event loop: every call in a thread, with a deadline, and one kind of error.

Looking at cards and listening to them are two threads, so that a wait for events delays no scan. All calls about events
are made by the same thread: what is being waited for is never replaced under the one who waits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar

from tessera.node.health.call_thread import CallThread, NoAnswer
from tessera.node.inventory.cards import CardEvent, Found, Inventory, InventoryError, Links

T = TypeVar("T")

SCAN_DEADLINE_S = 60.0
"""a driver that is not kept awake needs seconds for every card"""
ANSWER_S = 10.0
"""how much longer than asked a wait for events may take, and how long smaller questions may take"""
STOP_S = 2.0


class AsyncInventory(Protocol):
    """`cards.Inventory` for coroutines: all raise InventoryError only."""

    async def scan(self) -> Sequence[Found]: ...

    async def listen(self, uuids: Sequence[str]) -> Mapping[str, str]: ...

    async def wait(self, timeout: float) -> CardEvent | None: ...


class AskedInventory:
    """An inventory asked from threads. Closing ends the threads; the inventory itself is its owner's to close."""

    def __init__(self, inventory: Inventory, *, scan_deadline: float = SCAN_DEADLINE_S) -> None:
        self._inventory = inventory
        self._scan_deadline = scan_deadline
        self._looking = CallThread("cards")
        self._hearing = CallThread("card-events")

    async def scan(self) -> Sequence[Found]:
        return await _asked(self._looking, self._inventory.scan, deadline=self._scan_deadline)

    async def links(self, uuids: Sequence[str]) -> Mapping[tuple[str, str], Links]:
        return await _asked(self._looking, lambda: self._inventory.links(uuids), deadline=ANSWER_S)

    async def listen(self, uuids: Sequence[str]) -> Mapping[str, str]:
        return await _asked(self._hearing, lambda: self._inventory.listen(uuids), deadline=ANSWER_S)

    async def wait(self, timeout: float) -> CardEvent | None:
        return await _asked(self._hearing, lambda: self._inventory.wait(timeout), deadline=timeout + ANSWER_S)

    async def close(self) -> None:
        await self._hearing.close(patience=STOP_S)
        await self._looking.close(patience=STOP_S)


async def _asked(thread: CallThread, work: Callable[[], T], *, deadline: float) -> T:
    try:
        return await thread.call(work, deadline=deadline)
    except InventoryError:
        raise
    except NoAnswer as error:
        raise InventoryError(f"the driver gives {error}") from error
    except Exception as error:
        # Whatever a driver or its binding comes up with, it must not end the agent.
        raise InventoryError(f"{type(error).__name__}: {error}") from error
