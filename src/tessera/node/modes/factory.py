"""Builds the sharing mode that the configuration names, with the parts that it needs.

MPS and MIG are imported only if they are used. With a CDI strategy, the mode also maintains CDI specs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tessera.host.cards import Hardware, MigInstance
from tessera.host.writable_dirs import WritableDirs
from tessera.node.handover.assignments import Assignment
from tessera.node.modes.base import SharingMode
from tessera.node.modes.cdi_files import CdiFiles
from tessera.node.modes.container_dirs import ContainerDirs, Held, unknown_holders
from tessera.node.modes.device_lists import DeviceLists, DeviceSpecs
from tessera.node.modes.hami_core import HamiCore, home_of
from tessera.node.modes.mixed import MixedModes
from tessera.node.modes.whole_cards import WholeCards
from tessera.node.settings import AgentSettings
from tessera.wire.node_config import Mode

if TYPE_CHECKING:
    from tessera.node.modes.mig.annotations import Write


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
            from tessera.node.modes.mig.mode import Mig

            return Mig(settings, hardware, device_lists=lists, write=write, known=known)
        if name == "mps":
            from tessera.node.modes.mps.mode import Mps

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
