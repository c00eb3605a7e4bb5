"""Who has a place in the ledger, and the places that are kept for a pod to come.

    (absent) --- nominate: over victims ---> NOMINATED --- reserve: they have left ---.
       |  ^                                   |                                       |
       |  '--- withdraw, overdue -------------'                                       v
       |------------------------------- reserve ---------------------------------> RESERVED
       |  ^                                                                        |  ^  |
       |  '--- give_up, overdue: the owner ends it --------------------------------'  |  | bind
       |                                                                      unbind  |  v
       '--- observe: the API shows it, from any state ---------------------------> BOUND

A *hold* is kept for a pod that is not placed yet. It has a uid that no pod has, made here and read here only: other
modules ask a holder for its kind and its owner. `meant_for` says who may take it, a pod or any pod of a workload. What
is overdue is found in one place (`Ledger.overdue`) and ended by the owner, which may have more to end with it.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, field
from enum import Enum
from operator import attrgetter
from typing import TypeVar

from tessera.core.ledger.holdings import Holding, PodFacts
from tessera.core.model.grants import Placement
from tessera.core.model.requests import PodRequest, Role


class HolderKind(Enum):
    """What has a place. The values of holds begin their uids, in old journals too: no pod's uid has a slash."""

    POD = "pod"
    CLAIM = "claim"
    """an allocated ResourceClaim, under its own uid"""
    GANG = "gang"
    """a hold for a member of a gang; its owner is the gang"""
    MOVE = "move"
    """a hold for the successor of a pod that is moved, or for the pod that gains; its owner is the pod that is moved"""


class GrantState(Enum):
    """See the drawing."""

    NOMINATED = "nominated"
    RESERVED = "reserved"
    BOUND = "bound"


class HolderTransition(Enum):
    """What a decision does to a holder: the states in which it is legal, and the state it leads to; None is absent.
    What the API shows is legal in every state, and then no decision is."""

    NOMINATE = ({None, GrantState.NOMINATED}, GrantState.NOMINATED)
    RESERVE = ({None, GrantState.NOMINATED, GrantState.RESERVED}, GrantState.RESERVED)
    BIND = ({GrantState.RESERVED, GrantState.BOUND}, GrantState.BOUND)
    UNBIND = ({GrantState.BOUND}, GrantState.RESERVED)
    GIVE_UP = ({GrantState.RESERVED, GrantState.BOUND}, None)

    def __init__(self, sources: set[GrantState | None], target: GrantState | None) -> None:
        self.sources = frozenset(sources)
        self.target = target


class IllegalHolderTransition(Exception):
    """A fault of this program: a place was about to be given twice, or lost."""


@dataclass(slots=True, eq=False)
class Holder:
    """One place in the ledger. Changed by the ledger only."""

    facts: PodFacts
    state: GrantState
    deadline: float = math.inf
    """of a reservation or a nomination"""
    observed: bool = False
    """the API shows it: only the API can take it back"""
    holdings: dict[str, Holding] = field(default_factory=dict)
    """its part of the node's cards, by uuid, so that exactly this can be taken back"""
    victims: frozenset[str] = frozenset()
    """of a nomination: uids of pods that are about to leave, those of earlier nominations that it relies on included;
    those that have left stay in it"""
    request: PodRequest | None = None
    """of a hold for a gang: what its member asks for, under the uid of the hold"""
    meant_for: Hashable | None = None
    """of a hold: the uid of a pod, or a workload; None while it is only tried"""

    @property
    def uid(self) -> str:
        return self.facts.uid

    @property
    def node(self) -> str:
        return self.facts.node

    @property
    def kind(self) -> HolderKind:
        return kind_of(self.facts)

    @property
    def placement(self) -> Placement:
        return Placement(self.facts.node, self.facts.grants)


