from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress

import pytest

from tessera.host.call_thread import AsyncInventory
from tessera.host.cards import CardEvent, CardFacts, Found, InventoryError, UnreadableCard
from tessera.node.fleet import Fleet
from tessera.node.health.hardware_watch import HardwareWatch
from tessera.node.health.roster import GONE, NOT_READ
from tessera.node.health.xids import HealthRules
from tessera.node.settings import AgentSettings
from tessera.wire.node_config import DeviceFilter, NodeSettings
from tests.support.event_loops import in_fake_time
from tests.support.logs import Logs, captured

A, B = (CardFacts(f"GPU-{name}", index, "NVIDIA H200") for index, name in enumerate("ab"))
SETTINGS = AgentSettings(node_name="n1")


class ScriptedInventory(AsyncInventory):
    """Cards as a test sets them. Time passes in waits only."""

    def __init__(self, *cards: Found) -> None:
        self.cards: list[Found] | InventoryError = list(cards)
        self.deaf: dict[str, str] = {}
        self.wait_error: InventoryError | None = None
        self.empty_waits_last = True
        self.events: asyncio.Queue[CardEvent] = asyncio.Queue()
        self.scans: list[float] = []
        self.waits: list[float] = []
        self.listened: list[tuple[str, ...]] = []

    async def scan(self) -> Sequence[Found]:
        self.scans.append(asyncio.get_running_loop().time())
        if isinstance(self.cards, InventoryError):
            raise self.cards
        return list(self.cards)

    async def listen(self, uuids: Sequence[str]) -> Mapping[str, str]:
        self.listened.append(tuple(uuids))
        return {uuid: why for uuid, why in self.deaf.items() if uuid in uuids}

    async def wait(self, timeout: float) -> CardEvent | None:
        self.waits.append(asyncio.get_running_loop().time())
        if self.wait_error is not None:
            raise self.wait_error
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout if self.empty_waits_last else 0):
                return await self.events.get()
        return None


class World:
    """A running watch and what it said."""

    def __init__(self, inventory: ScriptedInventory, logs: Logs, settings: AgentSettings) -> None:
        self.inventory, self.logs = inventory, logs
        self.watch = HardwareWatch(inventory, settings)

    @property
    def problems(self) -> dict[str, str]:
        return {card.facts.uuid: card.problem for card in self.watch.fleet.value}

    async def until(self, problems: dict[str, str]) -> float:
        """When the fleet became so."""
        async with aclosing(self.watch.fleet.changes()) as values:
            async for _ in values:
                if self.problems == problems:
                    return asyncio.get_running_loop().time()
        raise AssertionError("the fleet has no end")

    def said(self) -> list[str]:
        return [str(event["event"]) for event in self.logs.events if event["level"] != "debug"]


@asynccontextmanager
async def watching(*cards: Found, settings: AgentSettings = SETTINGS) -> AsyncIterator[World]:
    """A watch that has seen these cards and listens to them."""
    with captured() as logs:
        world = World(ScriptedInventory(*cards), logs, settings)
        assert world.watch.fleet.value == NOT_READ
        task = asyncio.create_task(world.watch.run())
        await asyncio.sleep(0.1)
        try:
            yield world
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


@in_fake_time
async def test_cards_are_read_at_once_and_then_every_thirty_seconds() -> None:
    async with watching(A, B) as world:
        assert world.problems == {"GPU-a": "", "GPU-b": ""}
        await asyncio.sleep(100)
        assert world.inventory.scans == [0, 30, 60, 90]
        assert world.inventory.listened == [("GPU-a", "GPU-b")]
        assert world.said() == ["the cards were read", "card found", "card found"]


@in_fake_time
async def test_hardware_that_cannot_be_read_is_asked_again_every_five_seconds() -> None:
    async with watching() as world:
        world.inventory.cards = InventoryError("driver not loaded")
        await asyncio.sleep(50)
        assert world.watch.fleet.value == Fleet(problem="driver not loaded")
        assert world.inventory.scans[-4:] == [35, 40, 45, 50]
        world.inventory.cards = [A]
        await world.until({"GPU-a": ""})
        assert world.said() == [
            "the cards were read",
            "the cards cannot be read",
            "the cards were read",
            "card found",
        ]


@in_fake_time
async def test_a_driver_that_comes_late_gives_its_cards_by_itself() -> None:
    with captured() as logs:
        world = World(ScriptedInventory(), logs, SETTINGS)
        world.inventory.cards = InventoryError("driver not loaded")
        task = asyncio.create_task(world.watch.run())
        await asyncio.sleep(12)
        world.inventory.cards = [A]
        assert await world.until({"GPU-a": ""}) == 15
        assert world.watch.fleet.value.problem == ""
        task.cancel()
        await asyncio.wait({task})


@in_fake_time
async def test_a_fatal_event_is_seen_at_once_and_the_card_comes_back_by_itself() -> None:
    async with watching(A, B) as world:
        world.inventory.events.put_nowait(CardEvent("GPU-b", xid=31))
        world.inventory.events.put_nowait(CardEvent("GPU-a", xid=79))
        fell = await world.until({"GPU-a": "XID 79: the card has fallen off the bus", "GPU-b": ""})
        assert fell < 1
        back = await world.until({"GPU-a": "", "GPU-b": ""})
        assert 60 <= back - fell <= 66
        assert world.watch.faults == {"GPU-a": 1, "GPU-b": 0}
        assert world.said()[-2:] == ["card unhealthy", "card healthy again"]


