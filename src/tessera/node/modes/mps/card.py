"""Keeps one card ready for MPS clients: the daemon runs, answers, and has the ceiling that the assignments need.

    starting --> ready <--> not ready   says why; restarted at once after a long life, later after a short one
                   |
                   +--> retiring --> retired   no longer a card of this node; waits for the last client

One task (`run`) does all the work, one round at a time; callers say what they need and wait for the next round. So
nothing needs a lock, many callers cost one round, and a cancelled Allocate leaves nothing half done. A daemon that does
not answer is killed only while no assignment is on the card, because its clients would end with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import structlog

from tessera.host.cards import CardFacts, InventoryError
from tessera.kube.backoff import Backoff
from tessera.node.handover.assignments import ContainerKey
from tessera.node.modes.mps.control import ControlError, Limits, largest
from tessera.node.modes.mps.daemon import MpsDaemon

log = structlog.get_logger(__name__)

LOOK_EVERY_S = 10.0
"""finds a daemon that hangs and a changed compute mode; the end of a daemon is noticed at once"""
STEADY_S = 60.0
"""a daemon that ran this long is restarted at once"""
RETRY = Backoff(initial=1.0, cap=60.0)
FIRST_VOLTA = (7, 0)
"""compute capability; older cards have no MPS limits"""


class MpsCard:
    """Only `run` waits for the daemon; the other methods may be called from any task."""

    def __init__(self, facts: CardFacts, daemon: MpsDaemon) -> None:
        self.facts = facts
        self._uuid = facts.uuid
        self._daemon = daemon
        daemon.on_end = self.wake
        self._needs: dict[ContainerKey, Limits] = {}
        self._all_known = False
        """whether `needs` is complete; before that the ceiling only rises"""
        self._retiring = False
        self._asked = 0
        """requests so far"""
        self._answered = 0
        """the last request that a round included"""
        self._wake = asyncio.Event()
        self._applied: Limits | None = None
        """the ceiling that this daemon is known to have"""
        self._started_at = 0.0
        self._failures = 0
        self._not_before = 0.0
        self._published = asyncio.Event()
        self.problem = "its MPS control daemon has not started yet"
        """after the last round; empty = ready"""
        self.started = 0
        """how many daemons this agent started here"""
        self.retired = False

    def wake(self) -> None:
        self._wake.set()

    def need(self, holder: ContainerKey, limits: Limits) -> None:
        """Announces a container."""
        self._needs[holder] = limits

    def reconcile(self, needs: Mapping[ContainerKey, Limits], *, retire: bool = False) -> None:
        """`needs` are all containers on the card."""
        changed = dict(needs) != self._needs or retire != self._retiring or not self._all_known
        self._needs, self._retiring, self._all_known = dict(needs), retire, True
        if changed:
            self.wake()

    async def ready(self, limits: Limits | None = None, *, within: float) -> str:
        """Returns the problem after a round that includes all requests so far, or after `within` seconds."""
        ceiling = self._applied
        if not self.problem and self._daemon.running and ceiling and limits and ceiling.covers(limits):
            return ""
        self._asked += 1
        mine = self._asked
        self.wake()
        try:
            async with asyncio.timeout(within):
                while self._answered < mine and not self.retired:
                    await self._published.wait()
        except TimeoutError:
            return self.problem or f"its MPS control daemon is not ready within {within:g} s"
        return self.problem

    async def run(self) -> None:
        """Runs until the card is retired."""
        while not self.retired:
            known = self._asked
            self._wake.clear()
            problem = await self._take_round()
            self._publish(known, problem)
            try:
                async with asyncio.timeout(self._patience()):
                    await self._wake.wait()
            except TimeoutError:
                continue

    def close(self) -> None:
        self._daemon.close()

    async def _take_round(self) -> str:
        if why_unfit(self.facts):
            return why_unfit(self.facts)
        try:
            if self._retiring and not self._needs:
                return await self._retire()
            await self._serve()
        except (ControlError, InventoryError, OSError) as error:
            return str(error)
        except Exception as error:
            # A bug here must not end the task that serves the card.
            log.exception("serving a card through MPS failed", card=self._uuid)
            return f"{type(error).__name__}: {error}"
        return ""

    async def _retire(self) -> str:
        if not self._daemon.running:
            await self._daemon.find()
        await self._daemon.retire()
        self.retired = True
        return "it is no longer a card of this node"

    async def _serve(self) -> None:
        if self._daemon.ended:
            await self._daemon.close_card()
            self._on_daemon_ended()
        if not self._daemon.running:
            await self._start()
        try:
            idle = await self._daemon.control.client_count() == 0
        except ControlError:
            if self._all_known and not self._needs:
                await self._daemon.kill()
            raise
        # No await up to the daemon: a later request finds no ceiling in force, and waits.
        target = self._target(idle=idle)
        if target is not None and target != self._applied:
            self._applied = None
            await self._daemon.set_ceiling(target)
            self._applied = target
        await self._daemon.open_card()
        await self._daemon.trim_logs()

    async def _start(self) -> None:
        now = asyncio.get_running_loop().time()
        if now < self._not_before:
            raise ControlError(self.problem)
        self._applied = None
        try:
            new = await self._daemon.start()
        except Exception:
            self._delay_start(now)
            raise
        self._started_at = asyncio.get_running_loop().time()
        self.started += new
        log.info("an MPS control daemon is serving", card=self._uuid, new=new)

    def _on_daemon_ended(self) -> None:
        now = asyncio.get_running_loop().time()
        log.warning("an MPS control daemon ended", card=self._uuid, after_s=round(now - self._started_at))
        self._daemon.close()
        if now - self._started_at < STEADY_S:
            self._delay_start(now)
            raise ControlError("its MPS control daemon ended soon after it had started")
        self._failures = 0

    def _delay_start(self, now: float) -> None:
        self._failures += 1
        # One card on one machine needs no jitter.
        self._not_before = now + RETRY.ceiling(self._failures)

    def _target(self, *, idle: bool) -> Limits | None:
        """Returns the ceiling that the card needs now (`control`)."""
        wanted, before = largest(self._needs.values()), self._applied or self._daemon.remembered
        if wanted is None or before is None:
            return wanted or before
        return wanted if idle and self._all_known else wanted.joined(before)

    def _patience(self) -> float:
        if why_unfit(self.facts):
            return STEADY_S
        if self._daemon.running or self._retiring:
            return LOOK_EVERY_S
        return max(0.0, self._not_before - asyncio.get_running_loop().time())

    def _publish(self, known: int, problem: str) -> None:
        if problem and problem != self.problem:
            log.warning("a card is not ready for MPS", card=self._uuid, problem=problem)
        self._answered, self.problem = known, problem
        # Waiters hold the old event; later ones get a new one.
        self._published.set()
        self._published = asyncio.Event()


def why_unfit(facts: CardFacts) -> str:
    """Returns why a card can never be shared through MPS with limits; empty if it can."""
    if facts.mig_enabled:
        return "MIG is enabled on it: MPS shares whole cards only"
    if facts.compute_capability is not None and facts.compute_capability < FIRST_VOLTA:
        major, minor = facts.compute_capability
        return f"its compute capability is {major}.{minor}: MPS keeps limits from {FIRST_VOLTA[0]}.0 on"
    return ""
