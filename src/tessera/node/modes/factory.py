"""The sharing modes by the name that a node's configuration has for them, with everything around them.

MPS and MIG are imported only where they are used. Where a CDI strategy is configured, the mode comes with CDI specs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tessera.node.handover.claims import Claim
from tessera.node.inventory.cards import Hardware, MigInstance
from tessera.node.modes.base import SharingMode
from tessera.node.modes.cdi_files import CdiFiles
from tessera.node.modes.cdi_mode import WithCdi
from tessera.node.modes.container_dirs import ContainerFolders, Held, nobody_knows
from tessera.node.modes.device_lists import NO_INSTANCES, DeviceLists
from tessera.node.modes.device_specs import DeviceSpecs
from tessera.node.modes.hami_core import HamiCore
from tessera.node.modes.hami_library import home_of
from tessera.node.modes.host_dirs import Folders
from tessera.node.modes.none import Whole
from tessera.node.settings import AgentSettings

if TYPE_CHECKING:
    from tessera.node.modes.mig_annotations import Write


def build_mode(
    settings: AgentSettings,
    hardware: Hardware,
    *,
    write: Write,
    held: Held = nobody_knows,
    known: Callable[[], Sequence[Claim] | None] = lambda: (),
    instances: Callable[[], Sequence[MigInstance]] = lambda: NO_INSTANCES,
) -> SharingMode:
    """The mode that the settings name.

    `write` completes MIG reservations in a pod's annotation. `held` asks kubelet for the device ids of every container
    that holds some, or says None; without it, folders that may be in use stay. `known` are the live claims at start,
    None where they are not known yet. `instances` are those that are handed out beside the mode, for the CDI specs.
    """
    specs = DeviceSpecs(settings.paths)
    files = CdiFiles(settings, specs=specs) if any(each.is_cdi for each in settings.strategies) else None
    if settings.node.mode == "mig":
        return _mig(settings, hardware, specs=specs, files=files, write=write, known=known)
    lists = DeviceLists(settings, specs=specs, cdi=files)
    mode: SharingMode
    if settings.node.mode == "mps":
        from tessera.node.modes.mps import Mps

        mode = Mps(settings, lists=lists, modes=hardware)
    elif settings.node.mode == "none":
        mode = Whole(settings, lists)
    else:
        folders = ContainerFolders(Folders(home_of(settings)), held=held)
        mode = HamiCore(settings, lists, folders=folders)
    return mode if files is None else WithCdi(mode, files, instances)


def _mig(
    settings: AgentSettings,
    hardware: Hardware,
    *,
    specs: DeviceSpecs,
    files: CdiFiles | None,
    write: Write,
    known: Callable[[], Sequence[Claim] | None],
) -> SharingMode:
    """The one mode that makes devices: lists and specs ask it which there are."""
    from tessera.node.modes.mig import Mig

    def instances() -> Sequence[MigInstance]:
        return mig.current_instances()

    lists = DeviceLists(settings, specs=specs, cdi=files, instances=instances)
    if files is None:
        mig = Mig(settings, hardware, device_lists=lists, write=write, known=known)
        return mig

    async def refresh() -> None:
        await mode.refresh()

    mig = Mig(settings, hardware, device_lists=lists, write=write, refresh=refresh, known=known)
    mode = WithCdi(mig, files, instances)
    return mode
