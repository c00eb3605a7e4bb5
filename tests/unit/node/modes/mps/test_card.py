"""A card is kept ready for MPS: exact times and every state, with a scripted daemon."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest

from tessera.host.cards import CardError, CardFacts
from tessera.node.handover.assignments import ContainerKey
from tessera.node.modes.mps.control import ControlError, Limits, MpsControl
from tessera.node.modes.mps.daemon import MpsDaemon
from tessera.node.modes.mps.mode import LOOK_EVERY_S, STEADY_S, MpsCard, why_unfit
from tests.support.event_loops import in_fake_time
from tests.support.fake_mps import A, card, limits

ONE: ContainerKey = ("1", 0)
TWO: ContainerKey = ("2", 0)
WITHIN_S = 1000.0


class ScriptedControl(MpsControl):
    def __init__(self, daemon: ScriptedDaemon) -> None:
        self._daemon = daemon

    async def client_count(self) -> int:
        await asyncio.sleep(0)
        if self._daemon.deaf:
            raise ControlError("no answer within 5 s")
        return self._daemon.clients


class ScriptedDaemon(MpsDaemon):
    """No process at all: the script is in its attributes, and what happened to it in `life`."""

    def __init__(self) -> None:
        self.control = ScriptedControl(self)
        self.on_end: Callable[[], None] = lambda: None
        self.life: list[tuple[float, str]] = []
        self.clients = 0
        self.deaf = False
        self.fault: Exception | None = None
        self.earlier = False
        self.ceiling: Limits | None = None
        self.last: Limits | None = None
        self.gate = asyncio.Event()
        self.gate.set()
        self._alive: bool | None = None

    def die(self) -> None:
        self._alive = False
        self.on_end()

    def happened(self, word: str) -> list[float]:
        return [when for when, what in self.life if what == word]

    def _note(self, what: str) -> None:
        self.life.append((asyncio.get_running_loop().time(), what))

    @property
    def running(self) -> bool:
        return self._alive is True

    @property
    def ended(self) -> bool:
        return self._alive is False

    @property
    def remembered(self) -> Limits | None:
        return self.last

    async def find(self) -> bool:
        return self.running

    async def start(self) -> bool:
        self._note("begin")
        if self.fault:
            raise self.fault
        self.ceiling = self.ceiling if self.earlier else None
        self._alive, self.deaf = True, False
        return not self.earlier

    async def close_card(self) -> None:
        self._note("shut")

    async def open_card(self) -> None:
        self._note("open")

    async def set_ceiling(self, limits: Limits) -> None:
        await self.gate.wait()
        self.ceiling = self.last = limits
        self._note("ceiling")

    async def trim_logs(self) -> None:
        self._note("look")

    async def kill(self) -> None:
        self._note("kill")
        self.die()

    async def retire(self) -> None:
        if self.clients:
            raise ControlError(f"{self.clients} processes still use it through MPS")
        self._note("retire")
        self._alive = None

    def close(self) -> None:
        self._alive = None


class World:
    """One card, looked after by its task."""

    def __init__(self, facts: CardFacts | None = None) -> None:
        self.daemon = ScriptedDaemon()
        self.card = MpsCard(facts or card(), self.daemon)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self.card.run())

    async def needs(self, holder: ContainerKey, wanted: Limits) -> str:
        """What a container that comes is told."""
        self.card.need(holder, wanted)
        return await self.card.ready(wanted, within=WITHIN_S)

    async def settled(self, needs: dict[ContainerKey, Limits]) -> Limits | None:
        """The ceiling after everybody who is there is known."""
        self.card.reconcile(needs)
        await self.card.ready(within=WITHIN_S)
        return self.daemon.ceiling

    async def ended(self) -> bool:
        """Whether the task came to its end by itself."""
        assert self._task is not None
        await asyncio.wait([self._task], timeout=WITHIN_S)
        return self._task.done()


@pytest.fixture
def world() -> Iterator[World]:
    found = World()
    yield found
    found.card.close()


# -- the ceiling


@in_fake_time
async def test_the_first_container_gets_a_ceiling_before_its_answer(world: World) -> None:
    world.start()
    assert await world.needs(ONE, limits(3000, 30)) == ""
    assert world.daemon.ceiling == limits(3000, 30)
    assert [what for _, what in world.daemon.life[:2]] == ["begin", "ceiling"]
    assert world.card.started == 1


@in_fake_time
async def test_a_larger_grant_raises_the_ceiling_while_others_run(world: World) -> None:
    world.start()
    await world.needs(ONE, limits(3000, 30))
    world.daemon.clients = 1
    assert await world.needs(TWO, limits(2000, 80)) == ""
    assert world.daemon.ceiling == limits(3000, 80)


@in_fake_time
async def test_a_smaller_grant_costs_no_round(world: World) -> None:
    world.start()
    await world.needs(ONE, limits(3000, 30))
    before = list(world.daemon.life)
    assert await world.needs(TWO, limits(3000, 30)) == ""
    assert world.daemon.life == before


@in_fake_time
async def test_nothing_is_lowered_while_clients_run(world: World) -> None:
    world.start()
    await world.needs(ONE, limits(9000, 90))
    world.daemon.clients = 1
    assert await world.settled({TWO: limits(1000, 10)}) == limits(9000, 90)
    world.daemon.clients = 0
    assert await world.settled({TWO: limits(1000, 10)}) == limits(1000, 10)


@in_fake_time
async def test_nothing_is_lowered_before_everybody_is_known(world: World) -> None:
    world.daemon.earlier, world.daemon.last = True, limits(9000, 90)
    world.start()
    assert await world.needs(ONE, limits(1000, 10)) == ""
    assert world.daemon.ceiling == limits(9000, 90)
    assert await world.settled({ONE: limits(1000, 10)}) == limits(1000, 10)
    assert world.card.started == 0


@in_fake_time
async def test_an_empty_card_keeps_its_ceiling(world: World) -> None:
    world.start()
    await world.needs(ONE, limits(9000, 90))
    assert await world.settled({}) == limits(9000, 90)


@in_fake_time
async def test_who_comes_while_the_ceiling_is_lowered_is_not_cut(world: World) -> None:
    world.start()
    await world.needs(ONE, limits(9000, 90))
    world.daemon.gate.clear()
    world.card.reconcile({TWO: limits(1000, 10)})
    await asyncio.sleep(1)
    coming = asyncio.create_task(world.needs(ONE, limits(9000, 90)))
    await asyncio.sleep(1)
    world.daemon.gate.set()
    assert await coming == ""
    assert world.daemon.ceiling == limits(9000, 90)


@in_fake_time
async def test_a_new_daemon_gets_the_ceiling_of_the_old_one(world: World) -> None:
    world.start()
    await world.needs(ONE, limits(9000, 90))
    await asyncio.sleep(STEADY_S)
    world.daemon.die()
    await world.card.ready(within=WITHIN_S)
    assert world.daemon.ceiling == limits(9000, 90)


# -- death and silence


@in_fake_time
async def test_a_daemon_that_lived_long_is_begun_again_at_once(world: World) -> None:
    world.start()
    await world.needs(ONE, limits(3000))
    await asyncio.sleep(STEADY_S + 1)
    world.daemon.die()
    assert await world.card.ready(within=WITHIN_S) == ""
    assert world.daemon.happened("begin") == [0.0, STEADY_S + 1]
    assert world.daemon.happened("shut") == [STEADY_S + 1]
    assert world.card.started == 2


@in_fake_time
async def test_a_daemon_that_keeps_dying_is_begun_less_and_less_often(world: World) -> None:
    world.start()
    for _ in range(4):
        await world.card.ready(within=WITHIN_S)
        while not world.daemon.running:
            await asyncio.sleep(0.5)
        world.daemon.die()
        assert "ended soon after it had started" in await world.needs(ONE, limits(3000))
    assert world.daemon.happened("begin") == [0.0, 1.0, 3.0, 7.0]


@in_fake_time
async def test_a_daemon_that_cannot_begin_is_tried_again_ever_later(world: World) -> None:
    world.daemon.fault = ControlError("the MPS control daemon ended at once")
    world.start()
    assert await world.needs(ONE, limits(3000)) == "the MPS control daemon ended at once"
    await asyncio.sleep(200)
    started = world.daemon.happened("begin")
    assert started == [0.0, 1.0, 3.0, 7.0, 15.0, 31.0, 63.0, 123.0, 183.0]
    world.daemon.fault = None
    await asyncio.sleep(60)
    assert await world.needs(ONE, limits(3000)) == ""


@in_fake_time
async def test_who_asks_while_it_is_put_off_hears_why_and_does_not_hurry_it(world: World) -> None:
    world.daemon.fault = CardError(A, "GPU is lost")
    world.start()
    for _ in range(5):
        assert "GPU is lost" in await world.needs(ONE, limits(3000))
    assert world.daemon.happened("begin") == [0.0]


@in_fake_time
async def test_a_silent_daemon_with_claims_is_refused_but_never_killed(world: World) -> None:
    world.start()
    await world.settled({ONE: limits(3000)})
    world.daemon.deaf = True
    assert await world.needs(TWO, limits(9000)) == "no answer within 5 s"
    await asyncio.sleep(100 * LOOK_EVERY_S)
    assert world.daemon.happened("kill") == []
    world.daemon.deaf = False
    assert await world.needs(TWO, limits(9000)) == ""


@in_fake_time
async def test_a_silent_daemon_that_nobody_needs_is_killed_and_begun_again(world: World) -> None:
    world.start()
    await world.settled({})
    await asyncio.sleep(STEADY_S + 1)
    world.daemon.deaf = True
    await asyncio.sleep(LOOK_EVERY_S)
    assert world.daemon.happened("kill") == [STEADY_S + LOOK_EVERY_S]
    assert await world.needs(ONE, limits(3000)) == ""


@in_fake_time
async def test_a_silent_daemon_is_not_killed_before_everybody_is_known(world: World) -> None:
    world.start()
    await world.card.ready(within=WITHIN_S)
    world.daemon.deaf = True
    await asyncio.sleep(10 * LOOK_EVERY_S)
    assert world.daemon.happened("kill") == []


@in_fake_time
async def test_a_daemon_is_looked_at_every_few_seconds(world: World) -> None:
    world.start()
    await asyncio.sleep(3 * LOOK_EVERY_S + 1)
    assert world.daemon.happened("look") == [0.0, LOOK_EVERY_S, 2 * LOOK_EVERY_S, 3 * LOOK_EVERY_S]
    assert world.daemon.happened("open") == world.daemon.happened("look")


@in_fake_time
async def test_a_mistake_in_the_agent_is_a_problem_of_the_card_and_is_tried_again(world: World) -> None:
    world.daemon.fault = KeyError("oops")
    world.start()
    assert await world.needs(ONE, limits(3000)) == "KeyError: 'oops'"
    world.daemon.fault = None
    await asyncio.sleep(2)
    assert await world.needs(ONE, limits(3000)) == ""


@in_fake_time
async def test_who_waits_too_long_hears_that(world: World) -> None:
    world.start()
    await world.card.ready(within=WITHIN_S)
    world.daemon.gate.clear()
    world.card.need(ONE, limits(3000))
    problem = await world.card.ready(limits(3000), within=3)
    assert problem == "its MPS control daemon is not ready within 3 s"


@in_fake_time
async def test_a_card_that_nobody_looks_after_yet_says_so(world: World) -> None:
    problem = await world.card.ready(limits(3000), within=3)
    assert problem == "its MPS control daemon has not started yet"


# -- retiring


@in_fake_time
async def test_a_card_is_retired_once_its_last_client_ended(world: World) -> None:
    world.start()
    await world.needs(ONE, limits(3000))
    world.daemon.clients = 2
    world.card.reconcile({}, retire=True)
    assert await world.card.ready(within=WITHIN_S) == "2 processes still use it through MPS"
    world.daemon.clients = 0
    assert await world.ended()
    assert world.daemon.happened("retire") == [LOOK_EVERY_S]
    assert world.card.retired
    assert await world.card.ready(within=WITHIN_S) == "it is no longer a card of this node"


@in_fake_time
async def test_a_card_that_comes_back_before_it_is_retired_serves_on(world: World) -> None:
    world.start()
    await world.card.ready(within=WITHIN_S)
    world.daemon.clients = 1
    world.card.reconcile({}, retire=True)
    await world.card.ready(within=WITHIN_S)
    world.card.reconcile({})
    assert await world.needs(ONE, limits(3000)) == ""


@in_fake_time
async def test_a_card_whose_daemon_is_gone_is_retired_too(world: World) -> None:
    world.daemon.fault = ControlError("no")
    world.start()
    await world.card.ready(within=WITHIN_S)
    world.card.reconcile({}, retire=True)
    assert await world.ended()
    assert len(world.daemon.happened("retire")) == 1


# -- cards that MPS cannot share


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        (card(mig_enabled=True), "MIG is enabled"),
        (card(compute_capability=(6, 1)), "6.1: MPS keeps limits from 7.0 on"),
        (card(compute_capability=(7, 0)), ""),
        (card(compute_capability=(9, 0)), ""),
        (card(), ""),
    ],
)
def test_a_card_that_cannot_keep_limits_is_told_by_its_facts(facts: CardFacts, reason: str) -> None:
    assert reason in why_unfit(facts)
    assert bool(why_unfit(facts)) == bool(reason)


@in_fake_time
async def test_a_card_that_cannot_keep_limits_is_never_touched() -> None:
    world = World(card(mig_enabled=True))
    world.start()
    assert "MIG is enabled" in await world.needs(ONE, limits(3000))
    await asyncio.sleep(10 * STEADY_S)
    assert world.daemon.life == []
    world.card.facts = card()
    assert await world.needs(ONE, limits(3000)) == ""
    world.card.close()
