"""Serves every resource of instances beside that of the shared cards, each with a device plugin of its own.

Resources come and go with the instances. Where instances take the very resource that shared cards have, they take its
place: kubelet knows one plugin a resource. Nothing is served before the instances were looked at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace

from tessera.node.kubelet.device_ids import Replica
from tessera.node.kubelet.plugin import Plugin
from tessera.node.kubelet.service import Allocator
from tessera.node.settings import AgentSettings
from tessera.node.static_mig.instance_watch import InstanceWatch
from tessera.node.static_mig.layout import Layout
from tessera.node.watched_value import Current

Refresh = Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class _Served:
    plugin: Plugin
    task: asyncio.Task[None]
    devices: Current[tuple[Replica, ...]]
    """none for shared cards, which their own plugin counts"""


class StaticMig:
    """Runs `shared`, the plugin of the shared cards, as well."""

    def __init__(
        self,
        settings: AgentSettings,
        watch: InstanceWatch,
        *,
        shared: Plugin,
        allocator: Allocator,
        refresh: Refresh | None = None,
    ) -> None:
        """`refresh` makes CDI specs list the instances that there are now."""
        self._settings = settings
        self._watch = watch
        self._shared = shared
        self._allocator = allocator
        self._refresh = refresh
        self._served: dict[str, _Served] = {}
        """by resource"""

    @property
    def problem(self) -> str:
        """Why kubelet cannot use one of the plugins; empty = it can use all."""
        if not self._served:
            return "the MIG instances have not been read yet"
        return next((each.plugin.problem for each in self._served.values() if each.plugin.problem), "")

    async def run(self) -> None:
        """Until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._watch.run())
                group.create_task(self._follow(group))
        finally:
            self._served.clear()

    async def _follow(self, group: asyncio.TaskGroup) -> None:
        async with aclosing(self._watch.layout.changes()) as layouts:
            async for layout in layouts:
                if layout is not None:
                    if self._refresh is not None:
                        # What kubelet may hand out must be there when the container starts.
                        await self._refresh()
                    await self._serve(layout, group)

    async def _serve(self, layout: Layout, group: asyncio.TaskGroup) -> None:
        own = self._settings.resource
        wanted = layout.devices if own in layout.devices else {own: (), **layout.devices}
        for resource, served in list(self._served.items()):
            takes_over = resource == own and (own in layout.devices) == (served.plugin is self._shared)
            if resource not in wanted or takes_over:
                del self._served[resource]
                served.task.cancel()
                await asyncio.wait([served.task])
        for resource, devices in wanted.items():
            known = self._served.get(resource)
            if known is not None:
                known.devices.set(devices)
                continue
            listed = Current(devices)
            plugin = self._plugin(resource, listed) if resource in layout.devices else self._shared
            self._served[resource] = _Served(plugin, group.create_task(plugin.run()), listed)

    def _plugin(self, resource: str, devices: Current[tuple[Replica, ...]]) -> Plugin:
        node = replace(self._settings.node, preferred_allocation=False)
        return Plugin(replace(self._settings, resource=resource, node=node), devices, self._allocator)
