"""Which gangs there are, and which pods belong to them.

A gang is known while it has a member. Its size comes from its members, which must agree, or from an object that is
looked up while the size is missing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from tessera.scheduler.gangs.gang import Gang, GangState, Member, MemberState
from tessera.scheduler.pod_requests import PreparedRequest
from tessera.wire.pod_groups import PodGroup

LOOK_UP_SECONDS = 5.0
"""between two look-ups of a size"""


class GangRegistry:
    """All gangs of a cluster. Used from the event loop only."""

    def __init__(self) -> None:
        self.short = asyncio.Event()
        """set when a gang was refused that may preempt other pods"""
        self._gangs: dict[tuple[str, str], Gang] = {}
        self._gang_of: dict[str, Gang] = {}
        """by uid of a member"""
        self._minimums: dict[tuple[str, str], int] = {}
        """of groups whose size is in an object, as far as it was read"""

    def __iter__(self) -> Iterator[Gang]:
        return iter(list(self._gangs.values()))

    def get(self, namespace: str, name: str) -> Gang | None:
        return self._gangs.get((namespace, name))

    def of(self, uid: str) -> Gang | None:
        return self._gang_of.get(uid)

    def members(self) -> list[tuple[str, Member]]:
        """By uid."""
        return [(uid, gang.members[uid]) for uid, gang in self._gang_of.items()]

    def join(self, group: PodGroup, prepared: PreparedRequest, *, now: float) -> tuple[Gang, Member]:
        """The gang of a pod that is not a member of another one, and the pod as its member."""
        request = prepared.request
        key = (request.namespace, group.name)
        gang = self._gangs.get(key)
        if gang is None:
            gang = self._gangs[key] = Gang(request.namespace, self._sized(request.namespace, group), now)
        member = gang.members.get(request.uid)
        if member is None:
            member = Member(request, MemberState.PENDING)
            gang.add(request.uid, member)
            gang.tried = None
            self._gang_of[request.uid] = gang
        elif len(gang.members) == 1 and gang.state is GangState.WAITING:
            gang.group = self._sized(request.namespace, group)
        member.shared_claim = prepared.shared_claim
        if member.request.containers != request.containers:
            # A claim was allocated or released, so the member asks for something else than before.
            member.request, gang.tried = request, None
        return gang, member

    def leave(self, uid: str) -> Gang | None:
        """The gang that the pod was a member of; it is forgotten with its last member."""
        gang = self._gang_of.pop(uid, None)
        if gang is None:
            return None
        gang.remove(uid)
        gang.released.discard(uid)
        gang.tried = None
        if not gang.members:
            key = (gang.namespace, gang.group.name)
            del self._gangs[key]
            self._minimums.pop(key, None)
        return gang

    def note_short(self, gang: Gang) -> None:
        """All members were asked for, and do not fit together."""
        gang.may_preempt = True
        self.short.set()

    # -- sizes

    def difference(self, gang: Gang, group: PodGroup) -> str:
        """What a member says otherwise than its gang; empty if it says the same."""
        mine = self._sized(gang.namespace, group)
        if (mine.size, mine.minimum) == (gang.group.size, gang.group.minimum):
            return ""
        return (
            f"this pod says {mine.minimum} of {mine.size} members, "
            f"the others say {gang.group.minimum} of {gang.group.size}; write the same on all"
        )

    def unsized(self, now: float) -> list[tuple[str, PodGroup]]:
        """Namespaces and groups whose size is to be looked up now."""
        found = []
        for gang in self._gangs.values():
            if not gang.group.is_sized and now >= gang.not_before:
                gang.not_before = now + LOOK_UP_SECONDS
                found.append((gang.namespace, gang.group))
        return found

    def set_minimum(self, namespace: str, name: str, minimum: int) -> None:
        """What the group's object says."""
        self._minimums[namespace, name] = minimum
        gang = self._gangs.get((namespace, name))
        if gang is not None:
            gang.group, gang.not_before = self._sized(namespace, gang.group), 0.0

    def _sized(self, namespace: str, group: PodGroup) -> PodGroup:
        minimum = self._minimums.get((namespace, group.name))
        return group if group.is_sized or minimum is None else group._replace(size=minimum, minimum=minimum)
