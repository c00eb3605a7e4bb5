"""Whole cards as the goal of a plan, and which count as free already.

A card that no pod uses is taken by a stand-in, so that no pod moves there.
"""

from __future__ import annotations

from dataclasses import replace

from tessera.core.devices import MIG, Device, MigSlot
from tessera.core.grants import Grant
from tessera.core.holdings import PodFacts
from tessera.core.ledger import Ledger
from tessera.core.move_planner import Planner
from tessera.core.requests import WHOLE_CARD_CORES, Constraint, ContainerRequest, PodRequest, Request


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


def take_idle_cards(planner: Planner) -> None:
    """Put a pod on each card that no pod uses and that would take one: no other pod moves there."""
    views = [view for name in planner.ledger.node_names() if (view := planner.ledger.node(name)) is not None]
    for view in views:
        for card in () if view.facts.problem else view.cards:
            device = card.device
            if not card.used and not card.cordoned and not card.held and device.healthy:
                whole = Grant(
                    device.uuid,
                    device.vendor,
                    device.memory,
                    device.cores,
                    device.index,
                    slots=device.slots,
                    mig=_largest_instance(device),
                )
                uid = f"idle/{view.name}/{device.uuid}"
                planner.relocation.put(PodFacts(uid, "", uid, view.name, grants={device.vendor: ((whole,),)}))
                planner.fitting += 1
