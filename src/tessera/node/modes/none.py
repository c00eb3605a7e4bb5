"""Mode `none`: whole cards, as they are. Nothing limits a container, so nothing smaller than a card is handed over."""

from __future__ import annotations

from collections.abc import Sequence

from tessera.node.fleet import Fleet
from tessera.node.handover.claims import Claim
from tessera.node.modes.base import Answer, Refused
from tessera.node.modes.card_slices import CardSlice, slices_by_card
from tessera.node.modes.device_lists import DeviceLists
from tessera.node.settings import AgentSettings

MIB = 1024 * 1024
WHOLE_CORES = 100
"""percent"""


class Whole:
    """The mode. It keeps nothing but the latest state of the cards."""

    def __init__(self, settings: AgentSettings, device_lists: DeviceLists) -> None:
        self._settings = settings
        self._device_lists = device_lists
        self._fleet = Fleet()

    async def start(self, fleet: Fleet) -> None:
        self._fleet = fleet

    async def hand_over(self, claim: Claim, device_ids: Sequence[str], *, certain: bool = True) -> Answer:
        slices = slices_by_card(claim, self._fleet)
        for each in slices:
            if claim.mig or not self._is_whole(each):
                raise Refused(
                    f"{each.memory} MiB and {each.cores} cores of card {each.uuid}: this node hands over whole cards"
                    f" only; ask for {self._settings.resource} alone, without memory and cores"
                )
        return self._device_lists.answer([each.uuid for each in slices], self._fleet)

    async def welcome(self, device_ids: Sequence[str]) -> Answer:
        raise Refused("this node hands over whole cards by its answer, not by the pod's own variables")

    async def settle(self, live: Sequence[Claim], fleet: Fleet) -> None:
        self._fleet = fleet

    async def stop(self) -> None:
        return None

    def _is_whole(self, each: CardSlice) -> bool:
        """Cards are registered unscaled in this mode: there is no more than all of a card, and no less to be had."""
        reported = each.card.facts.memory_bytes
        memory = self._settings.node.preconfigured_memory if reported is None else reported // MIB
        return each.memory >= memory and (not each.cores or each.cores >= WHOLE_CORES)
