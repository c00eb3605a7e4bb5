"""Watches the hardware and says what there is: the only writer of the fleet.

    every LATER_S, or SOON_S while anything is wrong, and at once after an event:   scan ----+--> roster --> fleet
    as long as there are cards, WAIT_S at a time:                       wait for an event ---+

An error of either is a fault of the cards and a pause, never a loop without a pause and never the end of the watch.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from contextlib import suppress

import structlog

from tessera.kube.backoff import Backoff
from tessera.node.fleet import Fleet
from tessera.node.health.async_inventory import AsyncInventory
from tessera.node.health.fleet_diff import changes
from tessera.node.health.roster import NOT_READ, Roster
from tessera.node.inventory.cards import InventoryError
from tessera.node.settings import AgentSettings
from tessera.node.watched_value import Current

log = structlog.get_logger(__name__)

LATER_S = 30.0
SOON_S = 5.0
GAP_S = 1.0
"""between two scans, however many events there are"""
WAIT_S = 0.5
"""for one event: stopping has to wait no longer than this"""
PAUSES = Backoff(initial=1.0, cap=30.0, floor=0.5)
"""after waits that failed; shorter than the quiet that a card needs, so that none comes back in between"""


class HardwareWatch:
    """Lives as long as the agent; `use` gives it other settings."""

    def __init__(self, inventory: AsyncInventory, settings: AgentSettings, *, rng: random.Random | None = None) -> None:
        self._inventory = inventory
        self._roster = Roster(settings)
        self._rng = rng or random.Random()
        self._fleet = Current(NOT_READ)
        self._strangers: Mapping[str, str] = {}
        self._look_again = asyncio.Event()
        self._scanned = asyncio.Event()
        self._listen_again = False

    @property
    def fleet(self) -> Current[Fleet]:
        """A fleet with a problem and without cards means that nothing is known, not that there is nothing."""
        return self._fleet

    @property
    def faults(self) -> Mapping[str, int]:
        """Counted since the start, by card."""
        return self._roster.faults

    def use(self, settings: AgentSettings) -> None:
        """From now on. Cards keep their health."""
        self._roster.use(settings)
        self._listen_again = True
        self._publish()
        self._look_again.set()

    def mark(self, unfit: Mapping[str, str]) -> None:
        """These cards cannot be shared in the node's mode now, for these reasons; all others can."""
        if unfit != self._roster.unfit:
            self._roster.unfit = dict(unfit)
            self._publish()

    async def run(self) -> None:
        """For ever, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._look())
            group.create_task(self._hear())

    async def _look(self) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            self._look_again.clear()
            started = clock()
            try:
                found = await self._inventory.scan()
            except InventoryError as error:
                self._roster.not_scanned(str(error), now=clock())
            else:
                self._roster.scanned(found, now=clock())
                self._listen_again = self._roster.some_deaf
                self._scanned.set()
            self._publish()
            with suppress(TimeoutError):
                async with asyncio.timeout(LATER_S if self._roster.is_well else SOON_S):
                    await self._look_again.wait()
            await asyncio.sleep(max(0.0, started + GAP_S - clock()))

    async def _hear(self) -> None:
        clock = asyncio.get_running_loop().time
        heard: tuple[str, ...] = ()
        failures = 0
        while True:
            wanted = self._roster.to_hear
            if not wanted:
                heard = ()
                self._scanned.clear()
                await self._scanned.wait()
                continue
            try:
                if wanted != heard or self._listen_again:
                    self._listen_again = False
                    self._roster.heard(await self._inventory.listen(wanted), now=clock())
                    heard = wanted
                    self._publish()
                await self._wait(clock() + WAIT_S)
            except InventoryError as error:
                heard = ()
                failures += 1
                self._roster.not_heard(str(error), now=clock())
                self._publish()
                self._look_again.set()
                await asyncio.sleep(PAUSES.delay(failures, self._rng))
            else:
                failures = 0

    async def _wait(self, until: float) -> None:
        clock = asyncio.get_running_loop().time
        event = await self._inventory.wait(WAIT_S)
        if event is None:
            # A driver that has nothing to wait for may answer at once.
            await asyncio.sleep(max(0.0, until - clock()))
        elif self._roster.happened(event, now=clock()):
            self._publish()
            self._look_again.set()
        else:
            log.debug("event of a card ignored", card=event.uuid, xid=event.xid)

    def _publish(self) -> None:
        old, new = self._fleet.value, self._roster.fleet
        for change in changes(old, new):
            (log.warning if change.bad else log.info)(change.text, **change.fields)
        for card, problem in self._roster.strangers.items():
            if self._strangers.get(card) != problem:
                log.warning("card left out: it cannot be read", card=card, problem=problem)
        self._strangers = self._roster.strangers
        self._fleet.set(new)
