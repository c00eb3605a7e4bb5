"""Turns of starving gangs, so that small pods cannot starve a gang for ever.

A complete gang that has waited for longer than `--gang-starvation-timeout` may get a turn: places for those of its
members that fit are held until all of it fits, for at most `TURN_S`. A turn is only for a gang that would fit if
all other pods were gone (`GangOutlook`), and while the account of its namespace pays for what is held (`accounts`). One
gang has the turn at a time. Namespaces take turns, and in each of them the gang that has waited longest since its last.

Which gangs can never fit is judged one after the other, in slices, and said in the refusals of their members. A gang is
judged once it is complete and does not fit, and again after `VALID_S` or when nodes, quotas or its members have
changed. A judgement takes up to half a second of processor time on large clusters, so `JUDGE_PAUSE_S` lie between two
of them; namespaces take turns.

What is held in a turn makes way for pods and gangs of higher priority. Other pods that would fit without it are told
for whom it is held, and until when.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Hashable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime

import structlog

from tessera.core.ledger.holders import Holder
from tessera.core.model.grants import Placement
from tessera.core.model.misfits import Reason, node_misfit
from tessera.core.model.requests import PodRequest
from tessera.core.search.evaluation import work_per_card
from tessera.core.search.gang_trial import GangMember, Placed
from tessera.core.search.gangs import EmptyCluster
from tessera.core.search.selection import CandidateNames
from tessera.scheduler.eviction.preemption_loop import finish_in_slices
from tessera.scheduler.features.gangs.gang import Gang, GangState, Outlook
from tessera.scheduler.features.gangs.holds import GangHolds
from tessera.scheduler.pod_cycle import PodCycles
from tessera.scheduler.queue.unschedulable_pods import MAX_WORK
from tessera.scheduler.settings import Settings

log = structlog.get_logger(__name__)

TURN_S = 600.0
"""that a turn lasts at most"""
REMEMBERED_S = 3600.0
"""for which it is known that a namespace had a turn"""
MAX_TRIED = 512
"""checks of one request on one card, to find out where a pod would fit without what is held: 64 nodes with 8 cards,
those where most is held, and some 6 ms"""


JUDGE_PAUSE_S = 5.0
"""between two judgements of whether a gang can ever fit"""
VALID_S = 300.0
"""for which a judgement is good"""
SLICE_S = 0.005


class GangOutlook:
    """Finds gangs that would not fit an empty cluster either."""

    def __init__(self, cycles: PodCycles) -> None:
        self._cycles = cycles
        self._cluster: EmptyCluster | None = None
        self._not_before = -math.inf
        self._last: dict[str, float] = {}
        """namespace -> when one of its gangs was judged last"""

    def fits(self, gang: Gang) -> bool:
        """Whether it is known that the gang would fit if all other pods were gone."""
        known = self._known(gang)
        return known is not None and not known.shortage

    def shortage(self, gang: Gang) -> str:
        """Why it can never fit; empty if it can, or is not judged."""
        known = self._known(gang)
        return "" if known is None else known.shortage

    def is_wanted(self, gang: Gang) -> bool:
        """Whether the gang is to be judged: it is complete, does not fit, and nothing is known of it."""
        if gang.state is not GangState.WAITING or gang.fitting is None or gang.present < gang.required:
            return False
        known = self._known(gang)
        return known is None or self._now() >= known.until

    async def judge(self, gangs: Sequence[Gang]) -> None:
        """One of these, of the namespace that has waited longest for it, unless the last judgement was a moment ago."""
        now = self._now()
        if not gangs or now < self._not_before:
            return
        self._last = {name: at for name, at in self._last.items() if at > now - REMEMBERED_S}
        gang = min(gangs, key=lambda gang: (self._last.get(gang.namespace, -math.inf), gang.wait.since))
        if self._cluster is None:
            self._cluster = EmptyCluster(self._cycles.ledger)
        self._not_before, self._last[gang.namespace] = math.inf, now
        state, members = self._state(gang), gang.members.pending()
        placed = gang.present - len(members)
        asking = [GangMember(member.request, member.candidates) for member in members[: gang.group.size]]
        required = min(max(gang.required - placed, 0), len(asking))
        try:
            steps = self._cluster.shortage(asking, required=required, work=MAX_WORK)
            shortage = await finish_in_slices(steps, seconds=SLICE_S)
        finally:
            self._not_before = self._now() + JUDGE_PAUSE_S
        gang.outlook = Outlook(shortage, state, self._now() + VALID_S)
        gang.note_change()  # The next plan says so.

    def forget(self) -> None:
        """The vendors have changed."""
        self._cluster = None

    def end_if_idle(self) -> None:
        """A copy of the cluster is kept only while gangs are judged."""
        if self._now() > self._not_before + VALID_S:
            self._cluster = None

    def _known(self, gang: Gang) -> Outlook | None:
        """What was judged of it as it is now."""
        known = gang.outlook
        return known if known is not None and known.state == self._state(gang) else None

    def _state(self, gang: Gang) -> Hashable:
        ledger = self._cycles.ledger
        return ledger.facts_revision, ledger.quotas.revision, gang.present, gang.required

    def _now(self) -> float:
        return self._cycles.clock.monotonic()


class GangTurns:
    """Whose turn it is."""

    def __init__(self, holds: GangHolds, cycles: PodCycles, outlook: GangOutlook, settings: Settings) -> None:
        self._holds = holds
        self._cycles = cycles
        self.outlook = outlook
        self._settings = settings
        self.favoured: Gang | None = None
        """the gang whose turn it is"""
        self._ends = math.inf
        self.misfit = node_misfit(Reason.HELD_FOR_GANG)
        """with which pods are refused because of the turn"""
        self._last: dict[str, float] = {}
        """namespace -> when a turn of one of its gangs began"""
        self._freed: tuple[object, dict[object, tuple[str, ...]]] = None, {}
        """nodes on which pods would fit without what is held, by shape, for one state of the ledger"""

    def has(self, gang: Gang) -> bool:
        return self.favoured is gang

    def ends_of(self, gang: Gang) -> float:
        """When the turn of a gang is over, on the monotonic clock; infinite if it has none."""
        return self._ends if self.favoured is gang else math.inf

    def is_starving(self, gang: Gang) -> bool:
        starving, now = self._settings.gang_starving_s, self._now()
        return (
            bool(starving)
            and gang.state is GangState.WAITING
            and gang.group.is_sized
            and now >= max(gang.wait.since + starving, gang.wait.turned + starving, gang.wait.not_before)
            and gang.present >= gang.required
        )

    def give(self, starving: Sequence[Gang]) -> Gang | None:
        """Give the turn to one of these, if no gang has it."""
        if self.favoured is not None:
            return None
        self._last = {name: at for name, at in self._last.items() if at > self._now() - REMEMBERED_S}
        found = [
            (self._last.get(gang.namespace, -math.inf), max(gang.wait.since, gang.wait.turned), gang.name, gang)
            for gang in starving
            if self.is_starving(gang) and self.outlook.fits(gang) and self._holds.accounts.pays_for(gang.namespace)
        ]
        if not found:
            return None
        gang = self.favoured = min(found, key=lambda item: item[:3])[3]
        gang.note_change()
        self._last[gang.namespace] = now = self._now()
        self._ends = now + TURN_S
        clock = self._cycles.clock
        until = datetime.fromtimestamp(clock.now() + TURN_S, clock.zone)
        self.misfit = node_misfit(Reason.HELD_FOR_GANG, detail=f"held for gang {gang.name} until {until:%H:%M %Z}")
        log.info("what becomes free is held for a starving gang", gang=gang.name)
        return gang

    def hold(self, gang: Gang, places: Sequence[Placed]) -> None:
        """What fits of the gang that has the turn; the turn ends if its account does not pay for it."""
        if not self._holds.hold(gang, places):
            self.stop(gang, "its account does not pay for more")

    def end(self, gang: Gang | None = None) -> None:
        """The gang needs its turn no more; None: no gang has one any more. What is held stays its own."""
        if self.favoured is not None and (gang is None or self.favoured is gang):
            self.favoured.note_turn(self._now())
            self.favoured = None

    def end_overdue(self) -> None:
        if self.favoured is not None and self._now() >= self._ends:
            self.stop(self.favoured, "it did not fit in time")

    def stop(self, gang: Gang, why: str) -> None:
        """End the turn of a gang, if it has one, and release what is held for it."""
        if self.favoured is gang:
            log.info("turn of a starving gang ends", gang=gang.name, why=why)
            self._holds.release(gang)
            self.end(gang)

    # -- other pods

    def held_nodes(self, request: PodRequest, named: CandidateNames) -> tuple[str, ...]:
        """Where a pod that does not fit would fit without what is held: there it is refused with `misfit`."""
        return self._freed_for(request, named) if self._is_holding() else ()

    def makes_way_for(self, request: PodRequest, named: CandidateNames) -> bool:
        """Release what is held in the turn, if a pod of higher priority fits then."""
        gang = self.favoured
        if gang is None or not self.yields_to(request) or not self._freed_for(request, named):
            return False
        self._holds.release(gang)
        return True

    def yields_to(self, request: PodRequest) -> bool:
        """Whether something is held in a turn that must not keep this pod from being placed."""
        gang = self.favoured
        return gang is not None and self._is_holding() and request.priority > gang.priority

    def would_place(self, request: PodRequest, named: CandidateNames) -> bool:
        """Whether a pod of higher priority fits if what is held makes way."""
        return self.yields_to(request) and bool(self._freed_for(request, named))

    @contextmanager
    def stepping_aside(self, gang: Gang) -> Iterator[bool]:
        """Without what is held for a gang of lower priority; afterwards it holds again what is left of that. False:
        nothing is in the way."""
        favoured = self.favoured
        if favoured is None or favoured is gang or not self._is_holding() or favoured.priority >= gang.priority:
            yield False
            return
        held = self._holds.of(favoured)
        for hold in held:
            self._cycles.ledger.release(hold.uid)
        try:
            yield True
        finally:
            self._resume(favoured, held)

    def _resume(self, gang: Gang, held: Sequence[Holder]) -> None:
        for hold in held:
            assert hold.request is not None  # every hold for a gang has one
            placement = self._cycles.ledger.fit(hold.request, hold.node)
            if self.favoured is gang and gang.state is GangState.WAITING and isinstance(placement, Placement):
                self._holds.put_again(gang, hold, placement)
            else:
                self._holds.accounts.close(hold.uid)
        gang.note_change()

    def _is_holding(self) -> bool:
        gang = self.favoured
        return gang is not None and gang.state is GangState.WAITING and self._holds.count(gang) > 0

    def _freed_for(self, request: PodRequest, named: CandidateNames) -> tuple[str, ...]:
        """Candidates on which the pod would fit without what is held."""
        ledger = self._cycles.ledger
        state = ledger.version
        if self._freed[0] != state:
            self._freed = state, {}
        key = request.shape, request.namespace
        nodes = self._freed[1].get(key)
        if nodes is None:
            nodes = self._freed[1][key] = tuple(self._find_freed(request))
        return tuple(node for node in nodes if node in named)

    def _find_freed(self, request: PodRequest) -> Generator[str, None, None]:
        assert self.favoured is not None  # callers have looked
        by_node: dict[str, list[str]] = {}
        for hold in self._holds.of(self.favoured):
            by_node.setdefault(hold.node, []).append(hold.uid)
        ledger, work = self._cycles.ledger, 0
        for node in sorted(by_node, key=lambda name: (-len(by_node[name]), name)):
            if work >= MAX_TRIED:
                return
            work += work_per_card(request) * len(ledger.devices(node))
            if isinstance(ledger.fit_without(request, node, by_node[node]), Placement):
                yield node

    def _now(self) -> float:
        return self._cycles.clock.monotonic()
