"""Decides whether slices fit on their cards, beside everything that the node has handed out: to pods and to claims.

One scheduler allocates each card, so what does not fit was allocated by another one, with an outdated view, or for an
object that was deleted while a pod still used it. It is refused before anything of it exists: what containers hold
already is never exceeded. A holder that has ended may still be shown for a moment, so a caller waits briefly for room,
and the API and kubelet are asked before a refusal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations

from tessera.core.model.devices import MIG, Device, MigSlot
from tessera.core.model.grants import NO_USE, Use, effective_use
from tessera.node.dra.prepared_claims import PreparedClaims
from tessera.node.fleet import Fleet
from tessera.node.handover.assignments import Assignment, Holding
from tessera.node.handover.holdings import Holdings
from tessera.node.modes.base import AllocationRefused
from tessera.node.registration.devices import registrable
from tessera.node.settings import AgentSettings
from tessera.node.watched_value import WatchedValue
from tessera.wire.errors import quoted
from tessera.wire.pod_devices import split_legacy_uuid

LEAVING_S = (0.1, 0.2, 0.4, 0.8, 1.6)
"""pauses while a holder that ended is still shown"""
UNITS = ("shares", "MiB", "cores")
"""of a `Use`, in order"""


class Arbiter:
    """Of one node and one configuration. Used from the event loop only."""

    def __init__(
        self, settings: AgentSettings, fleet: WatchedValue[Fleet], *, holdings: Holdings, prepared: PreparedClaims
    ) -> None:
        self._settings = settings
        self._fleet = fleet
        self._holdings = holdings
        self._prepared = prepared
        self._registered: tuple[Fleet, Mapping[str, Device]] = Fleet(), {}
        """the devices of the last fleet, by uuid"""

    async def admit(self, askers: Sequence[Holding], begin: Callable[[], None]) -> None:
        """Calls `begin`, which makes the slices count, if they fit. Raises AllocationRefused.

        `askers`: pods or a claim with what is to be handed out to one of them now; it must fit for each."""
        for pause in (*LEAVING_S, 0.0):
            version = self._holdings.version.value
            problem = self._find_excess(askers, self._holdings.all())
            if problem and await self._holdings.refresh():
                problem = self._find_excess(askers, self._holdings.all())
            if not problem:
                break
            if pause:
                await self._holdings.version.other_than(version, within=pause)
        else:
            shown = await self._holdings.read()
            problem = problem if shown is None else self._find_excess(askers, shown)
        if problem:
            raise AllocationRefused(problem)
        # No await since the check: of two askers for the same room, one gets it.
        begin()

    def _find_excess(self, askers: Iterable[Holding], pods: Sequence[Holding]) -> str:
        claims = self._prepared.holdings()
        if claims is None:
            return "it is unknown which ResourceClaims are prepared here"
        for asker in askers:
            problem = find_excess(asker, self._devices(), pods=pods, claims=claims)
            if problem:
                kind = "ResourceClaim" if _is_claim(asker) else "pod"
                return f"{kind} {asker.key} does not fit: {problem}; another scheduler allocated it"
        return ""

    def _devices(self) -> Mapping[str, Device]:
        fleet = self._fleet.value
        if self._registered[0] is not fleet:
            self._registered = fleet, {each.uuid: each for each in registrable(fleet, self._settings).devices}
        return self._registered[1]


def _is_claim(holding: Holding) -> bool:
    return any(assignment.of_resource_claim for assignment in holding.assignments)


def find_excess(
    asked: Holding, devices: Mapping[str, Device], *, pods: Sequence[Holding], claims: Iterable[Holding]
) -> str:
    """Returns why what is asked for does not fit on its cards; empty if it does.

    `devices` by uuid. What the same pod holds in other containers counts with it; a claim is asked for as a whole."""
    if not asked.assignments:
        # An administrator's access to cards.
        return ""
    others = [each for each in pods if each.key.uid != asked.key.uid]
    unreadable = next((each for each in others if each.problem), None)
    if unreadable is not None:
        return f"it is unknown what pod {unreadable.key} holds ({unreadable.problem})"
    before = replace(asked, assignments=())
    own = next((each for each in pods if each.key.uid == asked.key.uid), before)
    if not _is_claim(asked):
        # What only counts for safety has never been asked for, so it is asked for now.
        positions = {assignment.position for assignment in asked.assignments}
        others_of_pod = [assignment for assignment in own.assignments if assignment.position not in positions]
        assumed = tuple(each for each in others_of_pod if each.position in own.assumed)
        before = replace(before, assignments=tuple(each for each in others_of_pod if each not in assumed))
        asked = replace(asked, assignments=(*asked.assignments, *assumed))
    prepared = [each for each in claims if each.key.uid != asked.key.uid]
    for uuid in sorted({_card(each.uuid) for assignment in asked.assignments for each in assignment.slices}):
        device = devices.get(uuid)
        if device is None:
            return f"card {quoted(uuid)} is not among those that this node offers"
        if device.mode == MIG:
            problem = _places_taken(asked.assignments, uuid, [before, *others, *prepared])
        else:
            problem = _amounts_exceeded(asked, device, before=before, pods=others, claims=prepared)
        if problem:
            return problem
    return ""


def _amounts_exceeded(
    asked: Holding, device: Device, *, before: Holding, pods: Sequence[Holding], claims: Sequence[Holding]
) -> str:
    with_it = replace(asked, assignments=(*before.assignments, *asked.assignments))
    more = _used(with_it, device.uuid).minus(_used(before, device.uuid))
    by_pods = _sum(_used(each, device.uuid) for each in (before, *pods))
    by_claims = _sum(_used(each, device.uuid) for each in claims)
    most = Use(device.slots, device.memory, device.cores)
    for unit, has, pods_hold, claims_hold, asks in zip(UNITS, most, by_pods, by_claims, more, strict=True):
        if asks > 0 and pods_hold + claims_hold + asks > has:
            return (
                f"card {device.uuid} has {has} {unit}, pods without claims hold {pods_hold} of it,"
                f" other claims {claims_hold}, and {asks} more are allocated"
            )
    return ""


def _used(holding: Holding, uuid: str) -> Use:
    """What is taken of a card. Whether 100 cores exclude others is the scheduler's to say."""
    uses = [
        (assignment.position, Use(1, each.memory, each.cores), False)
        for assignment in holding.assignments
        for each in assignment.slices
        if _card(each.uuid) == uuid
    ]
    return effective_use(holding.spans, uses) if uses else NO_USE


