"""Which gangs there are, and which pods belong to them.

A gang is known while it has a member. Its size comes from its members, which must agree, or from an object (PodGroup).
Gangs are in the order in which they began to wait. No step here grows with their number.

Groups without an object are looked up again and again, because it may be created later. The look-ups of all of them
are `EACH_S` apart, however many there are, and namespaces take turns. A task of their own makes them, so that no
wake-up waits for one.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import structlog

from tessera.kube.errors import KubeError
from tessera.scheduler.features.gangs.gang import Gang, GangState, Member, MemberState
from tessera.scheduler.framework import Pipeline
from tessera.scheduler.requests.reader import PreparedRequest
from tessera.wire.pod_groups import PodGroup

log = structlog.get_logger(__name__)

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


class GangRegistry:
    """All gangs of a cluster. Used from the event loop only."""

    def __init__(self, refused: asyncio.Event) -> None:
        """`refused`: set when something was refused that may preempt other pods."""
        self._refused = refused
        self._gangs: dict[tuple[str, str], Gang] = {}
        self.gang_of: dict[str, Gang] = {}
        """by uid of a member"""
        self._unshown: dict[str, Member] = {}
        """members that only filter knows, by uid"""
        self.sizes = GroupSizes()

    def __iter__(self) -> Iterator[Gang]:
        return iter(list(self._gangs.values()))

    def get(self, namespace: str, name: str) -> Gang | None:
        return self._gangs.get((namespace, name))

    def of(self, uid: str) -> Gang | None:
        return self.gang_of.get(uid)

    def __len__(self) -> int:
        return len(self._gangs)

    def note_shown(self, uid: str, member: Member) -> bool:
        """The API shows the member; whether that is new."""
        is_new, member.is_shown = not member.is_shown, True
        self._unshown.pop(uid, None)
        return is_new

    def unshown(self) -> list[tuple[str, Member]]:
        """Members that the API has not shown, by uid."""
        return list(self._unshown.items())

    def put_last(self, gang: Gang) -> None:
        """It waits again, behind all others."""
        key = gang.namespace, gang.group.name
        if self._gangs.get(key) is gang:
            self._gangs[key] = self._gangs.pop(key)

    def join(self, group: PodGroup, prepared: PreparedRequest, *, now: float) -> tuple[Gang, Member]:
        """The gang of a pod that is not a member of another one, and the pod as its member."""
        request = prepared.request
        key = (request.namespace, group.name)
        gang = self._gangs.get(key)
        if gang is None:
            gang = self._gangs[key] = Gang(request.namespace, self.sizes.sized(request.namespace, group), now)
            self._note_size(gang)
        member = gang.members.get(request.uid)
        if member is None:
            member = Member(request, MemberState.PENDING)
            gang.members.add(member)
            gang.note_change()
            if gang.present == gang.required:
                gang.note_complete()
            self.gang_of[request.uid] = gang
            self._unshown[request.uid] = member
        elif len(gang.members) == 1 and gang.state is GangState.WAITING:
            gang.group = self.sizes.sized(request.namespace, group)
            self._note_size(gang)
        member.shared_claim = prepared.shared_claim
        if member.request.containers != request.containers:
            # A claim was allocated or released, so the member asks for something else than before.
            member.request = request
            gang.note_change()
        return gang, member

    def leave(self, uid: str) -> Gang | None:
        """The gang that the pod was a member of; it is forgotten with its last member."""
        gang = self.gang_of.pop(uid, None)
        if gang is None:
            return None
        gang.members.remove(uid)
        self._unshown.pop(uid, None)
        gang.note_change()
        if not gang.members:
            del self._gangs[gang.namespace, gang.group.name]
            self.sizes.forget(gang.namespace, gang.group.name)
        return gang

    def note_short(self, gang: Gang) -> None:
        """All members were asked for, and do not fit together."""
        gang.preemption.is_due = True
        self._refused.set()

    # -- sizes

    def difference(self, gang: Gang, group: PodGroup) -> str:
        """What a member says otherwise than its gang; empty if it says the same."""
        mine = self.sizes.sized(gang.namespace, group)
        if (mine.size, mine.minimum) == (gang.group.size, gang.group.minimum):
            return ""
        return (
            f"this pod says {mine.minimum} of {mine.size} members, "
            f"the others say {gang.group.minimum} of {gang.group.size}; write the same on all"
        )

    def set_minimum(self, namespace: str, name: str, minimum: int) -> None:
        """What the group's object says."""
        self.sizes.put(namespace, name, minimum)
        gang = self._gangs.get((namespace, name))
        if gang is not None:
            gang.group = self.sizes.sized(namespace, gang.group)
            gang.note_change()

    async def look_up_sizes(self, pipeline: Pipeline) -> None:
        """For ever: read the sizes of gangs that are in an object."""
        sizes, clock = self.sizes, pipeline.clock
        while True:
            sizes.wanted.clear()
            found = sizes.next(clock.monotonic())
            if isinstance(found, float):
                seconds = found - clock.monotonic()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(sizes.wanted.wait(), None if math.isinf(seconds) else seconds)
            else:
                await self._look_up_size(pipeline, found)
                await asyncio.sleep(EACH_S)

    async def _look_up_size(self, pipeline: Pipeline, wanted: WantedGroup) -> None:
        namespace, group = wanted
        if pipeline.missing() or group.where is None:
            return
        try:
            found = await pipeline.api.get_pod_group(group.where, namespace, group.name)
        except KubeError as error:
            log.info("PodGroup not read", group=f"{namespace}/{group.name}", error=str(error))
            return
        if found.minimum is not None:
            self.set_minimum(namespace, group.name, found.minimum)
            pipeline.cycles.unschedulable.on_room()

    def _note_size(self, gang: Gang) -> None:
        if gang.group.is_sized or gang.group.where is None:
            self.sizes.forget_wanted(gang.namespace, gang.group.name)
        else:
            self.sizes.want(gang.namespace, gang.group)
