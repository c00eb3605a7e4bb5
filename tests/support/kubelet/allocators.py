"""An allocator with scripted responses."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from tessera.node.fleet import preferred
from tessera.node.modes.base import ContainerResponse

Script = Callable[[Sequence[Sequence[str]]], Awaitable[list[ContainerResponse]]]


async def visible_devices(containers: Sequence[Sequence[str]]) -> list[ContainerResponse]:
    return [ContainerResponse(env={"NVIDIA_VISIBLE_DEVICES": ",".join(ids)}) for ids in containers]


class ScriptedAllocator:
    """By default it returns the ids; it prefers the cards in `wanted`."""

    def __init__(self, script: Script = visible_devices) -> None:
        self.script = script
        self.wanted: Sequence[str] | None = None
        self.fault: Exception | None = None
        """raised by `prefer`"""

    async def allocate(self, containers: Sequence[Sequence[str]]) -> list[ContainerResponse]:
        return await self.script(containers)

    def prefer(self, available: Sequence[str], must_include: Sequence[str], count: int) -> Sequence[str]:
        if self.fault is not None:
            raise self.fault
        return preferred(self.wanted, available=available, must_include=must_include, count=count)
