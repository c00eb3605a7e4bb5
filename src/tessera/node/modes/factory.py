"""Builds the sharing mode that the configuration names, with the parts that it needs.

MPS and MIG are imported only if they are used. With a CDI strategy, the mode also maintains CDI specs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tessera.host.cards import Hardware, MigInstance
from tessera.host.writable_dirs import WritableDirs
from tessera.node.handover.claims import Claim
from tessera.node.modes.base import SharingMode
from tessera.node.modes.cdi_files import CdiFiles
from tessera.node.modes.container_dirs import ContainerDirs, Held, unknown_holders
from tessera.node.modes.device_lists import DeviceLists, DeviceSpecs
from tessera.node.modes.hami_core import HamiCore, home_of
from tessera.node.modes.whole_cards import WholeCards
from tessera.node.settings import AgentSettings

if TYPE_CHECKING:
    from tessera.node.modes.mig.annotations import Write


def build_mode(
    settings: AgentSettings,
    hardware: Hardware,
    *,
    write: Write,
    held: Held = unknown_holders,
    known: Callable[[], Sequence[Claim] | None] = lambda: (),
    instances: Callable[[], Sequence[MigInstance]] = lambda: (),
) -> SharingMode:
    """Builds the mode that the settings name.

    `write` completes MIG reservations in a pod's annotation. `held` asks kubelet for the device ids of each container
    that holds some, or returns None; without it, directories that may be in use stay. `known` returns the live claims
    at start, None if they are unknown. `instances` returns the static MIG instances, for the CDI specs.
    """
    specs = DeviceSpecs(settings.paths)
    files = CdiFiles(settings, specs=specs) if any(each.is_cdi for each in settings.strategies) else None
    lists = DeviceLists(settings, specs=specs, cdi=files)
    mode: SharingMode
    if settings.node.mode == "mig":
        from tessera.node.modes.mig.mode import Mig

        mode = Mig(settings, hardware, device_lists=lists, write=write, known=known)
    elif settings.node.mode == "mps":
        from tessera.node.modes.mps.mode import Mps

        mode = Mps(settings, device_lists=lists, modes=hardware)
    elif settings.node.mode == "none":
        mode = WholeCards(settings, lists)
    else:
        mode = HamiCore(settings, lists, dirs=ContainerDirs(WritableDirs(home_of(settings)), held=held))
    mode.cdi = files
    if settings.node.mode != "mig":
        mode.instances = instances
    return mode
