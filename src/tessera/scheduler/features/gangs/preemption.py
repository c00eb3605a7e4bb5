"""Gangs that were refused and may preempt: victims for all members, or none.

    a complete gang does not fit --> search --> all members are nominated --> all victims evicted --> they leave,
              ^                                           |                            and the gang is planned
              '------ renounced: a victim stays, a member is gone, the time is over, or this replica stops deciding

A gang preempts if all required members exist and kube-scheduler has asked for them, none is gated, and all may preempt;
the lowest of their priorities counts. Nothing changes until the whole set is found, and nothing is evicted before all
members are nominated.

Each place is a nomination in the ledger (`core.ledger.nominations`), which the gang owns like a hold. So no other pod
takes what it is for, and what fits beside it goes in. Once the victims have left, all nominations become holds.
Nominations live in this process only.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator

from tessera.core.ledger.audit import overcommitments
from tessera.core.ledger.holders import GrantState, Holder
from tessera.core.ledger.holdings import PodFacts
from tessera.core.ledger.ledger import facts_of
from tessera.core.model.grants import Placement
from tessera.core.model.requests import PodRequest
from tessera.core.search.gang_trial import GangMember
from tessera.core.search.preemption import Demand, VictimSet
from tessera.core.search.relocation import cards_of
from tessera.core.search.victims import PodTraits
from tessera.scheduler.eviction.preemption_loop import AGAIN_S, Nominated, NominatedNodes, Preemptor
from tessera.scheduler.eviction.victim_book import VictimBook
from tessera.scheduler.features.gangs.accounts import cards_taken
from tessera.scheduler.features.gangs.gang import Gang, GangNomination, GangState, MemberState
from tessera.scheduler.features.gangs.holds import MEMBERS_AT_ONCE, GangHolds
from tessera.scheduler.features.gangs.lifecycle import GangLifecycle
from tessera.scheduler.framework import Pipeline
from tessera.scheduler.observer import PreemptionEvent, SchedulerObserver
from tessera.scheduler.pod_cycle import PodCycles


class GangNominations:
    """Holds places for gangs over victims that have not left yet."""

    def __init__(
        self,
        holds: GangHolds,
        cycles: PodCycles,
        book: VictimBook,
        *,
        nominated_nodes: NominatedNodes,
        lifecycle: GangLifecycle,
        observer: SchedulerObserver,
    ) -> None:
        self._holds = holds
        self._cycles = cycles
        self._ledger = cycles.ledger
        self._book = book
        self._lifecycle = lifecycle
        self._observer = observer
        self._nominated_nodes = nominated_nodes

    # -- nominate

    async def nominate(
        self,
        gang: Gang,
        found: VictimSet,
        *,
        changed: frozenset[str],
        priority: int,
        seconds: float,
        searched: float,
    ) -> bool:
        """For all places, in slices; False, and there is no nomination, if victims or places are not what they were.

        `changed`: nodes that are not as the search has seen them. `seconds`: for which places are held beyond the
        victims' grace.
        """
        self._holds.release(gang)
        gone = frozenset((*found.victims, *found.leaving))
        victims, leaving = self._book.traits_of(found.victims), self._book.traits_of(found.leaving)
        grace = max((traits.grace_s for traits in (*victims, *leaving)), default=0.0)
        nomination = gang.nominate(
            frozenset(uid for uid in gone if self._ledger.pod(uid) is not None),
            deadline=self._cycles.clock.monotonic() + grace + seconds,
        )
        nodes: list[str] = []
        for number, (request, placement) in enumerate(found.places, 1):
            known = None if placement.node in changed else placement
            if not self._nominate_one(gang, request, placement.node, known, gone, deadline=nomination.deadline):
                break
            nodes.append(placement.node)
            if number % MEMBERS_AT_ONCE == 0:
                await asyncio.sleep(0)
                if gang.preemption.nomination is not nomination:
                    return False  # It was renounced.
        is_whole = len(nodes) == len(found.places) and self._may_leave(gang, found.victims, priority)
        if is_whole:
            self.pay(gang)
        if not is_whole or not self._holds.accounts.pays_for(gang.namespace):
            self._withdraw(gang)
            return False
        nomination.is_complete = True
        count = len(nomination.victims)
        text = f"waits for {count} pod{'s' if count != 1 else ''} to leave; then all members fit"
        self._lifecycle.wait(gang, text, gang.wait.places)
        self._report(gang, nodes, victims=victims, waits_for=leaving, seconds=searched)
        return True

    def _may_leave(self, gang: Gang, victims: Iterable[str], priority: int) -> bool:
        """Whether all of these may still be evicted, and their groups leave whole."""
        chosen, mine = frozenset(victims), {nomination.uid for nomination in self._holds.nominations(gang)}
        spent: Counter[str] = Counter()
        others = (each for each in self._ledger.nominations.all() if each.facts.uid not in mine)
        promised = {uid for each in others for uid in each.victims}
        for uid in chosen | {uid for uid in promised if (one := self._book.traits(uid)) and not one.is_leaving}:
            spent.update(self._book.budgets(uid))
        for uid in chosen:
            entry, traits = self._ledger.pod(uid), self._book.traits(uid)
            if entry is None or traits is None or entry.state is not GrantState.BOUND or not entry.observed:
                return False
            if traits.protection or traits.priority >= priority:
                return False
            if any(spent[budget] > self._book.disruptions_allowed(budget) for budget in self._book.budgets(uid)):
                return False
            group = self._book.members(traits.group) if traits.group else ()
            if any(not (one in chosen or _is_leaving(self._book.traits(one))) for one in group):
                return False
        return True

    def _nominate_one(
        self,
        gang: Gang,
        request: PodRequest,
        node: str,
        known: Placement | None,
        gone: frozenset[str],
        *,
        deadline: float,
    ) -> bool:
        """`known`: the place that the search has found, if its node is as it was. Another one might take what was meant
        for the next member."""
        ledger = self._ledger
        held = ledger.name_hold(gang.name, request)
        if known is not None and self._is_free(facts_of(held, known), gone):
            placement = known
        else:
            fitting = ledger.fit_without(held, node, gone)
            if not isinstance(fitting, Placement):
                return False
            placement = fitting
        cards = {grant.uuid for grants in placement.grants.values() for each in grants for grant in each}
        here = [entry for entry in ledger.pods_on(node) if entry.facts.uid in gone]
        if not ledger.quotas.limits_anything:
            # What holds other cards may stay or leave: the nomination does not depend on it.
            here = [entry for entry in here if not cards.isdisjoint(entry.holdings)]
        victims = frozenset(entry.facts.uid for entry in here)
        facts = facts_of(held, placement)
        ledger.nominate(facts, victims, deadline=deadline, request=held, meant_for=request.uid)
        return True

    def _is_free(self, facts: PodFacts, gone: frozenset[str]) -> bool:
        """Whether nothing else has a part of the place once these pods have left."""
        with self._ledger.begin() as trial:
            for entry in self._ledger.pods_on(facts.node):
                if entry.facts.uid in gone:
                    trial.remove(entry.facts.uid)
            trial.put(facts, GrantState.RESERVED)
            return not any(overcommitments(self._ledger, facts.node, cards_of(facts)))

    def show(self, gang: Gang) -> None:
        """The victims leave: kube-scheduler is told where the members go, as far as they are still nominated."""
        for nomination in self._holds.nominations(gang):
            member = gang.members.get(str(nomination.meant_for))
            if member is not None and gang.preemption.nomination is not None:
                gang.preemption.nomination.shown[member.request.uid] = member.request
                self._nominated_nodes.set(member.request, nomination.node)

    # -- redeem, renounce

    def has_left(self, gang: Gang) -> bool:
        """Whether all members are nominated, and nothing that they rely on is there any more."""
        nomination = gang.preemption.nomination
        if nomination is None or not nomination.is_complete:
            return False
        return all(self._ledger.pod(uid) is None for uid in nomination.victims)

    async def redeem(self, gang: Gang) -> bool:
        """Turn all nominations into holds, in slices; False if one place is gone, and then all are renounced."""
        nomination = gang.preemption.nomination
        for number, place in enumerate(self._holds.nominations(gang), 1):
            assert place.request is not None  # every hold for a gang has one
            placement = self._ledger.fit(place.request, place.node)
            if not isinstance(placement, Placement):
                self.renounce(gang, f"a place on node {place.node} is gone")
                return False
            self._holds.put_again(gang, place, placement)
            if number % MEMBERS_AT_ONCE == 0:
                await asyncio.sleep(0)
                if gang.preemption.nomination is not nomination:
                    return False  # It was renounced.
        self.pay(gang)
        return True

    def renounce(self, gang: Gang, why: str) -> None:
        """NOMINATED -> WAITING: what it was nominated for is free for other pods."""
        if gang.state is not GangState.NOMINATED:
            return
        nodes = [nomination.node for nomination in self._holds.nominations(gang)]
        for uid, request in self._withdraw(gang).shown.items():
            if uid in gang.members:
                self._nominated_nodes.set(request, None)
        self._lifecycle.wait(gang, f"its places over other pods were given up: {why}", gang.wait.places)
        self._report(gang, nodes, problem=why)

    def end_overdue(self, gang: Gang) -> None:
        for uid in gang.preemption.nomination.victims if gang.preemption.nomination is not None else ():
            self._book.note_stuck(uid)
        self.renounce(gang, "The devices were held for too long: the nomination ends")

    def _withdraw(self, gang: Gang) -> GangNomination:
        """NOMINATED -> WAITING: what has ended."""
        nominations, nomination = self._holds.nominations(gang), gang.renounce()
        for each in nominations:
            self._ledger.withdraw(each.uid)
        self.pay(gang)
        self._holds.release(gang)
        if nominations:
            self._cycles.unschedulable.on_room()
        return nomination

    def pay(self, gang: Gang) -> None:
        """From now on the account pays for what is free of the places. What victims still hold is not the gang's."""
        key, nominations = (gang.namespace, gang.group.name), self._holds.nominations(gang)
        self._holds.accounts.close(key)
        if nominations and gang.preemption.nomination is not None:
            self._holds.accounts.open(
                gang.namespace, key, self._claimed(nominations, gang.preemption.nomination.victims)
            )

    def _claimed(self, nominations: Iterable[Holder], victims: Iterable[str]) -> float:
        found: dict[tuple[str, str], float] = {}
        for place, cards in self._cards(nominations):
            found[place] = found.get(place, 0.0) + cards
        for place, cards in self._cards(entry for uid in victims if (entry := self._ledger.pod(uid)) is not None):
            if place in found:
                found[place] -= cards
        return sum(max(0.0, cards) for cards in found.values())

    def _cards(self, holders: Iterable[Holder]) -> Iterator[tuple[tuple[str, str], float]]:
        """The part of each card that each of these has, by node and uuid."""
        for holder in holders:
            devices = self._ledger.devices(holder.node)
            for uuid, holding in holder.holdings.items():
                yield (holder.node, uuid), cards_taken({uuid: holding}, devices)

    def report_none(self, gang: Gang, seconds: float) -> None:
        """No set of victims makes the gang fit."""
        self._report(gang, (), problem="no victims", seconds=seconds)

    # -- inside

    def _report(
        self,
        gang: Gang,
        nodes: Iterable[str],
        *,
        victims: tuple[PodTraits, ...] = (),
        waits_for: tuple[PodTraits, ...] = (),
        problem: str = "",
        seconds: float = 0.0,
    ) -> None:
        members = tuple(member.request for member in gang.members.pending())
        if members:
            where = ", ".join(sorted(set(nodes)))
            self._observer.on_preemption(
                PreemptionEvent(members[0], where, victims, waits_for, problem, seconds, gang.name, members)
            )


