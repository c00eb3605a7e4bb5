"""The sharing mode `mps`: NVIDIA's Multi-Process Service keeps each process of a container within its limits.

    container --(pipe directory, mounted)--> control daemon of the card --> one server, alone on the card

A container gets one card, the card's pipes, and its limits as variables that are never empty: CUDA takes an empty one
for no limit. A container that changes its variables meets the card's ceiling (`control`). The pipes are mounted
read-only, which is enough to connect. A container that runs as root can still send commands to the daemon, because MPS
has no other access control: run tenants as another user to prevent it.

Each card is kept ready for clients: the daemon runs, answers, and has the ceiling that the assignments need.

    starting --> ready <--> not ready   says why; restarted at once after a long life, later after a short one
                   |
                   +--> retiring --> retired   no longer a card of this node; waits for the last client

One task (`MpsCard.run`) does all the work, one round at a time; callers say what they need and wait for the next round.
So nothing needs a lock, many callers cost one round, and a cancelled Allocate leaves nothing half done. A daemon that
does not answer is killed only while no assignment is on the card, because its clients would end with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import structlog

from tessera.core.model.devices import MPS
from tessera.host.call_thread import AsyncComputeModes
from tessera.host.cards import CardFacts, ComputeModes, InventoryError
from tessera.kube.backoff import Backoff
from tessera.node.fleet import CardState, Fleet
from tessera.node.handover.assignments import Assignment, ContainerKey
from tessera.node.modes.base import AllocationRefused, ContainerResponse, HostMount, SharingMode, slices_by_card
from tessera.node.modes.device_lists import DeviceLists
from tessera.node.modes.mps.control import PIPES, ControlError, Limits, MpsProgram, largest, limits_on
from tessera.node.modes.mps.daemon import CardDir, MpsDaemon, card_dirs
from tessera.node.modes.mps.launcher import SocketLauncher
from tessera.node.settings import AgentSettings
from tessera.node.watched_value import is_set_within
from tessera.vendors.nvidia.downward_api import MPS_MEMORY_LIMIT, MPS_THREADS

log = structlog.get_logger(__name__)

LOOK_EVERY_S = 10.0
"""finds a daemon that hangs and a changed compute mode; the end of a daemon is noticed at once"""
STEADY_S = 60.0
"""a daemon that ran this long is restarted at once"""
RETRY = Backoff(initial=1.0, cap=60.0)
FIRST_VOLTA = (7, 0)
"""compute capability; older cards have no MPS limits"""

CONTAINER_PIPES = "/tessera/mps/pipe"
SHARED_MEMORY = "/dev/shm"
"""the same path on the host and in containers"""
HAND_OVER_S = 20.0
"""for preparing a card while kubelet waits"""


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
            await is_set_within(self._wake, self._patience())

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


class Mps(SharingMode):
    def __init__(
        self,
        settings: AgentSettings,
        *,
        device_lists: DeviceLists,
        modes: ComputeModes,
        program: MpsProgram | None = None,
        hand_over_s: float = HAND_OVER_S,
    ) -> None:
        super().__init__()
        self._settings = settings
        self._device_lists = device_lists
        self._modes = AsyncComputeModes(modes)
        self._program = program or MpsProgram(environ=settings.environ)
        self._launch = SocketLauncher(settings.paths.mps).launch if settings.external_mps_daemons else None
        self._hand_over_s = hand_over_s
        self._cards: dict[str, MpsCard] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    @property
    def problems(self) -> dict[str, str]:
        return {uuid: card.problem for uuid, card in self._cards.items() if card.problem}

    @property
    def started(self) -> dict[str, int]:
        """How many control daemons this agent started, by card."""
        return {uuid: card.started for uuid, card in self._cards.items()}

    async def start(self, fleet: Fleet) -> None:
        await super().start(fleet)
        for card in fleet.in_mode(MPS):
            self._serve_card(card)
        await asyncio.gather(*(card.ready(within=self._hand_over_s) for card in self._cards.values()))

    async def hand_over(self, assignment: Assignment, ids: Sequence[str], *, certain: bool = True) -> ContainerResponse:
        if not certain:
            raise AllocationRefused(
                "it is not certain which container this is for, and with MPS each container gets the pipes of its card"
            )
        slices = slices_by_card(assignment, self._fleet)
        if len(slices) != 1:
            raise AllocationRefused(
                f"a container has {len(slices)} cards, and with MPS it can have one: request one card per container,"
                " or for a node in another mode"
            )
        facts = slices[0].card.facts
        limits = limits_on(assignment, facts, limit_cores=not self._settings.disable_core_limit)
        if limits is None:
            raise AllocationRefused(f"no memory of card {facts.uuid} is granted, which MPS would take for no limit")
        response = self._device_lists.response([facts.uuid], self._fleet)
        card = self._cards.get(facts.uuid)
        if card is None:
            raise AllocationRefused(f"card {facts.uuid} is not served yet")
        card.need(assignment.key, limits)
        problem = await card.ready(limits, within=self._hand_over_s)
        if problem:
            raise AllocationRefused(f"card {facts.uuid} is not ready for MPS: {problem}")
        return response.with_more(self._access(facts.uuid, limits))

    async def reconcile(self, live: Sequence[Assignment], fleet: Fleet) -> None:
        await super().reconcile(live, fleet)
        own = fleet.in_mode(MPS)
        for state in own:
            self._serve_card(state)
        for uuid, card in list(self._cards.items()):
            if card.retired:
                await self._drop_card(uuid)
                continue
            needs = self._needs(live, card)
            # Unreadable cards are still the node's; only the configuration removes a card.
            card.reconcile(needs, retire=own.card(uuid) is None and not fleet.problem and not needs)

    async def stop(self) -> None:
        for uuid in list(self._cards):
            await self._drop_card(uuid)
        await self._modes.close()
        await super().stop()

    def _serve_card(self, state: CardState) -> None:
        uuid = state.facts.uuid
        if uuid in self._cards:
            self._cards[uuid].facts = state.facts
            return
        folder = CardDir(self._settings.paths.mps, uuid)
        daemon = MpsDaemon(folder, uuid, program=self._program, modes=self._modes, launch=self._launch)
        card = MpsCard(state.facts, daemon)
        self._cards[uuid] = card
        self._tasks[uuid] = asyncio.create_task(card.run(), name=f"mps-{uuid}")

    async def _drop_card(self, uuid: str) -> None:
        """Its daemon, if any, continues."""
        card, task = self._cards.pop(uuid), self._tasks.pop(uuid)
        task.cancel()
        await asyncio.wait([task])
        card.close()

    def _needs(self, live: Sequence[Assignment], card: MpsCard) -> dict[ContainerKey, Limits]:
        limit_cores = not self._settings.disable_core_limit
        every = ((assignment.key, limits_on(assignment, card.facts, limit_cores=limit_cores)) for assignment in live)
        return {container: limits for container, limits in every if limits is not None}

    def _access(self, uuid: str, limits: Limits) -> ContainerResponse:
        return ContainerResponse(
            env={
                PIPES: CONTAINER_PIPES,
                # By uuid, so the container's order of cards does not matter.
                MPS_MEMORY_LIMIT: f"{uuid}={limits.memory_mib}M",
                MPS_THREADS: str(limits.cores),
            },
            mounts=(
                HostMount(CONTAINER_PIPES, str(CardDir(self._settings.paths.mps, uuid).pipe)),
                HostMount(SHARED_MEMORY, SHARED_MEMORY, read_only=False),
            ),
        )


async def retire_mps(
    root: Path,
    modes: ComputeModes,
    *,
    program: MpsProgram,
    keep: Collection[str] = (),
    cards: Collection[str] | None = None,
) -> dict[str, str]:
    """Ends the daemons below `root` and restores compute modes. Returns why a daemon is still there, by uuid.

    `cards` are the ones to give back; None means all. Only daemons that an agent recorded are touched, and none that
    has clients. Cards in `keep` stay, because containers may still use them. Raises OSError if `root` cannot be read.
    """
    async_modes = AsyncComputeModes(modes)
    left: dict[str, str] = {}
    try:
        for card_dir in await asyncio.to_thread(card_dirs, root):
            uuid = card_dir.path.name
            if cards is not None and uuid not in cards:
                continue
            if uuid in keep:
                left[uuid] = "a container may still use the card"
                continue
            daemon = MpsDaemon(card_dir, uuid, program=program, modes=async_modes)
            try:
                await daemon.find()
                await daemon.retire()
            except (ControlError, InventoryError, OSError) as error:
                left[uuid] = str(error)
            finally:
                daemon.close()
    finally:
        await async_modes.close()
    return left
