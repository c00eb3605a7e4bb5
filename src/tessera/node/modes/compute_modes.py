"""The compute mode of cards, asked and set from a thread with a deadline.

EXCLUSIVE_PROCESS lets only the MPS server open the card, so that nobody gets past its limits; PROHIBITED lets nobody.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from tessera.node.health.call_thread import CallThread, NoAnswer
from tessera.node.inventory.cards import CardError, ComputeMode, ComputeModes

T = TypeVar("T")

ANSWER_S = 10.0
STOP_S = 2.0


class AskedModes:
    """Both raise CardError only. Closing ends the thread; the hardware is its owner's to close."""

    def __init__(self, modes: ComputeModes, *, answer_s: float = ANSWER_S) -> None:
        self._modes = modes
        self._answer_s = answer_s
        self._thread = CallThread("compute-modes")

    async def current(self, uuid: str) -> ComputeMode:
        return await self._call(uuid, lambda: self._modes.compute_mode(uuid))

    async def ensure(self, uuid: str, mode: ComputeMode) -> None:
        if await self.current(uuid) is not mode:
            await self._call(uuid, lambda: self._modes.set_compute_mode(uuid, mode))

    async def restore(self, uuid: str, mode: ComputeMode) -> None:
        """Go back to the mode before. One that somebody else chose since then stays."""
        if await self.current(uuid) is not ComputeMode.DEFAULT:
            await self.ensure(uuid, mode)

    async def close(self) -> None:
        await self._thread.close(patience=STOP_S)

    async def _call(self, uuid: str, work: Callable[[], T]) -> T:
        try:
            return await self._thread.call(work, deadline=self._answer_s)
        except CardError:
            raise
        except NoAnswer as error:
            raise CardError(uuid, f"the driver gives {error}") from error
        except Exception as error:
            # Whatever a driver or its binding comes up with, it must not end the agent.
            raise CardError(uuid, f"{type(error).__name__}: {error}") from error
