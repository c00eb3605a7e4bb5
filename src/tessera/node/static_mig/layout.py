"""Which resources the instances that an administrator made become. Pure.

    single   all cards are cut into equal instances: they are counted as `nvidia.com/gpu`, as if they were cards
    mixed    every kind of instance is a resource of its own, e.g. `nvidia.com/mig-1g.18gb`; uncut cards are shared

What does not fit the strategy is not served, and why is said. An instance has the health of its card.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from tessera.node.fleet import CardState, Fleet
from tessera.node.inventory.cards import MigInstance
from tessera.node.kubelet.device_ids import Replica
from tessera.wire.node_config import MigStrategy

SINGLE = "nvidia.com/gpu"
"""whatever whole cards are called"""
MIXED_PREFIX = "nvidia.com/mig-"

_NOTHING: Mapping[str, tuple[Replica, ...]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Layout:
    devices: Mapping[str, tuple[Replica, ...]] = field(default_factory=lambda: _NOTHING)
    """by resource, in order of cards and instances; the id of a device is the instance's uuid. None is empty"""
    problems: tuple[str, ...] = ()
    """why something is not served"""


def layout_of(fleet: Fleet, instances: Iterable[MigInstance], *, strategy: MigStrategy) -> Layout:
    """`instances` of all cards that are in MIG mode."""
    kinds: dict[str, list[Replica]] = {}
    problems: list[str] = []
    placed = _placed(fleet, instances)
    for card, instance in placed:
        kind = _kind(card, instance)
        if instance.mig_uuid is None or instance.divided or kind is None:
            problems.append(
                f"GPU instance {instance.gpu_instance} of card {instance.uuid} is not served: {_why_not(instance)}"
            )
        else:
            kinds.setdefault(kind, []).append(Replica(instance.mig_uuid, card.healthy, card.facts.numa))
    if strategy == "mixed":
        devices = {f"{MIXED_PREFIX}{kind.replace('+', '.')}": tuple(each) for kind, each in sorted(kinds.items())}
        return Layout(devices, tuple(problems))
    problems.extend(_against_single(fleet, kinds, {instance.uuid for _, instance in placed}))
    if problems or not kinds:
        return Layout(problems=tuple(problems))
    (every,) = kinds.values()
    return Layout({SINGLE: tuple(every)})


def _placed(fleet: Fleet, instances: Iterable[MigInstance]) -> list[tuple[CardState, MigInstance]]:
    found = [(card, each) for each in instances if (card := fleet.card(each.uuid)) is not None]
    return sorted(found, key=lambda pair: (pair[0].facts.index, pair[1].gpu_instance))


def _kind(card: CardState, instance: MigInstance) -> str | None:
    offers = card.facts.mig_offers
    return next((offer.name for offer in offers if offer.profile_id == instance.profile_id), None)


def _why_not(instance: MigInstance) -> str:
    if instance.compute_instance is None:
        return "it has no compute instance"
    if instance.divided:
        return "its compute instances are smaller than it"
    return f"the driver does not tell its uuid or its kind (profile {instance.profile_id})"


def _against_single(fleet: Fleet, kinds: Collection[str], used: Collection[str]) -> list[str]:
    """Why the cards, of which those in `used` have instances, are not all one kind of device.

    Nothing is wrong with cards none of which is in MIG mode.
    """
    cut = [card.facts for card in fleet if card.facts.mig_enabled]
    if not cut:
        return []
    problems = []
    if len(cut) < len(fleet.cards):
        problems.append("MIG strategy single: some cards are in MIG mode and some are not")
    if not kinds:
        problems.append("MIG strategy single: no card has an instance")
    if len(kinds) > 1:
        problems.append(f"MIG strategy single: there are instances of different kinds: {', '.join(sorted(kinds))}")
    empty = [facts.uuid for facts in cut if facts.uuid not in used]
    problems.extend(f"MIG strategy single: card {uuid} has no instance" for uuid in empty if kinds)
    return problems
