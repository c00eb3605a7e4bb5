"""Which gangs there are, and which pods belong to them.

A gang is known while it has a member. Its size comes from its members, which must agree, or from an object
(`group_sizes`). Gangs are in the order in which they began to wait. No step here grows with their number.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from tessera.scheduler.features.gangs.gang import Gang, GangState, Member, MemberState
from tessera.scheduler.features.gangs.group_sizes import GroupSizes
from tessera.scheduler.pod_requests import PreparedRequest
from tessera.wire.pod_groups import PodGroup


class GangRegistry:
    """All gangs of a cluster. Used from the event loop only."""

    def __init__(self) -> None:
        self.short = asyncio.Event()
        """set when a gang was refused that may preempt other pods"""
        self._gangs: dict[tuple[str, str], Gang] = {}
        self._gang_of: dict[str, Gang] = {}
        """by uid of a member"""
        self._unshown: dict[str, Member] = {}
        """members that only filter knows, by uid"""
        self.sizes = GroupSizes()

    def __iter__(self) -> Iterator[Gang]:
        return iter(list(self._gangs.values()))

    def get(self, namespace: str, name: str) -> Gang | None:
        return self._gangs.get((namespace, name))

    def of(self, uid: str) -> Gang | None:
        return self._gang_of.get(uid)

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

    def begin_to_wait(self, gang: Gang, now: float) -> None:
        """It waits again, behind all others."""
        gang.since = now
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
            gang.add(request.uid, member)
            gang.tried = None
            self._gang_of[request.uid] = gang
            self._unshown[request.uid] = member
        elif len(gang.members) == 1 and gang.state is GangState.WAITING:
            gang.group = self.sizes.sized(request.namespace, group)
            self._note_size(gang)
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
        self._unshown.pop(uid, None)
        gang.released.discard(uid)
        gang.tried = None
        if not gang.members:
            del self._gangs[gang.namespace, gang.group.name]
            self.sizes.forget(gang.namespace, gang.group.name)
        return gang

    def note_short(self, gang: Gang) -> None:
        """All members were asked for, and do not fit together."""
        gang.may_preempt = True
        self.short.set()

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
            gang.tried = None

    def _note_size(self, gang: Gang) -> None:
        if gang.group.is_sized or gang.group.where is None:
            self.sizes.forget_wanted(gang.namespace, gang.group.name)
        else:
            self.sizes.want(gang.namespace, gang.group)
