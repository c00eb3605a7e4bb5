"""One device plugin for each resource of MIG instances, beside the plugin of the shared cards.

Resources come and go with the instances. If instances use the same resource as the shared cards, they replace its
plugin, because kubelet knows one plugin per resource. Nothing is served before the instances were read once. The device
ids are the instances, so Allocate needs no pod and writes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

from tessera.node.fleet import Fleet
from tessera.node.kubelet.device_ids import Replica
from tessera.node.kubelet.plugin import Plugin
from tessera.node.modes.base import ContainerResponse, SharingMode
from tessera.node.modes.cdi_files import WithCdi
from tessera.node.modes.device_lists import DeviceLists
from tessera.node.settings import AgentSettings
from tessera.node.static_mig.resources import InstanceResources, InstanceWatch
from tessera.node.watched_value import WatchedValue


def serves_instances(settings: AgentSettings) -> bool:
    """Whether static MIG is configured. In mode `mig` all instances are the agent's own."""
    return settings.node.mig_strategy != "none" and settings.node.mode != "mig"


@dataclass(frozen=True, slots=True)
class _Served:
    plugin: Plugin
    task: asyncio.Task[None]
    devices: WatchedValue[tuple[Replica, ...]]
    """empty for shared cards, which their own plugin counts"""


class StaticMig:
    """The plugins, and the `Allocator` of those for instances. Also runs `shared`, the plugin of the shared cards."""

    def __init__(
        self,
        settings: AgentSettings,
        watch: InstanceWatch,
        *,
        fleet: WatchedValue[Fleet],
        shared: Plugin,
        mode: SharingMode,
    ) -> None:
        """`mode` keeps the CDI specs, if there are any."""
        self._settings = settings
        self._watch = watch
        self._fleet = fleet
        self._shared = shared
        self._cdi = mode if isinstance(mode, WithCdi) else None
        self._lists = DeviceLists(settings, cdi=None if self._cdi is None else self._cdi.files)
        self._served: dict[str, _Served] = {}
        """by resource"""

    @property
    def problem(self) -> str:
        """Why kubelet cannot use one of the plugins; empty if it can use all."""
        if not self._served:
            return "the MIG instances have not been read yet"
        return next((each.plugin.problem for each in self._served.values() if each.plugin.problem), "")

    async def run(self) -> None:
        """Runs until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._watch.run())
                group.create_task(self._follow(group))
        finally:
            self._served.clear()

    async def allocate(self, containers: Sequence[Sequence[str]]) -> list[ContainerResponse]:
        fleet, instances = self._fleet.value, self._watch.instances()
        return [self._lists.response(ids, fleet, instances) for ids in containers]

    def prefer(self, available: Sequence[str], must_include: Sequence[str], count: int) -> Sequence[str]:
        """Returns no preference: the instances of a resource are equal."""
        return ()

    async def _follow(self, group: asyncio.TaskGroup) -> None:
        async with aclosing(self._watch.resources.changes()) as changes:
            async for resources in changes:
                if resources is not None:
                    if self._cdi is not None:
                        # The specs must list a device before kubelet can hand it out.
                        await self._cdi.refresh()
                    await self._serve(resources, group)

    async def _serve(self, resources: InstanceResources, group: asyncio.TaskGroup) -> None:
        own, instances = self._settings.resource, resources.devices
        wanted = instances if own in instances else {own: (), **instances}
        for resource, served in list(self._served.items()):
            is_replaced = resource == own and (own in instances) == (served.plugin is self._shared)
            if resource not in wanted or is_replaced:
                del self._served[resource]
                served.task.cancel()
                await asyncio.wait([served.task])
        for resource, devices in wanted.items():
            known = self._served.get(resource)
            if known is not None:
                known.devices.set(devices)
                continue
            listed = WatchedValue(devices)
            plugin = self._plugin(resource, listed) if resource in instances else self._shared
            self._served[resource] = _Served(plugin, group.create_task(plugin.run()), listed)

    def _plugin(self, resource: str, devices: WatchedValue[tuple[Replica, ...]]) -> Plugin:
        node = replace(self._settings.node, preferred_allocation=False)
        return Plugin(replace(self._settings, resource=resource, node=node), devices, self)
