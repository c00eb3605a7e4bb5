"""Whole cards as the goal of a plan: which count as free already, and exact searches that empty others.

A card that no pod uses is taken by a stand-in, so that no pod moves there, unless an exact search says so. Small
clusters are searched as a whole (`small_cluster`), large ones a few cards at a time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from tessera.core.devices import MIG, Device, MigSlot
from tessera.core.grants import Grant
from tessera.core.holders import move_hold_uid
from tessera.core.holdings import PodFacts
from tessera.core.ledger import Ledger, facts_of
from tessera.core.move_planner import Planner
from tessera.core.relocation import pin
from tessera.core.requests import WHOLE_CARD_CORES, Constraint, ContainerRequest, PodRequest, Request
from tessera.core.small_cluster import SmallCluster, is_known

WINDOW = 8
"""cards that are looked at together with one that is to be emptied"""
MAX_WINDOWS = 64
WAYS_WORK = 5
"""to see where on a card of a window a pod could be, as `move_planner` counts"""
TRIES_OF_A_UNIT = 2
"""of `card_packing`"""


def whole_card_requests(ledger: Ledger) -> list[PodRequest]:
    """One for each vendor, and one for each kind of card in MIG mode, whose largest instance is less than all of it."""
    found: dict[str, PodRequest] = {}
    for kind in ledger.arrays.kinds:
        vendor, sample = kind.vendor, kind.sample
        largest = max((each.memory for each in sample.mig_profiles), default=0) if sample.mode == MIG else 0
        name, constraint = f"whole {vendor} card", None
        asked = Request(vendor, count=1, percent=100, cores=WHOLE_CARD_CORES)
        if sample.mode == MIG:
            name = f"{name}, {sample.model} with {largest} MiB"
            asked = replace(asked, percent=0, memory=largest)
            constraint = Constraint(mode=MIG, use_models=(sample.model.lower(),))
        if vendor in ledger.rules and asked.memory_on(1):
            constraints = () if constraint is None else ((vendor, constraint),)
            found[name] = PodRequest("", "", name, (ContainerRequest("main", requests=(asked,)),), constraints)
    return [found[name] for name in sorted(found)]


def _largest_instance(device: Device) -> MigSlot | None:
    """Of a card in MIG mode: with it no other fits on the card."""
    slots = [MigSlot(profile.name, place) for profile in device.mig_profiles for place in profile.placements]
    return max(slots, key=lambda slot: slot.placement.size, default=None) if device.mode == MIG else None


class _SharedCard(NamedTuple):
    node: str
    pods: int
    used: int
    """MiB"""
    free: int
    """MiB"""


class WholeCards:
    """The cards of one plan."""

    def __init__(self, planner: Planner) -> None:
        self._planner = planner
        self._idle: dict[str, str] = {}
        """uuids of cards that no pod uses, and the uids of what stands for it"""

    def take_idle(self) -> None:
        """Put a pod on each card that no pod uses and that would take one: no other pod moves there."""
        for name in self._planner.ledger.node_names():
            self._planner.fitting += self._take_idle_on(name)

    def _take_idle_on(self, name: str, *, most: float = math.inf) -> int:
        """How many of the node it took."""
        view, taken = self._planner.ledger.node(name), 0
        for card in view.cards if view is not None and not view.facts.problem else ():
            device = card.device
            if taken < most and not card.used and not card.cordoned and not card.held and device.healthy:
                whole = Grant(
                    device.uuid,
                    device.vendor,
                    device.memory,
                    device.cores,
                    device.index,
                    slots=device.slots,
                    mig=_largest_instance(device),
                )
                uid = f"idle/{name}/{device.uuid}"
                self._idle[device.uuid] = uid
                self._planner.relocation.put(PodFacts(uid, "", uid, name, grants={device.vendor: ((whole,),)}))
                taken += 1
        return taken

    def pack(self) -> None:
        """Make the moves that empty the most cards, if there are few enough to know them all."""
        small = SmallCluster(self._planner.ledger, self._planner.pods, idle=frozenset(self._idle.values()))
        for name in self._planner.ledger.node_names():
            self._collect(small, name)
            if small.is_too_large:
                return
        self._make(small)

    def pack_windows(self) -> None:
        """Empty single cards, each together with those that have the most room: exact for so few."""
        planner = self._planner
        shared = self._shared_cards(planner.ledger.node_names()) if planner.may_go_on else {}
        by_room = sorted(shared, key=lambda uuid: (-shared[uuid].free, uuid))
        for uuid in sorted(shared, key=lambda uuid: (shared[uuid].pods, shared[uuid].used, uuid))[:MAX_WINDOWS]:
            if uuid not in shared or not planner.may_go_on:
                continue  # An earlier window has emptied it, or moved what could move.
            cards = {each: shared[each].node for each in (uuid, *by_room[:WINDOW])}
            nodes = sorted(set(cards.values()))
            small = SmallCluster(planner.ledger, planner.pods, cards=cards, only=uuid)
            for name in nodes:
                self._collect(small, name)
            is_made = self._make(small)
            planner.spend(WAYS_WORK * small.pods * len(cards) + small.work // TRIES_OF_A_UNIT)
            if is_made:
                now = self._shared_cards(nodes)
                shared = {each: card for each, card in shared.items() if card.node not in nodes} | now
                by_room = sorted(shared, key=lambda uuid: (-shared[uuid].free, uuid))

    def _shared_cards(self, names: Iterable[str]) -> dict[str, _SharedCard]:
        """Cards with pods of which at least one may move."""
        found: dict[str, _SharedCard] = {}
        for name in names:
            view = self._planner.ledger.node(name)
            for card in view.cards if view is not None else ():
                tenants = [tenant.uid for tenant in card.tenants] if is_known(self._planner.ledger, card) else []
                if any(not self._planner.obstacle(uid, direct=False) for uid in tenants) and card.free_memory > 0:
                    found[card.device.uuid] = _SharedCard(name, len(tenants), card.used_memory, card.free_memory)
        return found

    def _collect(self, small: SmallCluster, name: str) -> None:
        rules = self._planner.rules()
        for entry in self._planner.ledger.pods_on(name):
            traits = self._planner.book.traits(entry.facts.uid)
            if traits is None or traits.group or traits.is_leaving:
                continue
            if not rules.obstacle(entry):
                small.add(entry, (traits.priority, -traits.started))

    def _make(self, small: SmallCluster) -> bool:
        """Whether all its moves could be made, and there are some; else nothing has changed."""
        planner, relocation = self._planner, self._planner.relocation
        mark, steps = planner.transaction.mark(), len(planner.steps)
        moves = small.moves(max_moves=planner.max_moves - planner.moves)
        used = self._idle.keys() & {move.uuid for move in moves}
        for uuid in used:
            relocation.remove(self._idle[uuid])
        for uid, node, uuid, slot in moves:
            pod = planner.pods[uid]
            request = pod.request.called(uid=move_hold_uid(uid), namespace="", name=pod.request.name)
            request = pin(request, (uuid,), () if slot is None else ((uuid, slot),))
            placement = relocation.place_on(request, node) if relocation.has_host_room(node, pod.host) else None
            if placement is None:
                planner.settled.difference_update(move.uid for step in planner.steps[steps:] for move in step)
                del planner.steps[steps:]
                planner.transaction.roll_back(mark)
                return False
            relocation.put(facts_of(request, placement), pod.host)
            planner.settled.add(uid)
            planner.steps.append((planner.move(uid),))
        left = len(used)  # As many of the cards that were emptied are no gain.
        for name in sorted({move.source.node for step in planner.steps[steps:] for move in step}):
            left -= self._take_idle_on(name, most=left)
        return bool(moves)
