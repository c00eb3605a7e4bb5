"""The ResourceClaims of pods: as filter reads them, and what bound pods use of them.

A request's containers are the pod's own, then one for each request of its claims that are not allocated yet. What the
first get is the pod's and written with its Binding; what the others get is the claims', each written on its own.

A claim holds its devices under its own uid. It may be deleted, released or edited while a pod runs with them; the pod
has recorded what it uses (`wire.pod_devices`), and holds whatever its claims do not show any more, until it is over. Of
pods that share a part one holds it: those that the API shows come first, then the smallest uid, so a restart gives the
same ledger.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from tessera.core.ledger.holdings import PodFacts
from tessera.core.ledger.ledger import Ledger, facts_of
from tessera.core.model.grants import Grants, Placement
from tessera.core.model.requests import PodRequest
from tessera.vendors.claims.allocations import shortfalls, with_parts
from tessera.vendors.claims.asks import ClaimAsk
from tessera.vendors.drafts import BadPod


@dataclass(frozen=True, slots=True)
class ClaimNotReady(BadPod):
    """A pod that waits for one of its claims: there is nothing to place before that has changed."""

    is_stuck: bool = False
    """its claims are allocated where it cannot run, or are being deleted: those that no other pod uses should be
    released"""


class ClaimUse(NamedTuple):
    """One claim of a pod."""

    key: str
    """namespace and name"""
    uid: str
    fence: str = ""
    """of the claim that was read"""
    ask: ClaimAsk | None = None
    """None if it is allocated"""
    positions: range = range(0)
    """of its requests, as in `PodRequest.containers`"""
    is_own: bool = False
    """it was made for the pod"""


@dataclass(frozen=True, slots=True)
class PodClaims:
    """All claims of a pod."""

    uses: tuple[ClaimUse, ...]
    classic: PodRequest
    """what the pod asks without its claims"""
    variants: tuple[PodRequest, ...]
    """what it asks with them, the preferred alternatives first"""
    node: str = ""
    """where its allocated claims are; empty if none is allocated"""
    pinned_by: str = ""
    """the first of those"""

    @property
    def elsewhere(self) -> ClaimNotReady:
        """Why no other node will do."""
        return ClaimNotReady("", f"{self.pinned_by} is allocated on node {self.node}", is_stuck=True)

    @property
    def shared(self) -> str:
        """Key of a claim that is not allocated, and that other pods may use too; empty if there is none."""
        return next((use.key for use in self.uses if use.ask is not None and not use.is_own), "")

    @property
    def uids(self) -> tuple[str, ...]:
        return tuple(use.uid for use in self.uses)

    def rest(self, request: PodRequest, placement: Placement, handed: Collection[str]) -> PodFacts:
        """What the pod holds of a placement once these claims hold their own parts."""
        gone = {position for use in self.uses if use.uid in handed for position in use.positions}
        last = len(self.classic.containers)
        kept = [position for use in self.uses if use.uid not in handed for position in use.positions]
        length = max(kept) + 1 if kept else last
        grants = {
            vendor: tuple(() if position in gone else own for position, own in enumerate(containers[:length]))
            for vendor, containers in placement.grants.items()
        }
        held = {vendor: containers for vendor, containers in grants.items() if any(containers)}
        shortened = replace(request, containers=request.containers[:length])
        return facts_of(shortened, placement._replace(grants=held))

    def classic_part(self, placement: Placement) -> Placement:
        """What the Binding of the pod writes."""
        count = len(self.classic.containers)
        grants = {vendor: containers[:count] for vendor, containers in placement.grants.items()}
        return placement._replace(grants={vendor: own for vendor, own in grants.items() if any(own)})


Parts = Mapping[str, Grants]
"""what a pod uses of each of its claims, by the claim's uid"""


@dataclass(frozen=True, slots=True)
class _Use:
    facts: PodFacts
    """what the pod holds besides"""
    parts: Parts
    is_shown: bool
    """by the API; otherwise its Binding is about to be written"""


class ClaimUsers:
    """Used from the event loop only. Every pod that is known here has an entry in the ledger."""

    def __init__(self, ledger: Ledger, on_room: Callable[[], None]) -> None:
        self._ledger = ledger
        self._on_room = on_room
        self._uses: dict[str, _Use] = {}
        """by uid of the pod"""
        self._users: dict[str, set[str]] = {}
        """uids of pods by claim"""
        self._shortfalls: dict[str, dict[str, Grants]] = {}
        """by claim, then by pod"""

    def __len__(self) -> int:
        return len(self._uses)

    def bind(self, facts: PodFacts, parts: Parts) -> None:
        """A Binding with these parts is about to be written for a pod that holds `facts`."""
        self._put(_Use(facts, parts, is_shown=False))

    def observe(self, facts: PodFacts, parts: Parts) -> PodFacts:
        """The API shows a bound pod: all that it holds."""
        if parts or facts.uid in self._uses:
            self._put(_Use(facts, parts, is_shown=True))
        return self._complete(facts, parts)

    def drop(self, uid: str) -> None:
        """The pod is gone, has ended, or is certainly not bound."""
        use = self._uses.pop(uid, None)
        for claim in use.parts if use is not None else ():
            self._leave(uid, claim)

    def recount(self, claim: str) -> None:
        """The ledger holds something else for the claim than before, or it has other users."""
        known = self._shortfalls.get(claim, {})
        if not known and claim not in self._users:
            return
        order = sorted(self._users.get(claim, ()), key=lambda uid: (not self._uses[uid].is_shown, uid))
        uses = (self._uses[uid] for uid in order)
        entry = self._ledger.pod(claim)
        # What is about to be written may yet come to nothing.
        shown = entry.facts if entry is not None and entry.observed else None
        found = shortfalls(((use.facts.uid, use.facts.node, use.parts[claim]) for use in uses), shown)
        if found == known:
            return
        self._shortfalls[claim] = found
        if not found:
            del self._shortfalls[claim]
        for uid in sorted(known.keys() | found.keys()):
            if known.get(uid) != found.get(uid):
                self._charge(uid)

    # -- inside

    def _put(self, use: _Use) -> None:
        uid, known = use.facts.uid, self._uses.get(use.facts.uid)
        if known == use:
            return
        self._uses[uid] = use
        for claim in known.parts if known is not None else ():
            if claim not in use.parts:
                self._leave(uid, claim)
        for claim in use.parts:
            self._users.setdefault(claim, set()).add(uid)
            self.recount(claim)

    def _leave(self, uid: str, claim: str) -> None:
        self._users[claim].discard(uid)
        if not self._users[claim]:
            del self._users[claim]
        self.recount(claim)

    def _charge(self, uid: str) -> None:
        use, entry = self._uses.get(uid), self._ledger.pod(uid)
        if use is None or entry is None:
            return  # Its end, or its first charge, is under way.
        facts = self._complete(use.facts, use.parts)
        if facts != entry.facts:
            self._ledger.put_pod(facts, entry.state, observed=entry.observed, deadline=entry.deadline)
            self._on_room()

    def _complete(self, facts: PodFacts, parts: Parts) -> PodFacts:
        missing = [grant for claim in sorted(parts) for grant in self._shortfalls.get(claim, {}).get(facts.uid, ())]
        return with_parts(facts, tuple(missing))