def _is_leaving(traits: PodTraits | None) -> bool:
    return traits is None or traits.is_leaving


class GangPreemptor(Preemptor):
    """One gang, as it is looked at once."""

    def __init__(
        self, gang: Gang, priority: int, holds: GangHolds, nominations: GangNominations, pipeline: Pipeline
    ) -> None:
        mine = gang.preemption
        if mine.refused_at is None:
            mine.refused_at = pipeline.clock.monotonic()
        super().__init__(f"gang {gang.name}", priority, mine.refused_at)
        self._gang = gang
        self._holds = holds
        self._nominations = nominations
        self._pipeline = pipeline
        self._ledger = pipeline.cycles.ledger
        self._state: object = None
        """what the search depends on"""
        self._position = 0
        """of the arrays, when the search began"""

    @property
    def is_due(self) -> bool:
        return self._gang.preemption.is_due

    @is_due.setter
    def is_due(self, value: bool) -> None:
        self._gang.preemption.is_due = value

    def due_at(self) -> float:
        mine = self._gang.preemption
        due = self.refused_at + self._pipeline.settings.preemption_delay_s
        return max(due, mine.search_at, self._gang.wait.not_before)

    def postpone(self, until: float) -> None:
        self._gang.preemption.search_at = until

    def demand(self) -> Demand | None:
        gang, accounts, priority = self._gang, self._holds.accounts, gang_priority(self._gang)
        if priority is None:
            return None
        self.priority = priority
        if not accounts.pays_for(gang.namespace):
            again = self._pipeline.clock.monotonic() + AGAIN_S
            self.postpone(max(again, accounts.pays_again_at(gang.namespace, 0.0)))
            self.is_due = True
            return None
        waiting = self._holds.unplaced(gang)
        demand = Demand(
            [GangMember(member.request, member.candidates) for member in waiting],
            required=min(gang.required, len(waiting)),
            priority=priority,
            free=frozenset(hold.uid for hold in self._holds.of(gang)),
            fitting=gang.wait.places or (),
            domains=self._holds.labels.domains(gang.group.topology),
        )
        self._state = self._ledger.version, self._pipeline.evictor.book.revision, demand
        self._position = self._ledger.arrays.now
        return None if self._state == gang.preemption.searched else demand

    def is_waiting(self, demand: Demand) -> bool:
        return gang_priority(self._gang) == demand.priority

    def on_no_victims(self, seconds: float) -> None:
        self._gang.preemption.searched = self._state
        self._nominations.report_none(self._gang, seconds)

    async def nominate(self, found: VictimSet, seconds: float) -> Nominated | None:
        gang, changed = self._gang, self._changed_nodes()
        entries = [self._ledger.pod(uid) for uid in found.victims]
        if changed is None or any(entry is None or entry.facts.node in changed for entry in entries):
            return None  # Perhaps not all of them have to leave any more.
        is_done = await self._nominations.nominate(
            gang,
            found,
            changed=changed,
            priority=self.priority,
            seconds=self._pipeline.settings.nomination_s,
            searched=seconds,
        )
        return Nominated(gang.preemption.nomination, found.victims) if is_done else None

    def _changed_nodes(self) -> frozenset[str] | None:
        """Nodes that are not as they were when the search began; None if that is not known."""
        arrays = self._ledger.arrays
        rows = arrays.changed_since(self._position)
        return None if rows is None else frozenset(arrays.names[row] for row in rows)

    def is_nominated(self, nomination: object) -> bool:
        return self._gang.state is GangState.NOMINATED and self._gang.preemption.nomination is nomination

    def evicts_as(self) -> tuple[PodRequest, str] | None:
        members = [member.request for member in self._gang.members.pending()]
        if not members:
            return None  # They are gone, and so are the nominations.
        return min(members, key=lambda request: request.preempts_below or 0), self._gang.name

    def on_evicted(self) -> None:
        self._nominations.show(self._gang)

    def renounce(self, problem: str) -> None:
        self._nominations.renounce(self._gang, problem)


def gang_priority(gang: Gang) -> int | None:
    """Pods of lower priority may be evicted for the gang; None: none may now."""
    pending = gang.members.pending()
    if gang.state is not GangState.WAITING or gang.fitting is None or gang.members.count(MemberState.GATED):
        return None
    if not pending or sum(member.is_refused for member in pending) < gang.required:
        return None
    priorities = [member.request.preempts_below for member in pending]
    return None if None in priorities else min(priority for priority in priorities if priority is not None)
