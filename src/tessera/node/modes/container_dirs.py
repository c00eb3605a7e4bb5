"""Gives every container its folder on the host, and removes folders that nobody needs any more.

Folders are made and moved aside by one thread, in the order in which that was decided on the event loop: a folder that
is given again is never taken away by an older decision. Emptying what was moved aside has a thread of its own, so that
no handover waits for it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from pathlib import Path
from typing import TypeVar

import structlog

from tessera.node.handover.claims import Claim
from tessera.node.health.call_thread import CallThread, NoAnswer
from tessera.node.modes.base import Refused
from tessera.node.modes.dir_retention import Keeping
from tessera.node.modes.host_dirs import Folders, cache_of

log = structlog.get_logger(__name__)

DEADLINE_S = 10.0
"""for the folders of one container; well under a millisecond on a working disk"""
LOOK_EVERY_S = 60.0
"""for folders that nobody needs any more"""
SHOWN = 3
"""problems in one message"""

Held = Callable[[], Awaitable[Collection[Collection[str]] | None]]
"""the device ids of every container that holds some, as kubelet says; None = it cannot be asked"""

T = TypeVar("T")


async def nobody_knows() -> None:
    """For an agent that cannot ask kubelet who holds what."""
    return None


class ContainerFolders:
    """Used from the event loop only."""

    def __init__(
        self,
        folders: Folders,
        *,
        held: Held = nobody_knows,
        keeping: Keeping | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folders = folders
        self._held = held
        self._keeping = keeping or Keeping()
        self._now = now
        self._thread = CallThread("folders")
        self._broom = CallThread("old-folders")
        self._tidy = False
        self._look_at = now()
        self._complaint = ""

    async def give(self, name: str, device_ids: Collection[str], *, after: Callable[[], T]) -> tuple[Path, T]:
        """A new folder for whoever holds these ids, and the result of what has to succeed in the thread before.

        Raises Refused.
        """
        self._keeping.handed_over(name, device_ids)
        self._tidy = False

        def work() -> tuple[Path, T]:
            first = after()
            return self._folders.recreate(name), first

        try:
            return await self.ask(work)
        finally:
            self._thread.follow_up(self._folders.stock)

    async def ask(self, work: Callable[[], T]) -> T:
        """The result of something that blocks. Raises Refused."""
        try:
            return await self._thread.call(work, deadline=DEADLINE_S)
        except (OSError, NoAnswer) as error:
            raise Refused(f"the container's folders on the host cannot be made: {error}") from error

    async def tidy(self, live: Sequence[Claim]) -> None:
        """Let go of what belongs to none of these. A fault is logged once and tried again later."""
        try:
            if self._now() >= self._look_at:
                self._look_at = self._now() + LOOK_EVERY_S
                await self._let_go(live)
            if not self._tidy:
                emptied = await self._broom.call(self._folders.empty, deadline=DEADLINE_S)
                self._tidy = emptied.finished
                self._complain("; ".join(emptied.problems[:SHOWN]))
        except (OSError, NoAnswer, Refused) as error:
            self._complain(f"{type(error).__name__}: {error}")

    async def stop(self) -> None:
        await self._thread.close(patience=DEADLINE_S)
        await self._broom.close(patience=DEADLINE_S)

    async def _let_go(self, live: Sequence[Claim]) -> None:
        names = await self._thread.call(self._folders.names, deadline=DEADLINE_S)
        async with asyncio.timeout(DEADLINE_S):
            held = await self._held()
        going = self._keeping.take_unused(names, live=live, held=held, now=self._now())
        if going:
            self._tidy = False
            # The thread is asked at once, without any wait: a handover that comes later also comes later there.
            caches = [cache_of(claim) for claim in live]
            await self._thread.call(lambda: self._set_aside(going, caches), deadline=DEADLINE_S)

    def _set_aside(self, names: Sequence[str], caches: Collection[str]) -> None:
        """Not where a living container counts: kubelet does not tell what init containers hold."""
        for name in names:
            self._folders.discard(name, unless=caches)

    def _complain(self, problem: str) -> None:
        """Once for every change, not once a round."""
        if problem and problem != self._complaint:
            log.warning("old folders of containers cannot be removed", problem=problem)
        self._complaint = problem
