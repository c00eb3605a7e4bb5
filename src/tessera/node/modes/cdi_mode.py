"""Keeps CDI specs beside a sharing mode: whatever the mode hands over by name, a container runtime finds.

Wraps any mode where a CDI strategy is configured. The mode comes first, because it makes or finds the MIG instances
that the specs list; one that makes an instance during a handover calls `refresh` before it answers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tessera.node.fleet import Fleet
from tessera.node.handover.claims import Claim
from tessera.node.inventory.cards import MigInstance
from tessera.node.modes.base import Answer, SharingMode
from tessera.node.modes.cdi_files import CdiFiles


class WithCdi:
    """A sharing mode whose cards are also in CDI specs."""

    def __init__(self, mode: SharingMode, files: CdiFiles, instances: Callable[[], Sequence[MigInstance]]) -> None:
        self.mode = mode
        self.files = files
        self._instances = instances
        self._fleet = Fleet()

    @property
    def problems(self) -> Mapping[str, str]:
        """Why the mode cannot share cards now, by uuid."""
        found: Mapping[str, str] = getattr(self.mode, "problems", {})
        return found

    async def refresh(self) -> None:
        """With the cards and instances as they are now."""
        await self.files.refresh(self._fleet, self._instances())

    async def start(self, fleet: Fleet) -> None:
        self._fleet = fleet
        await self.mode.start(fleet)
        await self.refresh()

    async def hand_over(self, claim: Claim, device_ids: Sequence[str], *, certain: bool = True) -> Answer:
        return await self.mode.hand_over(claim, device_ids, certain=certain)

    async def welcome(self, device_ids: Sequence[str]) -> Answer:
        return await self.mode.welcome(device_ids)

    async def settle(self, live: Sequence[Claim], fleet: Fleet) -> None:
        self._fleet = fleet
        await self.mode.settle(live, fleet)
        await self.refresh()

    async def stop(self) -> None:
        await self.mode.stop()
        await self.files.stop()