def _sum(uses: Iterable[Use]) -> Use:
    total = NO_USE
    for use in uses:
        total = total.plus(use)
    return total


def _places_taken(asked: Sequence[Assignment], uuid: str, holdings: Sequence[Holding]) -> str:
    wanted = [slot for assignment in asked for slot in _slots(assignment, uuid)]
    for one, other in combinations(wanted, 2):
        if one.placement.overlaps(other.placement):
            return f"{one.profile} and {other.profile} that are asked for overlap on card {uuid}"
    for assignment in (assignment for each in holdings for assignment in each.assignments):
        who = f"{'ResourceClaim' if assignment.of_resource_claim else 'pod'} {assignment.pod}"
        if not assignment.mig and any(each.uuid == uuid for each in assignment.slices):
            # The places of an older geometry are known to the hardware only, which is asked before one is created.
            return f"{who} holds card {uuid} without a MIG instance of its own"
        for slot in _slots(assignment, uuid):
            if any(slot.placement.overlaps(each.placement) for each in wanted):
                return f"{who} holds the place of the MIG instance on card {uuid}"
    return ""


def _slots(assignment: Assignment, uuid: str) -> Iterator[MigSlot]:
    return (each.slot for each in assignment.mig if each.uuid == uuid)


def _card(uuid: str) -> str:
    return split_legacy_uuid(uuid)[0]
