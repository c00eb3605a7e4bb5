"""Builds the sharing mode that the configuration names, with the parts that it needs.

With a CDI strategy, the mode also maintains CDI specs. The mode `none` hands over whole cards only, because nothing
limits a container.

A node whose cards are shared in different modes has one part per mode, and each container belongs to one of them. A
container whose cards have different modes is refused: what limits it on one card does not work on the other. Parts see
all cards of the node and serve those in their own mode (`Fleet.in_mode`). The CDI specs list all cards, so they are
kept by the whole and not by the parts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from tessera.core.model.requests import WHOLE_CARD_CORES
from tessera.host.cards import Hardware, MigInstance
from tessera.host.writable_dirs import WritableDirs
from tessera.node.fleet import Fleet
from tessera.node.handover.assignments import Assignment
from tessera.node.modes.base import AllocationRefused, CardSlice, ContainerResponse, SharingMode, slices_by_card
from tessera.node.modes.cdi import CdiFiles
from tessera.node.modes.device_lists import DeviceLists, DeviceSpecs
from tessera.node.modes.hami_core import ContainerDirs, HamiCore, Held, home_of, unknown_holders
from tessera.node.modes.mig.mode import Mig, Write
from tessera.node.modes.mps.mode import Mps
from tessera.node.settings import AgentSettings
from tessera.wire.errors import quoted
from tessera.wire.node_config import Mode
from tessera.wire.pod_devices import split_legacy_uuid


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


def build_mode(
    settings: AgentSettings,
    hardware: Hardware,
    *,
    write: Write,
    held: Held = unknown_holders,
    known: Callable[[], Sequence[Assignment] | None] = lambda: (),
    instances: Callable[[], Sequence[MigInstance]] = lambda: (),
) -> SharingMode:
    """Builds the mode that the settings name, or one with a part for each mode if cards have different ones.

    `write` completes MIG reservations in a pod's annotation. `held` asks kubelet for the device ids of each container
    that holds some, or returns None; without it, directories that may be in use stay. `known` returns the live
    assignments at start, None if they are unknown. `instances` returns the static MIG instances, for the CDI specs.
    """
    specs = DeviceSpecs(settings.paths)
    files = CdiFiles(settings, specs=specs) if any(each.is_cdi for each in settings.strategies) else None
    lists = DeviceLists(settings, specs=specs, cdi=files)

    def build(name: Mode) -> SharingMode:
        if name == "mig":
            return Mig(settings, hardware, device_lists=lists, write=write, known=known)
        if name == "mps":
            return Mps(settings, device_lists=lists, modes=hardware)
        if name == "none":
            return WholeCards(settings, lists)
        return HamiCore(settings, lists, dirs=ContainerDirs(WritableDirs(home_of(settings)), held=held))

    parts: dict[str, SharingMode] = {name: build(name) for name in sorted(settings.node.modes)}
    mode = parts[settings.node.mode] if len(parts) == 1 else MixedModes(parts)
    mode.cdi = files
    mode.lists = lists
    if "mig" not in parts:
        mode.instances = instances
    elif mode is not parts["mig"]:
        mode.instances = parts["mig"].instances
    return mode
