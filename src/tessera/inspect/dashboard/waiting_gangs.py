"""The gangs that wait, as rows of the page: how many members exist, must come together and fit, and why it waits.

A gang has a row for as long as one of its members waits and the gang is not whole; its members have no rows of their
own then. What a source knows of the reason differs: a scheduler has decided, others plan the gang to find out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tessera.core.ledger import Ledger
from tessera.inspect.state import Json
from tessera.scheduler.clock import Clock
from tessera.scheduler.features.gangs.gang import Gang, GangState, Member, MemberState
from tessera.scheduler.features.gangs.holds import HOLD_PREFIX
from tessera.scheduler.features.gangs.turns import GangTurns

HELD = "held"
"""the state of a place that is held for a member of a gang"""


class GangAnswer(NamedTuple):
    """Why a gang waits."""

    why: str
    fitting: int | None = None
    """members that would fit now; None if that is not known"""


NOT_PLANNED = GangAnswer("not judged yet")


def held_gang(uid: str) -> str:
    """The name of the gang that a place of the ledger is held for; empty if a pod has it."""
    if not uid.startswith(HOLD_PREFIX):
        return ""
    _, _, rest = uid.removeprefix(HOLD_PREFIX).partition("/")
    return rest.rpartition("/")[0]


def gang_name(gangs: Iterable[Gang], namespace: str, pod: str) -> str:
    """The gang that has a member of this name; empty if none has."""
    for gang in gangs:
        if gang.namespace == namespace and any(one.request.name == pod for one in gang.members.values()):
            return gang.group.name
    return ""


def waiting(gangs: Iterable[Gang]) -> Iterator[Gang]:
    """Those that have a row."""
    for gang in gangs:
        if gang.state is not GangState.WHOLE and gang.counts[MemberState.PENDING]:
            yield gang


def row_uid(gang: Gang) -> str:
    """No pod's: uids of pods have no slash."""
    return f"{HOLD_PREFIX}{gang.name}"


def plan_ends(gang: Gang, turns: GangTurns) -> float:
    """When what is held for it is released, on the monotonic clock; infinite if that is not known, or nothing is."""
    match gang.state:
        case GangState.PLANNED:
            return min(gang.deadline, gang.ends)
        case GangState.NOMINATED:
            return gang.deadline
        case GangState.COMPLETING if gang.holds:
            return gang.deadline
        case GangState.WAITING if gang.holds:
            return turns.ends_of(gang)
    return math.inf


def wall_time(clock: Clock, moment: float) -> int | None:
    """Unix seconds of a moment on the monotonic clock; None if it never comes."""
    return None if math.isinf(moment) else round(clock.now() + moment - clock.monotonic())


def decided(gang: Gang) -> GangAnswer:
    """What the scheduler that plans it knows."""
    required, bound = gang.required, gang.count(MemberState.BOUND)
    match gang.state:
        case GangState.PLANNED:
            come = f"{len(gang.waiting_binds)} of {required} members have come to be bound"
            return GangAnswer(f"a place is held for every member; {come}", required)
        case GangState.COMPLETING:
            return GangAnswer(f"{bound} of {required} members are bound; the others follow as they come")
    return GangAnswer(gang.reason or NOT_PLANNED.why, gang.fitting)


def gang_document(gang: Gang, ledger: Ledger, answer: GangAnswer, *, until: int | None) -> Json:
    """What its row says beside what a pod's says. `until`: when what is held for it is released."""
    return {
        "size": gang.group.size,
        "required": gang.required,
        "exist": gang.present(),
        "gated": gang.count(MemberState.GATED),
        "bound": gang.count(MemberState.BOUND),
        "fit": answer.fitting,
        "until": until,
        "members": [_member(member, ledger) for member in gang.members.values()],
    }


def _member(member: Member, ledger: Ledger) -> list[str]:
    """Its name, its state and its node, if it has one."""
    entry = ledger.pod(member.request.uid)
    node = entry.facts.node if entry is not None else ""
    state = entry.state.value if entry is not None else _STATES[member.state]
    return [member.request.name, state, node]


_STATES = {
    MemberState.GATED: "gated",
    MemberState.PENDING: "waits",
    MemberState.BOUND: "bound",
    MemberState.DONE: "done",
}
