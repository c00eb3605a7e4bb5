"""Places that a gang is nominated for while their victims still hold them: all members' places, or none.

    WAITING --- nominate: a nomination for every member ---> NOMINATED --- redeem: the victims have left ---> holds
       ^                                                   |
       '--- renounce: a victim stays, a member is gone, the time is over, or this replica stops deciding

Each is a nomination in the ledger (`core.nominations`), which the gang owns like a hold. So no other pod takes what it
is for, and what fits beside it goes in. Nominations live in this process only.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable

from tessera.core.ledger.audit import overcommitments
from tessera.core.ledger.holders import GrantState
from tessera.core.ledger.holdings import PodFacts
from tessera.core.ledger.ledger import facts_of
from tessera.core.model.grants import Placement
from tessera.core.model.requests import PodRequest
from tessera.core.search.preemption import VictimSet
from tessera.core.search.relocation import cards_of
from tessera.core.search.victims import PodTraits
from tessera.scheduler.eviction.nominated_nodes import NominatedNodes
from tessera.scheduler.eviction.victim_book import VictimBook
from tessera.scheduler.features.gangs.gang import Gang, GangNomination, GangState
from tessera.scheduler.features.gangs.holds import MEMBERS_AT_ONCE, GangHolds
from tessera.scheduler.features.gangs.lifecycle import GangLifecycle
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
            self._holds.pay_for_nominations(gang)
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
        self._holds.pay_for_nominations(gang)
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
        self._holds.pay_for_nominations(gang)
        self._holds.release(gang)
        if nominations:
            self._cycles.unschedulable.on_room()
        return nomination

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
