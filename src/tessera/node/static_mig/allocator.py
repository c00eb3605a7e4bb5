"""Answers for instances: the device ids are the instances, so there is no pod to be found and nothing to be written."""

from __future__ import annotations

from collections.abc import Sequence

from tessera.node.fleet import Fleet
from tessera.node.modes.base import Answer
from tessera.node.modes.device_lists import DeviceLists
from tessera.node.watched_value import Current


class InstanceAllocator:
    """An `Allocator`."""

    def __init__(self, lists: DeviceLists, fleet: Current[Fleet]) -> None:
        self._lists = lists
        self._fleet = fleet

    async def allocate(self, containers: Sequence[Sequence[str]]) -> list[Answer]:
        return [self._lists.answer(ids, self._fleet.value) for ids in containers]

    def prefer(self, available: Sequence[str], must_include: Sequence[str], count: int) -> Sequence[str]:
        """Equal instances are as good as each other."""
        return ()
