"""Sizes of groups that are in an object (PodGroup): which are known, and which to look up next.

Groups without an object are looked up again and again, because it may be created later. The look-ups of all of them
are `EACH_S` apart, however many there are, and namespaces take turns. This module makes no call: `engine` does,
in a task of its own, so that no wake-up waits for a look-up.
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, field
from typing import NamedTuple

from tessera.wire.pod_groups import PodGroup

AGAIN_S = 5.0
"""between two look-ups of one group"""
EACH_S = 0.1
"""between two look-ups of all groups"""


class WantedGroup(NamedTuple):
    """A group whose size is to be looked up."""

    namespace: str
    group: PodGroup


@dataclass(slots=True)
class _Queue:
    """Groups of one namespace that are to be looked up, by name."""

    fresh: dict[str, PodGroup] = field(default_factory=dict)
    """not looked up yet"""
    again: dict[str, tuple[float, PodGroup]] = field(default_factory=dict)
    """looked up in vain, with the time of the next look-up, in its order"""

    @property
    def due(self) -> float:
        return -math.inf if self.fresh else next(iter(self.again.values()))[0]

    def take(self, due_again: float) -> PodGroup:
        name = next(iter(self.fresh or self.again))
        group = self.fresh.pop(name) if self.fresh else self.again.pop(name)[1]
        self.again[name] = due_again, group
        return group


class GroupSizes:
    """The sizes of the groups that pods name, as their objects say."""

    def __init__(self) -> None:
        self.wanted = asyncio.Event()
        """set when a group is to be looked up that was not before"""
        self._minimums: dict[tuple[str, str], int] = {}
        self._queues: dict[str, _Queue] = {}
        """by namespace, that whose turn it is first"""

    def sized(self, namespace: str, group: PodGroup) -> PodGroup:
        """The group with the size of its object, if that was read."""
        minimum = self._minimums.get((namespace, group.name))
        return group if group.is_sized or minimum is None else group._replace(size=minimum, minimum=minimum)

    def want(self, namespace: str, group: PodGroup) -> None:
        queue = self._queues.setdefault(namespace, _Queue())
        if group.name not in queue.fresh and group.name not in queue.again:
            queue.fresh[group.name] = group
            self.wanted.set()

    def next(self, now: float) -> WantedGroup | float:
        """The next group to be looked up, or when one is to be looked up; infinite if there is none."""
        earliest = math.inf
        for namespace, queue in self._queues.items():
            if queue.due <= now:
                # The namespace is the last one from now on.
                self._queues[namespace] = self._queues.pop(namespace)
                return WantedGroup(namespace, queue.take(now + AGAIN_S))
            earliest = min(earliest, queue.due)
        return earliest

    def put(self, namespace: str, name: str, minimum: int) -> None:
        """What its object says."""
        self._minimums[namespace, name] = minimum
        self.forget_wanted(namespace, name)

    def forget_wanted(self, namespace: str, name: str) -> None:
        queue = self._queues.get(namespace)
        if queue is not None:
            queue.fresh.pop(name, None)
            queue.again.pop(name, None)
            if not queue.fresh and not queue.again:
                del self._queues[namespace]

    def forget(self, namespace: str, name: str) -> None:
        """No pod names the group any more."""
        self._minimums.pop((namespace, name), None)
        self.forget_wanted(namespace, name)
