"""Sharing by MIG: a reservation becomes exactly that GPU instance, and goes when its pod has ended.

    hand_over: check -> make -> CDI -> identity into the pod's annotation -> answer   (a failure takes all back)
    settle:    take over what live pods have -> let go of what no live pod has -> make idle cards ready

All that touches hardware or records runs in one thread, one job after the other, so nothing is ever half seen. Only
cards of the fleet and instances of the agent are touched. Static MIG (`--mig-strategy`) is not here.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Protocol, TypeVar

import structlog

from tessera.node.fleet import Fleet
from tessera.node.handover.claims import Claim
from tessera.node.health.call_thread import CallThread, NoAnswer
from tessera.node.inventory.cards import InventoryError, MigHardware, MigInstance
from tessera.node.modes.base import Answer, Refused
from tessera.node.modes.mig_adoption import Adopting
from tessera.node.modes.mig_annotations import NotWritten, Write
from tessera.node.modes.mig_claims import wanted_of
from tessera.node.modes.mig_creation import InTheWay, Making, Realised, Wanted
from tessera.node.modes.mig_mode_switch import Switching, shared_without_mig
from tessera.node.modes.mig_records import Records, boot_id
from tessera.node.modes.mig_release import Holders, Releasing, holders_of
from tessera.node.settings import AgentSettings

log = structlog.get_logger(__name__)

T = TypeVar("T")

HARDWARE_S = 60.0
"""seconds for one job; an instance takes about one, a card that hangs takes for ever"""
WRITE_S = 20.0
"""seconds for the annotation; kubelet waits for the answer meanwhile"""
STOP_S = 10.0
"""seconds for a job that is under way when the agent ends"""
LEAVING_S = (0.1, 0.2, 0.4, 0.8, 1.6)
"""seconds between looks at a place that the instance of a pod that just ended still has"""


class Lists(Protocol):
    """How containers are told their devices. Raises Refused."""

    def answer(self, ids: Sequence[str], fleet: Fleet) -> Answer: ...


class Calls(Protocol):
    """One thread that runs jobs one after the other. `call` raises NoAnswer."""

    async def call(self, work: Callable[[], T], *, deadline: float) -> T: ...

    async def close(self, *, patience: float) -> None: ...


class Mig:
    """A SharingMode."""

    def __init__(
        self,
        settings: AgentSettings,
        hardware: MigHardware,
        *,
        device_lists: Lists,
        write: Write,
        refresh: Callable[[], Awaitable[None]] | None = None,
        known: Callable[[], Sequence[Claim] | None] = lambda: (),
        calls: Calls | None = None,
        clock: Callable[[], float] = time.monotonic,
        boot: str | None = None,
    ) -> None:
        """`refresh` makes CDI specs list `current_instances`. `known` are the live claims at start, None where they
        are not known yet: a card that pods share without MIG must not be switched. `clock` in seconds."""
        self._settings = settings
        self._device_lists = device_lists
        self._write = write
        self._refresh = refresh
        self._known = known
        self._calls = calls or CallThread("mig")
        self._clock = clock
        self._records = Records(settings.paths.state, boot=boot_id() if boot is None else boot)
        self._making = Making(hardware, self._records)
        self._releasing = Releasing(hardware, self._records)
        self._adopting = Adopting(hardware, self._records)
        self._switching = Switching(hardware, self._records)
        self._fleet = Fleet()
        self._shared: frozenset[str] = frozenset()
        """cards on which live pods have slices without MIG"""
        self._holders = Holders(pods=None)
        self._in_hand: Counter[str] = Counter()
        """uids of pods whose instances are being made: live, whatever anybody says"""
        self._settled = asyncio.Event()
        self._current: tuple[MigInstance, ...] = ()

    def current_instances(self) -> tuple[MigInstance, ...]:
        """Instances of the agent that are there now."""
        return self._current

    async def start(self, fleet: Fleet) -> None:
        self._fleet = fleet
        claims = self._known()
        if claims is None:
            # The first settle knows them, and makes the cards ready.
            cards, shared = Fleet(), self._shared
        else:
            cards, shared = fleet, shared_without_mig(claims)
        await self._quietly("MIG cannot be made ready", lambda: self._make_ready(cards, shared, self._clock()))

    async def hand_over(self, claim: Claim, device_ids: Sequence[str], *, certain: bool = True) -> Answer:
        wanted = wanted_of(claim, device_ids, fleet=self._fleet, settings=self._settings, certain=certain)
        with self._handing_over(claim.pod.uid):
            realised = await self._realised(wanted)
            try:
                return await self._answer(claim, realised)
            except (Refused, NotWritten, OSError) as error:
                await self._quietly("MIG instances cannot be taken back", lambda: self._making.undo(realised.made))
                if isinstance(error, Refused):
                    raise
                raise Refused(f"the MIG instance was not handed over: {str(error) or 'no answer in time'}") from error

    async def welcome(self, device_ids: Sequence[str]) -> Answer:
        raise Refused("a MIG instance is made for one container: none can carry it in its environment")

    async def settle(self, live: Sequence[Claim], fleet: Fleet) -> None:
        """`live` must be of this moment: an instance that was handed over since it was read would be taken away."""
        claims = tuple(live)
        self._fleet = fleet
        self._shared = shared = shared_without_mig(claims)
        self._holders = holders = holders_of(claims, besides=self._in_hand)
        if fleet.problem:
            return
        now = self._clock()

        def settle() -> None:
            self._records.catch_up()
            self._adopting.adopt(claims, fleet)
            self._releasing.release(holders, cards=_uuids(fleet), now=now)
            self._make_ready(fleet, shared, now)

        await self._quietly("MIG instances are not settled", settle)
        self._settled.set()
        self._settled = asyncio.Event()

    async def retire(self) -> None:
        """MIG is not wanted on this node any more: turn it off where the agent turned it on and nobody uses it."""
        cards = _uuids(self._fleet)
        await self._quietly("MIG mode is not restored", lambda: self._switching.restore(cards))

    async def stop(self) -> None:
        await self._calls.close(patience=STOP_S)

    @contextmanager
    def _handing_over(self, uid: str) -> Iterator[None]:
        if self._holders.pods is not None:
            self._holders = replace(self._holders, pods=self._holders.pods | {uid})
        self._in_hand[uid] += 1
        try:
            yield
        finally:
            self._in_hand[uid] -= 1
            if not self._in_hand[uid]:
                del self._in_hand[uid]

    async def _realised(self, wanted: Sequence[Wanted]) -> Realised:
        """All instances of a claim. A place that is being left is waited for, but not long. Raises Refused."""
        pauses = iter(LEAVING_S)
        while True:
            fleet, shared, holders, settled = self._fleet, self._shared, self._holders, self._settled
            try:
                return await self._job(partial(self._realise, wanted, fleet=fleet, shared=shared, holders=holders))
            except InTheWay as error:
                pause = next(pauses, None)
                if pause is None:
                    raise Refused(str(error)) from error
            except (InventoryError, NoAnswer, OSError) as error:
                raise Refused(f"the MIG instance cannot be made: {error}") from error
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await settled.wait()

    async def _answer(self, claim: Claim, realised: Realised) -> Answer:
        """Tell everybody who has to know before the container does."""
        if self._refresh is not None:
            await self._refresh()
        allocations = [each.allocation for each in realised.instances]
        if any(each not in claim.mig for each in allocations):
            async with asyncio.timeout(WRITE_S):
                await self._write(claim.pod, allocations)
        return self._device_lists.answer([each.mig_uuid for each in allocations if each.mig_uuid], self._fleet)

    async def _quietly(self, complaint: str, work: Callable[[], None]) -> None:
        """What fails is logged, and tried again by a later settle."""
        try:
            await self._job(work)
        except (NoAnswer, OSError) as error:
            log.error(complaint, error=str(error))

    async def _job(self, work: Callable[[], T]) -> T:
        def job() -> T:
            self._records.load()
            try:
                return work()
            finally:
                self._current = tuple(each for record in self._records.all() if (each := record.instance))

        return await self._calls.call(job, deadline=HARDWARE_S)

    # -- in the thread

    def _realise(
        self, wanted: Sequence[Wanted], *, fleet: Fleet, shared: Collection[str], holders: Holders
    ) -> Realised:
        for card in fleet:
            uuid = card.facts.uuid
            if any(each.allocation.uuid == uuid for each in wanted):
                problem = self._switching.make_ready(card, shared=shared)
                if problem:
                    raise Refused(f"card {uuid} cannot be used for MIG: {problem}")
        return self._making.realise(wanted, holders)

    def _make_ready(self, fleet: Fleet, shared: Collection[str], now: float) -> None:
        for card in fleet:
            self._switching.keep_ready(card, shared=shared, now=now)


def _uuids(fleet: Fleet) -> frozenset[str]:
    return frozenset(card.facts.uuid for card in fleet)