class HoldBook:
    """The holds of one ledger, by their owner and by who may take them. Changed by the ledger only."""

    def __init__(self) -> None:
        self._by_owner: dict[tuple[HolderKind, str, GrantState], dict[str, Holder]] = {}
        self._by_taker: dict[tuple[HolderKind, Hashable], dict[str, Holder]] = {}
        self._moves: dict[str, Holder] = {}
        self.has_moves = False
        """whether anything is held because pods are moved"""

    def of_moves(self) -> list[Holder]:
        """All that is held because pods are moved, sorted by uid."""
        return [self._moves[uid] for uid in sorted(self._moves)]

    def of_gang(self, name: str, state: GrantState = GrantState.RESERVED) -> list[Holder]:
        """In the order in which they were made."""
        return list(self._by_owner.get((HolderKind.GANG, name, state), {}).values())

    def count_of_gang(self, name: str, state: GrantState = GrantState.RESERVED) -> int:
        return len(self._by_owner.get((HolderKind.GANG, name, state), ()))

    def meant_for(self, kind: HolderKind, *takers: Hashable) -> list[Holder]:
        """Holds of one kind that one of these may take, sorted by uid."""
        found = [holder for taker in takers for holder in self._by_taker.get((kind, taker), {}).values()]
        return sorted(found, key=attrgetter("facts.uid"))

    def add(self, holder: Holder) -> None:
        kind, uid = kind_of(holder.facts), holder.facts.uid
        if kind is HolderKind.MOVE:
            self._moves[uid], self.has_moves = holder, True
        else:
            self._by_owner.setdefault((kind, owner_of(uid), holder.state), {})[uid] = holder
        self._by_taker.setdefault((kind, holder.meant_for), {})[uid] = holder

    def remove(self, holder: Holder) -> None:
        """Copies of a ledger have its holders, but not its book."""
        kind, uid = kind_of(holder.facts), holder.facts.uid
        if uid not in self._by_taker.get((kind, holder.meant_for), ()):
            return
        if kind is HolderKind.MOVE:
            del self._moves[uid]
            self.has_moves = bool(self._moves)
        else:
            _drop(self._by_owner, (kind, owner_of(uid), holder.state), uid)
        _drop(self._by_taker, (kind, holder.meant_for), uid)


_Key = TypeVar("_Key", bound=Hashable)


def _drop(index: dict[_Key, dict[str, Holder]], key: _Key, uid: str) -> None:
    del index[key][uid]
    if not index[key]:
        del index[key]


# -- uids of holds


def owner_uid(gang: str) -> str:
    """For all holds of a gang (namespace and name) together; no pod has it."""
    return f"{HolderKind.GANG.value}/{gang}"


def gang_hold_uid(gang: str, number: int) -> str:
    return f"{HolderKind.GANG.value}/{gang}/{number}"


def move_hold_uid(pod: str) -> str:
    """For what is held because this pod is moved."""
    return f"{HolderKind.MOVE.value}/{pod}"


def trial_hold_uid(number: int) -> str:
    """For a place that is only tried, and is never kept under this name."""
    return f"gang-trial/{number}"


def kind_of(facts: PodFacts) -> HolderKind:
    prefix, slash, _ = facts.uid.partition("/")
    if slash:
        return _HOLDS.get(prefix, HolderKind.POD)
    is_claim = bool(facts.spans) and all(span.role is Role.CLAIM for span in facts.spans)
    return HolderKind.CLAIM if is_claim else HolderKind.POD


def owner_of(uid: str) -> str:
    """The gang (namespace and name) or the uid of the moved pod that a hold belongs to; a pod's own uid otherwise."""
    prefix, _, rest = uid.partition("/")
    kind = _HOLDS.get(prefix)
    return uid if kind is None else rest if kind is HolderKind.MOVE else rest.rpartition("/")[0]


def held_gang(facts: PodFacts) -> str:
    """The name of the gang that a place is held for; empty if it is held for none."""
    return owner_of(facts.uid).partition("/")[2] if kind_of(facts) is HolderKind.GANG else ""


_HOLDS = {kind.value: kind for kind in (HolderKind.GANG, HolderKind.MOVE)}
