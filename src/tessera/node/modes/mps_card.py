"""Keeps one card ready for MPS clients: its daemon runs, answers, and has the ceiling that the claims on it need.

    starting --> ready <--> not ready   says why; begun again at once after a long life, later after a short one
                   |
                   +--> retiring --> retired   where it is no card of this node any more; waits for the last client

One task (`run`) does everything, one round after the other; others say what they need and wait for the next round. So
nothing has to be locked, many who ask cost one round, and an Allocate that is given up leaves nothing half done. A
daemon that answers nobody is killed only while no claim is on the card: its clients would end with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace

import structlog

from tessera.kube.backoff import Backoff
from tessera.node.handover.claims import PodKey
from tessera.node.inventory.cards import CardFacts, InventoryError
from tessera.node.modes.mps_control import ControlError
from tessera.node.modes.mps_daemon import MpsDaemon
from tessera.node.modes.mps_limits import Limits, largest

log = structlog.get_logger(__name__)

LOOK_EVERY_S = 10.0
"""a daemon that ended is heard of at once; this finds one that hangs, and a compute mode that somebody changed"""
STEADY_S = 60.0
"""a daemon that lived so long is begun again at once"""
RETRY = Backoff(initial=1.0, cap=60.0)
FIRST_VOLTA = (7, 0)
"""compute capability: on older cards MPS has neither limit"""

Holder = tuple[PodKey, int]
"""a container: its pod and its position"""


@dataclass(frozen=True, slots=True)
class Readiness:
    """After a round."""

    round: int = 0
    """which wishes it knows of"""
    problem: str = "its MPS control daemon has not begun yet"
    """empty = ready"""
    ceiling: Limits | None = None
    begun: int = 0
    """how many daemons this agent began here"""
    retired: bool = False


class MpsCard:
    """`run` is the only one that waits for the daemon; the rest may be called by anybody on the event loop."""

    def __init__(self, facts: CardFacts, daemon: MpsDaemon) -> None:
        self.facts = facts
        self._uuid = facts.uuid
        self._daemon = daemon
        daemon.on_end = self.wake
        self._needs: dict[Holder, Limits] = {}
        self._all_known = False
        """whether `needs` has everybody; before that the ceiling only rises"""
        self._retiring = False
        self._retired = False
        self._round = 0
        self._wake = asyncio.Event()
        self._applied: Limits | None = None
        """the ceiling that this daemon is known to have"""
        self._begun_at = 0.0
        self._begun = 0
        self._failures = 0
        self._not_before = 0.0
        self._told = asyncio.Event()
        self.state = Readiness()

    def wake(self) -> None:
        self._wake.set()

    def need(self, holder: Holder, limits: Limits) -> None:
        """A container is about to come."""
        self._needs[holder] = limits

    def settle(self, needs: Mapping[Holder, Limits], *, retire: bool = False) -> None:
        """These are all containers on the card."""
        changed = dict(needs) != self._needs or retire != self._retiring or not self._all_known
        self._needs, self._retiring, self._all_known = dict(needs), retire, True
        if changed:
            self.wake()

    async def ready(self, limits: Limits | None = None, *, within: float) -> Readiness:
        """How the card stands, once everything that was wished for so far was tried or the time is over."""
        ceiling = self._applied
        if not self.state.problem and self._daemon.running and ceiling and limits and ceiling.covers(limits):
            return self.state
        self._round += 1
        mine = self._round
        self.wake()
        try:
            async with asyncio.timeout(within):
                while self.state.round < mine and not self.state.retired:
                    await self._told.wait()
        except TimeoutError:
            problem = self.state.problem or f"its MPS control daemon is not ready within {within:g} s"
            return replace(self.state, problem=problem)
        return self.state

    async def run(self) -> None:
        """Until the card is retired."""
        while not self.state.retired:
            known = self._round
            self._wake.clear()
            problem = await self._take_round()
            self._tell(known, problem)
            try:
                async with asyncio.timeout(self._patience()):
                    await self._wake.wait()
            except TimeoutError:
                continue

    def close(self) -> None:
        self._daemon.close()

    async def _take_round(self) -> str:
        if unfit(self.facts):
            return unfit(self.facts)
        try:
            if self._retiring and not self._needs:
                return await self._retire()
            await self._serve()
        except (ControlError, InventoryError, OSError) as error:
            return str(error)
        except Exception as error:
            # A mistake in here must not leave the card without anybody who looks after it.
            log.exception("looking after a card for MPS failed", card=self._uuid)
            return f"{type(error).__name__}: {error}"
        return ""

    async def _retire(self) -> str:
        if not self._daemon.running:
            await self._daemon.find()
        await self._daemon.retire()
        self._retired = True
        return "it is no card of this node any more"

    async def _serve(self) -> None:
        if self._daemon.ended:
            await self._daemon.shut()
            self._bury()
        if not self._daemon.running:
            await self._begin()
        try:
            idle = await self._daemon.control.client_count() == 0
        except ControlError:
            if self._all_known and not self._needs:
                await self._daemon.kill()
            raise
        # From here to the daemon nobody can come in between: who asks later finds no ceiling in force, and waits.
        target = self._target(idle=idle)
        if target is not None and target != self._applied:
            self._applied = None
            await self._daemon.set_ceiling(target)
            self._applied = target
        await self._daemon.open()
        await self._daemon.trim_logs()

    async def _begin(self) -> None:
        now = asyncio.get_running_loop().time()
        if now < self._not_before:
            raise ControlError(self.state.problem)
        self._applied = None
        try:
            new = await self._daemon.begin()
        except Exception:
            self._put_off(now)
            raise
        self._begun_at = asyncio.get_running_loop().time()
        self._begun += new
        log.info("an MPS control daemon serves", card=self._uuid, new=new)

    def _bury(self) -> None:
        now = asyncio.get_running_loop().time()
        log.warning("an MPS control daemon ended", card=self._uuid, after_s=round(now - self._begun_at))
        self._daemon.close()
        if now - self._begun_at < STEADY_S:
            self._put_off(now)
            raise ControlError("its MPS control daemon ended soon after it had begun")
        self._failures = 0

    def _put_off(self, now: float) -> None:
        self._failures += 1
        # One card on one machine: there is no crowd that jitter would spread.
        self._not_before = now + RETRY.ceiling(self._failures)

    def _target(self, *, idle: bool) -> Limits | None:
        """The ceiling that is right now (`mps_limits`)."""
        wanted, before = largest(self._needs.values()), self._applied or self._daemon.remembered
        if wanted is None or before is None:
            return wanted or before
        return wanted if idle and self._all_known else wanted.joined(before)

    def _patience(self) -> float:
        if unfit(self.facts):
            return STEADY_S
        if self._daemon.running or self._retiring:
            return LOOK_EVERY_S
        return max(0.0, self._not_before - asyncio.get_running_loop().time())

    def _tell(self, known: int, problem: str) -> None:
        if problem and problem != self.state.problem:
            log.warning("a card is not ready for MPS", card=self._uuid, problem=problem)
        self.state = Readiness(known, problem, self._applied, self._begun, self._retired)
        # Everybody who waits holds the old event; the next to wait gets a new one.
        self._told.set()
        self._told = asyncio.Event()


def unfit(facts: CardFacts) -> str:
    """Why a card cannot be shared through MPS with limits, whatever is tried; empty = it can."""
    if facts.mig_enabled:
        return "MIG is enabled on it: MPS shares whole cards only"
    if facts.compute_capability is not None and facts.compute_capability < FIRST_VOLTA:
        major, minor = facts.compute_capability
        return f"its compute capability is {major}.{minor}: MPS keeps limits from {FIRST_VOLTA[0]}.0 on"
    return ""
