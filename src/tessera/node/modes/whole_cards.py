"""The sharing mode `none`: whole cards only, because nothing limits a container."""

from __future__ import annotations

from collections.abc import Sequence

from tessera.core.requests import WHOLE_CARD_CORES
from tessera.node.handover.assignments import Assignment
from tessera.node.modes.base import AllocationRefused, CardSlice, ContainerResponse, SharingMode, slices_by_card
from tessera.node.modes.device_lists import DeviceLists
from tessera.node.settings import AgentSettings


class WholeCards(SharingMode):
    def __init__(self, settings: AgentSettings, device_lists: DeviceLists) -> None:
        super().__init__()
        self._settings = settings
        self._device_lists = device_lists

    async def hand_over(self, assignment: Assignment, ids: Sequence[str], *, certain: bool = True) -> ContainerResponse:
        slices = slices_by_card(assignment, self._fleet)
        for each in slices:
            if assignment.mig or not self._is_whole(each):
                raise AllocationRefused(
                    f"{each.memory} MiB and {each.cores} cores of card {each.uuid}: this node hands over whole cards"
                    f" only; ask for {self._settings.resource} alone, without memory and cores"
                )
        return self._device_lists.response([each.uuid for each in slices], self._fleet)

    def _is_whole(self, each: CardSlice) -> bool:
        """Cards are registered unscaled in this mode, so a slice is a whole card or less."""
        reported = each.card.facts.memory_mib
        memory = self._settings.node.preconfigured_memory if reported is None else reported
        return each.memory >= memory and (not each.cores or each.cores >= WHOLE_CARD_CORES)
