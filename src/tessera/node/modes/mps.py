"""The sharing mode `mps`: NVIDIA's multi-process service keeps every process of a container within its limits.

    container --(pipe folder, mounted)--> control daemon of the card --> one server, alone on the card

A container gets one card, the card's pipes, and its own limits as variables that are never empty: to CUDA an empty one
means no limit. What it might do to its variables ends at the card's ceiling (`mps_limits`). The pipes are mounted
read-only, which is enough to connect and keeps one tenant from taking them from the others. A container that runs as
root can still give the daemon orders, as MPS knows no other right: tenants that may not should run as another user.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

import structlog

from tessera.node.fleet import CardState, Fleet
from tessera.node.handover.claims import Claim
from tessera.node.inventory.cards import ComputeModes
from tessera.node.modes.base import Answer, Mount, Refused
from tessera.node.modes.card_slices import slices_by_card
from tessera.node.modes.compute_modes import AskedModes
from tessera.node.modes.mps_card import Holder, MpsCard
from tessera.node.modes.mps_control import MpsProgram
from tessera.node.modes.mps_daemon import MpsDaemon
from tessera.node.modes.mps_limits import Limits, limits_on
from tessera.node.modes.mps_process import PIPES
from tessera.node.modes.mps_record import CardFolder
from tessera.node.settings import AgentSettings

log = structlog.get_logger(__name__)

CONTAINER_PIPES = "/tessera/mps/pipe"
SHARED_MEMORY = "/dev/shm"
"""of the host, and where CUDA looks for it in a container"""
MEMORY_LIMIT = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
CORE_LIMIT = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
HAND_OVER_S = 20.0
"""for making a card ready while kubelet waits"""


class Lists(Protocol):
    """Who tells containers their cards (`device_lists`)."""

    def answer(self, ids: Sequence[str], fleet: Fleet) -> Answer: ...


class Mps:
    """A `SharingMode`."""

    def __init__(
        self,
        settings: AgentSettings,
        *,
        lists: Lists,
        modes: ComputeModes,
        program: MpsProgram | None = None,
        hand_over_s: float = HAND_OVER_S,
    ) -> None:
        self._settings = settings
        self._lists = lists
        self._modes = AskedModes(modes)
        self._program = program or MpsProgram(environ=settings.environ)
        self._hand_over_s = hand_over_s
        self._fleet = Fleet()
        self._cards: dict[str, MpsCard] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    @property
    def problems(self) -> dict[str, str]:
        """Why cards take no new container in this mode, by uuid."""
        return {uuid: card.state.problem for uuid, card in self._cards.items() if card.state.problem}

    @property
    def begun(self) -> dict[str, int]:
        """How many control daemons this agent began, by card."""
        return {uuid: card.state.begun for uuid, card in self._cards.items()}

    async def start(self, fleet: Fleet) -> None:
        self._fleet = fleet
        for card in fleet:
            self._look_after(card)
        await asyncio.gather(*(card.ready(within=self._hand_over_s) for card in self._cards.values()))

    async def hand_over(self, claim: Claim, device_ids: Sequence[str], *, certain: bool = True) -> Answer:
        if not certain:
            raise Refused("it is not certain which container this is for, and with MPS each has the pipes of its card")
        slices = slices_by_card(claim, self._fleet)
        if len(slices) != 1:
            raise Refused(
                f"a container has {len(slices)} cards, and with MPS it can have one: ask for one card a container,"
                " or for a node in another mode"
            )
        facts = slices[0].card.facts
        limits = limits_on(claim, facts, limit_cores=not self._settings.disable_core_limit)
        if limits is None:
            raise Refused(f"no memory of card {facts.uuid} is granted, which MPS would take for no limit")
        answer = self._lists.answer([facts.uuid], self._fleet)
        card = self._cards.get(facts.uuid)
        if card is None:
            raise Refused(f"card {facts.uuid} is not looked after yet")
        card.need(_holder(claim), limits)
        state = await card.ready(limits, within=self._hand_over_s)
        if state.problem:
            raise Refused(f"card {facts.uuid} is not ready for MPS: {state.problem}")
        return answer.with_more(self._access(facts.uuid, limits))

    async def welcome(self, device_ids: Sequence[str]) -> Answer:
        raise Refused("no container carries its slice on a node that shares cards through MPS")

    async def settle(self, live: Sequence[Claim], fleet: Fleet) -> None:
        self._fleet = fleet
        for state in fleet:
            self._look_after(state)
        for uuid, card in list(self._cards.items()):
            if card.state.retired:
                await self._let_go(uuid)
                continue
            needs = self._needs(live, card)
            # Cards that cannot be asked now are still the node's; only the configuration takes one away.
            card.settle(needs, retire=fleet.card(uuid) is None and not fleet.problem and not needs)

    async def stop(self) -> None:
        for uuid in list(self._cards):
            await self._let_go(uuid)
        await self._modes.close()

    def _look_after(self, state: CardState) -> None:
        uuid = state.facts.uuid
        if uuid in self._cards:
            self._cards[uuid].facts = state.facts
            return
        folder = CardFolder(self._settings.paths.mps, uuid)
        daemon = MpsDaemon(folder, uuid, program=self._program, modes=self._modes)
        card = MpsCard(state.facts, daemon)
        self._cards[uuid] = card
        self._tasks[uuid] = asyncio.create_task(card.run(), name=f"mps-{uuid}")

    async def _let_go(self, uuid: str) -> None:
        """Its daemon, if it has one, goes on."""
        card, task = self._cards.pop(uuid), self._tasks.pop(uuid)
        task.cancel()
        await asyncio.wait([task])
        card.close()

    def _needs(self, live: Sequence[Claim], card: MpsCard) -> dict[Holder, Limits]:
        limit_cores = not self._settings.disable_core_limit
        every = ((_holder(claim), limits_on(claim, card.facts, limit_cores=limit_cores)) for claim in live)
        return {holder: limits for holder, limits in every if limits is not None}

    def _access(self, uuid: str, limits: Limits) -> Answer:
        return Answer(
            env={
                PIPES: CONTAINER_PIPES,
                # By uuid: no question of the order in which the container counts.
                MEMORY_LIMIT: f"{uuid}={limits.memory_mib}M",
                CORE_LIMIT: str(limits.cores),
            },
            mounts=(
                Mount(CONTAINER_PIPES, str(CardFolder(self._settings.paths.mps, uuid).pipe)),
                Mount(SHARED_MEMORY, SHARED_MEMORY, read_only=False),
            ),
        )


def _holder(claim: Claim) -> Holder:
    return claim.pod, claim.position
