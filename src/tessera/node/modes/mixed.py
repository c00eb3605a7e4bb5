"""A node whose cards are shared in different modes: one part per mode, and each container belongs to one of them.

A container whose cards have different modes is refused: what limits it on one card does not work on the other. Parts
see all cards of the node and serve those in their own mode (`Fleet.in_mode`). The CDI specs list all cards, so they are
kept here and not by the parts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from tessera.node.fleet import Fleet
from tessera.node.handover.assignments import Assignment
from tessera.node.modes.base import AllocationRefused, ContainerResponse, SharingMode
from tessera.wire.mig import split_legacy_uuid
from tessera.wire.quotes import quoted


class MixedModes(SharingMode):
    def __init__(self, parts: Mapping[str, SharingMode]) -> None:
        """`parts` by mode."""
        super().__init__()
        self._parts = parts
        for part in parts.values():
            part.whole = self

    @property
    def problems(self) -> Mapping[str, str]:
        return {uuid: problem for part in self._parts.values() for uuid, problem in part.problems.items()}

    async def start(self, fleet: Fleet) -> None:
        await super().start(fleet)
        await asyncio.gather(*(part.start(fleet) for part in self._parts.values()))

    async def hand_over(self, assignment: Assignment, ids: Sequence[str], *, certain: bool = True) -> ContainerResponse:
        modes = {uuid: self._mode_of(uuid) for uuid in (split_legacy_uuid(each.uuid)[0] for each in assignment.slices)}
        first = next(iter(modes.values()))
        if any(mode != first for mode in modes.values()):
            listed = ", ".join(f"{uuid} by {mode}" for uuid, mode in modes.items())
            raise AllocationRefused(
                f"the container's cards are shared in different modes: {listed}; choose one with nvidia.com/vgpu-mode"
            )
        return await self._parts[first].hand_over(assignment, ids, certain=certain)

    async def reconcile(self, live: Sequence[Assignment], fleet: Fleet) -> None:
        await super().reconcile(live, fleet)
        # A fault of one mode must not keep the others from releasing what they hold.
        results = await asyncio.gather(
            *(part.reconcile(live, fleet) for part in self._parts.values()), return_exceptions=True
        )
        for fault in results:
            if fault is not None:
                raise fault

    async def stop(self) -> None:
        await asyncio.gather(*(part.stop() for part in self._parts.values()), return_exceptions=True)
        await super().stop()

    def _mode_of(self, uuid: str) -> str:
        card = self._fleet.card(uuid)
        if card is None:
            raise AllocationRefused(f"card {quoted(uuid)} is not among this node's cards")
        if card.mode not in self._parts:
            raise AllocationRefused(f"card {uuid} is about to be shared in another mode; try again")
        return card.mode
