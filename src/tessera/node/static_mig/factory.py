"""Puts the serving of instances together, where a node's settings ask for it."""

from __future__ import annotations

from tessera.node.fleet import Fleet
from tessera.node.kubelet.plugin import Plugin
from tessera.node.modes.base import SharingMode
from tessera.node.modes.cdi_mode import WithCdi
from tessera.node.modes.device_lists import DeviceLists
from tessera.node.settings import AgentSettings
from tessera.node.static_mig.allocator import InstanceAllocator
from tessera.node.static_mig.instance_watch import InstanceWatch
from tessera.node.static_mig.plugins import StaticMig
from tessera.node.watched_value import Current


def build_static_mig(
    settings: AgentSettings, watch: InstanceWatch, *, fleet: Current[Fleet], mode: SharingMode, shared: Plugin
) -> StaticMig:
    """`mode` keeps the CDI specs, where there are any; `shared` is the plugin of the shared cards."""
    cdi = mode if isinstance(mode, WithCdi) else None
    lists = DeviceLists(settings, cdi=None if cdi is None else cdi.files, instances=watch.instances)
    return StaticMig(
        settings,
        watch,
        shared=shared,
        allocator=InstanceAllocator(lists, fleet),
        refresh=None if cdi is None else cdi.refresh,
    )


def serves_instances(settings: AgentSettings) -> bool:
    """In mode `mig` all instances are the agent's own."""
    return settings.node.mig_strategy != "none" and settings.node.mode != "mig"
