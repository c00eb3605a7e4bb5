"""Watches the hardware. The only writer of the fleet.

    every LATER_S, or SOON_S while anything is wrong, and at once after an event:   scan ----+--> roster --> fleet
    as long as there are cards, WAIT_S at a time:                       wait for an event ---+

An error in either loop is a fault of the cards and a pause. It never spins and never ends the watch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import structlog

from tessera.host.call_thread import AsyncInventory
from tessera.host.cards import InventoryError
from tessera.kube.backoff import Backoff
from tessera.node.fleet import Fleet
from tessera.node.health.roster import NOT_READ, Roster
from tessera.node.settings import AgentSettings
from tessera.node.watched_value import WatchedValue, is_set_within

log = structlog.get_logger(__name__)

LATER_S = 30.0
SOON_S = 5.0
GAP_S = 1.0
"""between two scans, whatever happens"""
WAIT_S = 0.5
"""for one event; stopping takes at most this long"""
PAUSES = Backoff(initial=1.0, cap=30.0, floor=0.5)
"""after failed waits; shorter than the quiet period of a card, so that no card recovers in between"""


class HardwareWatch:
    """Lives as long as the agent; `use` gives it other settings."""

    def __init__(self, inventory: AsyncInventory, settings: AgentSettings) -> None:
        self._inventory = inventory
        self._roster = Roster(settings)
        self.fleet: WatchedValue[Fleet] = WatchedValue(NOT_READ)
        """a fleet with a problem and without cards means that nothing is known, not that there are no cards"""
        self._strangers: Mapping[str, str] = {}
        self._unknown_names: tuple[str, ...] = ()
        self._scan_now = asyncio.Event()
        self._scanned = asyncio.Event()
        self._listen_again = False

    @property
    def faults(self) -> Mapping[str, int]:
        """Counted since the start, by card."""
        return self._roster.faults

    def use(self, settings: AgentSettings) -> None:
        """Takes other settings. Cards keep their health."""
        self._roster.use(settings)
        self._listen_again = True
        self._publish()
        self._scan_now.set()

    def mark(self, unfit: Mapping[str, str]) -> None:
        """`unfit` says why cards cannot be shared in the node's mode now; all others can."""
        if unfit != self._roster.unfit:
            self._roster.unfit = dict(unfit)
            self._publish()

    async def run(self) -> None:
        """Runs until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._scan_repeatedly())
            group.create_task(self._listen_repeatedly())

    async def _scan_repeatedly(self) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            self._scan_now.clear()
            started = clock()
            try:
                found = await self._inventory.scan()
            except InventoryError as error:
                self._roster.on_scan_failed(str(error), now=clock())
            else:
                self._roster.on_scan(found, now=clock())
                self._listen_again = self._roster.some_deaf
                self._scanned.set()
            self._publish()
            await is_set_within(self._scan_now, LATER_S if self._roster.is_well else SOON_S)
            await asyncio.sleep(max(0.0, started + GAP_S - clock()))

    async def _listen_repeatedly(self) -> None:
        clock = asyncio.get_running_loop().time
        heard: tuple[str, ...] = ()
        failures = 0
        while True:
            wanted = self._roster.to_listen
            if not wanted:
                heard = ()
                self._scanned.clear()
                await self._scanned.wait()
                continue
            try:
                if wanted != heard or self._listen_again:
                    self._listen_again = False
                    self._roster.on_listening(await self._inventory.listen(wanted), now=clock())
                    heard = wanted
                    self._publish()
                await self._wait(clock() + WAIT_S)
            except InventoryError as error:
                heard = ()
                failures += 1
                self._roster.on_listening_failed(str(error), now=clock())
                self._publish()
                self._scan_now.set()
                await asyncio.sleep(PAUSES.delay(failures))
            else:
                failures = 0

    async def _wait(self, until: float) -> None:
        clock = asyncio.get_running_loop().time
        event = await self._inventory.wait(WAIT_S)
        if event is None:
            # A driver without events to wait for may return at once.
            await asyncio.sleep(max(0.0, until - clock()))
        elif self._roster.on_event(event, now=clock()):
            self._publish()
            self._scan_now.set()
        else:
            log.debug("event of a card ignored", card=event.uuid, xid=event.xid)

    def _publish(self) -> None:
        old, new = self.fleet.value, self._roster.fleet
        _log_changes(old, new)
        for card, problem in self._roster.strangers.items():
            if self._strangers.get(card) != problem:
                log.warning("card left out: it cannot be read", card=card, problem=problem)
        self._strangers = self._roster.strangers
        if (unknown := self._roster.unknown_names) != self._unknown_names:
            self._unknown_names = unknown
            if unknown:
                log.warning("cardmodes of the node configuration names cards that are not there", cards=unknown)
        self.fleet.set(new)


def _log_changes(old: Fleet, new: Fleet) -> None:
    """Logs what became different, in order of cards. A scan without news logs nothing."""
    if new.problem and new.problem != old.problem:
        log.warning("the cards cannot be read", problem=new.problem)
    elif old.problem and not new.problem:
        log.info("the cards were read", cards=len(new.cards))
    for card in new:
        about: dict[str, object] = {"card": card.facts.uuid, "index": card.facts.index}
        known = old.card(card.facts.uuid)
        if known is None:
            log.info("card found", **about, model=card.facts.name)
        if card.problem and (known is None or card.problem != known.problem):
            log.warning("card unhealthy", **about, problem=card.problem)
        elif known is not None and known.problem and not card.problem:
            log.info("card healthy again", **about, problem_before=known.problem)
    for card in old:
        if new.card(card.facts.uuid) is None:
            log.warning("card no longer listed", card=card.facts.uuid, index=card.facts.index)
