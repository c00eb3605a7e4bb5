"""Looks which instances there are, and says what resources they are.

    every LOOK_S, and at once when the fleet changes:   ask every card in MIG mode -> layout

A card that cannot be asked keeps the instances that were last seen on it: whether they are healthy says the fleet. The
hardware is only ever read, in one thread, each question with a deadline.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import aclosing, suppress
from functools import partial

import structlog

from tessera.node.fleet import Fleet
from tessera.node.health.call_thread import CallThread, NoAnswer
from tessera.node.inventory.cards import InventoryError, MigHardware, MigInstance
from tessera.node.static_mig.layout import Layout, layout_of
from tessera.node.watched_value import Current
from tessera.wire.node_config import MigStrategy

log = structlog.get_logger(__name__)

LOOK_S = 10.0
"""until an instance that somebody made or destroyed is noticed"""
ASK_S = 10.0
"""for one card"""
STOP_S = 1.0


class InstanceWatch:
    """Lives as long as its settings."""

    def __init__(self, hardware: MigHardware, fleet: Current[Fleet], *, strategy: MigStrategy) -> None:
        self._hardware = hardware
        self._fleet = fleet
        self._strategy = strategy
        self._calls = CallThread("static-mig")
        self._found: Mapping[str, tuple[MigInstance, ...]] = {}
        """by card"""
        self._problems: Mapping[str, str] = {}
        self._news = asyncio.Event()
        self.layout: Current[Layout | None] = Current(None)
        """None while nobody has looked yet"""

    def instances(self) -> tuple[MigInstance, ...]:
        """All that were seen."""
        return tuple(each for found in self._found.values() for each in found)

    async def run(self) -> None:
        """Until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._hear())
                group.create_task(self._look_again())
        finally:
            await self._calls.close(patience=STOP_S)

    async def _hear(self) -> None:
        async with aclosing(self._fleet.changes()) as fleets:
            async for _ in fleets:
                if self.layout.value is not None:
                    # Health first: a card that is ill may take long to answer.
                    self._publish()
                self._news.set()

    async def _look_again(self) -> None:
        while True:
            self._news.clear()
            await self._look(self._fleet.value)
            self._publish()
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._news.wait()

    async def _look(self, fleet: Fleet) -> None:
        found: dict[str, tuple[MigInstance, ...]] = {}
        problems: dict[str, str] = {}
        for uuid in (card.facts.uuid for card in fleet if card.facts.mig_enabled):
            try:
                answer = await self._calls.call(partial(self._hardware.instances, uuid), deadline=ASK_S)
            except (InventoryError, NoAnswer) as error:
                problems[uuid] = str(error)
                found[uuid] = self._found.get(uuid, ())
                if self._problems.get(uuid) != problems[uuid]:
                    log.warning("MIG instances of a card cannot be read", card=uuid, problem=problems[uuid])
            else:
                found[uuid] = tuple(answer)
        self._found, self._problems = found, problems

    def _publish(self) -> None:
        before = self.layout.value
        now = layout_of(self._fleet.value, self.instances(), strategy=self._strategy)
        for problem in now.problems:
            if before is None or problem not in before.problems:
                log.warning("MIG instances are not served", problem=problem)
        self.layout.set(now)