@in_fake_time
async def test_a_storm_of_events_is_no_storm_of_scans_and_of_lines() -> None:
    async with watching(A) as world:
        for _ in range(200):
            world.inventory.events.put_nowait(CardEvent("GPU-a", xid=48))
        await asyncio.sleep(9.5)
        assert world.watch.faults == {"GPU-a": 200}
        assert len(world.inventory.scans) <= 4
        assert world.said().count("card unhealthy") == 1


@in_fake_time
async def test_one_card_that_cannot_be_read_is_unhealthy_and_the_other_stays() -> None:
    async with watching(A, B) as world:
        world.inventory.cards = [A, UnreadableCard(1, "GPU is lost")]
        await world.until({"GPU-a": "", "GPU-b": "GPU is lost"})
        await asyncio.sleep(30)
        world.inventory.cards = [A, B]
        await world.until({"GPU-a": "", "GPU-b": ""})
        assert world.inventory.listened == [("GPU-a", "GPU-b"), ("GPU-a",), ("GPU-a", "GPU-b")]


@pytest.mark.no_cover
@in_fake_time
async def test_a_wait_that_fails_makes_all_cards_unhealthy_and_is_no_busy_loop() -> None:
    async with watching(A, B) as world:
        world.inventory.wait_error = InventoryError("unknown error")
        await world.until(dict.fromkeys(("GPU-a", "GPU-b"), "events cannot be received: unknown error"))
        begun = len(world.inventory.waits)
        await asyncio.sleep(3600)
        assert len(world.inventory.waits) - begun < 500
        assert all(world.problems.values())
        world.inventory.wait_error = None
        await world.until({"GPU-a": "", "GPU-b": ""})
        assert world.said().count("card unhealthy") == 2


@in_fake_time
async def test_a_driver_that_answers_waits_at_once_is_no_busy_loop() -> None:
    async with watching(A) as world:
        world.inventory.empty_waits_last = False
        await asyncio.sleep(60)
        assert len(world.inventory.waits) <= 125


@in_fake_time
async def test_a_card_that_cannot_be_heard_is_listened_to_again_until_it_can() -> None:
    async with watching(A, B) as world:
        world.inventory.deaf = {"GPU-b": "no memory"}
        world.inventory.cards = [A]
        await world.until({"GPU-a": "", "GPU-b": GONE})
        world.inventory.cards = [A, B]
        await world.until({"GPU-a": "", "GPU-b": "its events cannot be received: no memory"})
        await asyncio.sleep(300)
        assert world.problems["GPU-a"] == ""
        assert world.problems["GPU-b"]
        world.inventory.deaf = {}
        await world.until({"GPU-a": "", "GPU-b": ""})


@pytest.mark.no_cover
@in_fake_time
async def test_cards_that_stay_unknown_are_named_once() -> None:
    async with watching(A, UnreadableCard(1, "GPU is lost")) as world:
        await asyncio.sleep(600)
        assert world.problems == {"GPU-a": ""}
        assert world.said().count("card left out: it cannot be read") == 1


@in_fake_time
async def test_without_health_checks_no_event_is_waited_for() -> None:
    async with watching(A, settings=AgentSettings(node_name="n1", health=HealthRules(health_checks=False))) as world:
        await asyncio.sleep(60)
        assert world.problems == {"GPU-a": ""}
        assert (world.inventory.listened, world.inventory.waits) == ([], [])


@in_fake_time
async def test_other_settings_hold_at_once_and_cards_keep_their_health() -> None:
    async with watching(A, B) as world:
        world.inventory.events.put_nowait(CardEvent("GPU-a", xid=79))
        await world.until({"GPU-a": "XID 79: the card has fallen off the bus", "GPU-b": ""})
        filtered = NodeSettings(filtered=DeviceFilter(index=(1,)))
        world.watch.use(AgentSettings(node_name="n1", node=filtered))
        assert list(world.problems) == ["GPU-a"]
        assert world.problems["GPU-a"]
        await asyncio.sleep(5)
        assert world.inventory.listened[-1] == ("GPU-a",)
        world.watch.use(SETTINGS)
        await asyncio.sleep(5)
        assert list(world.problems) == ["GPU-a", "GPU-b"]


@in_fake_time
async def test_a_card_that_the_mode_cannot_share_takes_no_work_until_it_can() -> None:
    async with watching(A, B) as world:
        world.watch.mark({"GPU-a": "its MPS daemon does not begin"})
        assert world.problems == {"GPU-a": "its MPS daemon does not begin", "GPU-b": ""}
        world.inventory.events.put_nowait(CardEvent("GPU-a", xid=79))
        await world.until({"GPU-a": "XID 79: the card has fallen off the bus", "GPU-b": ""})
        world.watch.mark({"GPU-a": "its MPS daemon does not begin"})
        await world.until({"GPU-a": "its MPS daemon does not begin", "GPU-b": ""})
        world.watch.mark({})
        assert world.problems == {"GPU-a": "", "GPU-b": ""}
        assert world.watch.faults == {"GPU-a": 1, "GPU-b": 0}
