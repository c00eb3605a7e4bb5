"""Which member takes which hold of its gang.

A plan has a hold for each member. If kube-scheduler does not allow the node of a member's hold, members that ask for
the same exchange their holds, each within the candidates that it had last. Members that have taken theirs stay where
they are: kube-scheduler counts their cpu and memory there.
"""

from __future__ import annotations

from collections.abc import Generator, Hashable, Iterator

from tessera.core.matching import find_path
from tessera.core.requests import PodRequest
from tessera.core.selection import CandidateNames
from tessera.core.steps import finish
from tessera.scheduler.features.gangs.gang import Gang, Hold, MemberState


def take_hold(gang: Gang, request: PodRequest, allowed: CandidateNames) -> Hold | None:
    """Remove a hold for a member from the free ones, on a node that is allowed; None if no exchange makes one free."""
    own = _own(gang, request)
    if own is None or own.placement.node not in allowed:
        moves = finish(_Exchange(gang, request, allowed).find())
        for uid, hold in moves or ():
            hold.member = uid
        own = moves[0][1] if moves else None
    return _remove(gang, own)


def take_any_hold(gang: Gang, request: PodRequest) -> Hold | None:
    """Remove the hold of a member, or another one of its shape, wherever it is.

    A member without a hold may take that of another one: there are fewer holds than members, and not all are required.
    """
    free = gang.holds.get(request.shape, ())
    unmeant = (hold for hold in free if not _is_meant(gang, hold))
    return _remove(gang, _own(gang, request) or next(unmeant, None) or next(iter(free), None))


class _Exchange:
    """For one member."""

    def __init__(self, gang: Gang, request: PodRequest, allowed: CandidateNames) -> None:
        self._gang = gang
        self._asking = request.uid
        self._allowed = allowed
        self._holds = gang.holds.get(request.shape, ())

    def find(self) -> Generator[None, None, list[tuple[str, Hold]] | None]:
        return find_path(self._asking, kind=self._kind, free=self._free, taken=self._taken)

    def _kind(self, uid: str) -> Hashable:
        return "" if uid == self._asking else id(self._gang.members[uid].known_candidates)

    def _free(self, uid: str) -> Generator[None, None, Hold | None]:
        """The hold of the member that asks is free for others."""
        yield from ()
        return next((hold for hold in self._usable(uid) if not self._belongs_to_another(hold)), None)

    def _taken(self, uid: str) -> Iterator[tuple[Hold, str]]:
        return ((hold, hold.member) for hold in self._usable(uid) if self._belongs_to_another(hold))

    def _belongs_to_another(self, hold: Hold) -> bool:
        return hold.member != self._asking and _is_meant(self._gang, hold)

    def _usable(self, uid: str) -> Iterator[Hold]:
        if uid == self._asking:
            return (hold for hold in self._holds if hold.placement.node in self._allowed)
        candidates = self._gang.members[uid].known_candidates
        if candidates is None:
            return iter(self._holds)
        names = frozenset(candidates.names)
        return (hold for hold in self._holds if hold.placement.node in names)


def _own(gang: Gang, request: PodRequest) -> Hold | None:
    return next((hold for hold in gang.holds.get(request.shape, ()) if hold.member == request.uid), None)


def _is_meant(gang: Gang, hold: Hold) -> bool:
    """Whether the hold is meant for a member that waits for its place."""
    member = gang.members.get(hold.member)
    return member is not None and member.state is MemberState.PENDING


def _remove(gang: Gang, hold: Hold | None) -> Hold | None:
    if hold is not None:
        gang.remove_hold(hold)
    return hold
