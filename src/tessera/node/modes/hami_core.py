"""Mode `hami-core`: a library that every process of a container loads counts and limits what it uses of its cards.

The answer has the container's limits and a folder that it has alone. Where the slices travel with their pods,
`welcome` says only what is the same for all, names no card, and the folder belongs to whoever holds the device ids.
What the library needs is in `library`, the life of folders in `container_folders`.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence

import structlog

from tessera.node.fleet import Fleet
from tessera.node.handover.claims import Claim
from tessera.node.modes import hami_library as library
from tessera.node.modes.base import NO_DEVICES, Answer, Mount, Refused
from tessera.node.modes.card_slices import slices_by_card
from tessera.node.modes.container_dirs import ContainerFolders
from tessera.node.modes.device_lists import VISIBLE_DEVICES, DeviceLists
from tessera.node.modes.host_dirs import CACHE_SUFFIX, Folders, folder_of, folder_of_ids, share_folder
from tessera.node.settings import AgentSettings

log = structlog.get_logger(__name__)


class HamiCore:
    """The mode. It keeps the latest state of the cards and knows nothing of pods."""

    def __init__(
        self,
        settings: AgentSettings,
        device_lists: DeviceLists,
        *,
        folders: ContainerFolders | None = None,
        new_cache: Callable[[], str] = lambda: str(uuid.uuid4()),
    ) -> None:
        self._settings = settings
        self._device_lists = device_lists
        self._home = library.home_of(settings)
        self._folders = folders or ContainerFolders(Folders(self._home))
        self._new_cache = new_cache
        self._fleet = Fleet()

    async def start(self, fleet: Fleet) -> None:
        self._fleet = fleet
        try:
            await self._folders.ask(self._common_mounts)
        except Refused as refusal:
            log.error("no container can be limited yet", problem=f"{refusal}")

    async def hand_over(self, claim: Claim, device_ids: Sequence[str], *, certain: bool = True) -> Answer:
        slices = slices_by_card(claim, self._fleet)
        limits = library.limits_of(claim, slices)
        answer = self._device_lists.answer([each.uuid for each in slices], self._fleet)
        region = {library.REGION: f"{self._home}/{self._new_cache()}{CACHE_SUFFIX}"}
        mounts = await self._mounts(folder_of(claim) if certain else folder_of_ids(device_ids), device_ids)
        # Where another container may get this answer, that one did not ask to be free of the library.
        if claim.uncontrolled and certain:
            mounts = tuple(each for each in mounts if each.container_path != library.PRELOAD)
        env = {**library.common_variables(self._settings), **limits, **region}
        return answer.with_more(Answer(env=env, mounts=mounts))

    async def welcome(self, device_ids: Sequence[str]) -> Answer:
        mounts = await self._mounts(folder_of_ids(device_ids), device_ids)
        # The container's own variable wins over this one; a container without its own was not meant and gets no card.
        env = {VISIBLE_DEVICES: NO_DEVICES, **library.common_variables(self._settings)}
        return self._device_lists.features().with_more(Answer(env=env, mounts=mounts))

    async def settle(self, live: Sequence[Claim], fleet: Fleet) -> None:
        self._fleet = fleet
        await self._folders.tidy(live)

    async def stop(self) -> None:
        await self._folders.stop()

    async def _mounts(self, folder: str, device_ids: Sequence[str]) -> tuple[Mount, ...]:
        own, common = await self._folders.give(folder, device_ids, after=self._common_mounts)
        # The library is mounted at a place inside the folder, so the folder has to come first.
        return (Mount(f"{self._home}", f"{own}", read_only=False), *common)

    def _common_mounts(self) -> tuple[Mount, ...]:
        share_folder(self._settings.paths.lock)
        return library.common_mounts(self._settings)
