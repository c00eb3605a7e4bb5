"""The sharing mode `mps`: NVIDIA's Multi-Process Service keeps each process of a container within its limits.

    container --(pipe directory, mounted)--> control daemon of the card --> one server, alone on the card

A container gets one card, the card's pipes, and its limits as variables that are never empty: CUDA takes an empty one
for no limit. A container that changes its variables meets the card's ceiling (`control`). The pipes are mounted
read-only, which is enough to connect. A container that runs as root can still send commands to the daemon, because MPS
has no other access control: run tenants as another user to prevent it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from pathlib import Path

import structlog

from tessera.core.devices import MPS
from tessera.host.async_hardware import AsyncComputeModes
from tessera.host.cards import ComputeModes, InventoryError
from tessera.node.fleet import CardState, Fleet
from tessera.node.handover.assignments import Assignment, ContainerKey
from tessera.node.modes.base import AllocationRefused, ContainerResponse, HostMount, SharingMode, slices_by_card
from tessera.node.modes.device_lists import DeviceLists
from tessera.node.modes.mps.card import MpsCard
from tessera.node.modes.mps.control import ControlError, Limits, MpsProgram, limits_on
from tessera.node.modes.mps.daemon import CardDir, MpsDaemon, card_dirs
from tessera.node.modes.mps.launcher import SocketLauncher
from tessera.node.modes.mps.process import PIPES
from tessera.node.settings import AgentSettings
from tessera.vendors.nvidia.downward_api import MPS_MEMORY_LIMIT, MPS_THREADS

log = structlog.get_logger(__name__)

CONTAINER_PIPES = "/tessera/mps/pipe"
SHARED_MEMORY = "/dev/shm"
"""the same path on the host and in containers"""
HAND_OVER_S = 20.0
"""for preparing a card while kubelet waits"""


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
        self._launcher = SocketLauncher(settings.paths.mps) if settings.external_mps_daemons else None
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
        daemon = MpsDaemon(folder, uuid, program=self._program, modes=self._modes, launcher=self._launcher)
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
