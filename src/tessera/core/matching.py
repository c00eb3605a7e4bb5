"""Gives one more member a place by moving others that ask for the same: an augmenting path of a bipartite matching.

Members are on one side, places on the other; a member may use some of the places. If there is no path, no other choice
of places leaves one for this member, and none will while others only take more. Up to `MAX_KINDS` of members with
different places the search is complete.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Iterable
from typing import TypeVar

MAX_KINDS = 64
"""of members that may be moved for one: each costs a look at all places"""

Member = TypeVar("Member", bound=Hashable)
Place = TypeVar("Place")


def find_path(
    member: Member,
    *,
    kind: Callable[[Member], Hashable],
    free: Callable[[Member], Generator[None, None, Place | None]],
    taken: Callable[[Member], Iterable[tuple[Place, Member]]],
) -> Generator[None, None, list[tuple[Member, Place]] | None]:
    """Who goes where, so that the member has a place and no other loses its own; None if there is no such path.

    `free`: a free place that a member may use, which it takes; `taken`: those that it may use and others have, with
    these. Members of one `kind` may use the same places. Pauses after each member for which no place is free.
    """
    reached = {kind(member)}
    movers: list[tuple[Member, list[tuple[Member, Place]]]] = [(member, [])]
    for mover, before in movers:
        place = yield from free(mover)
        if place is not None:
            return [*before, (mover, place)]
        yield
        for others_place, other in taken(mover):
            if len(reached) < MAX_KINDS and kind(other) not in reached:
                reached.add(kind(other))
                movers.append((other, [*before, (mover, others_place)]))
    return None
