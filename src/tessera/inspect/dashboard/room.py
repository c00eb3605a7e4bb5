"""What is still free, in the units in which people ask: how many of the usual shapes fit, and what fits none of them.

Each node's part is added and taken away with its document, so that a change costs one node. The shapes of a model are a
quarter, a half and the whole of a card, groups of cards that NVLinks connect, and all cards of a node; of a card in MIG
mode they are its profiles. They are counted shape by shape: each count says what fits if only that shape comes.

Free memory and cores are *fragmented* where what pods ask for does not fit on the card that has them: weighed with the
slices that pods hold and wait for, each by its part of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from tessera.core.fit.device_rules import Rules
from tessera.core.model.devices import MIG, Device
from tessera.core.model.mig import free_places
from tessera.core.model.node_info import Card
from tessera.core.model.requests import Request
from tessera.inspect.render.usage import short_model
from tessera.inspect.state import Json
from tessera.inspect.usage import card_state
from tessera.wire.journal_values import DeviceAsk

FRACTIONS = ((4, "1/4"), (2, "1/2"))
GROUPS = (2, 4, 8)
"""sizes of groups of linked cards"""
MAX_SLICES = 32
"""of different sizes that say what pods ask for: the most frequent ones"""


class Shape(NamedTuple):
    """Something that people ask for."""

    model: int
    """position in the table of models"""
    kind: str
    size: int = 0


class FreePart(NamedTuple):
    """What is free of an open card."""

    memory: int
    cores: int
    has_slot: bool


class SliceSize(NamedTuple):
    """A part of one card that a pod holds or asks for."""

    memory: int
    cores: int


def count_slices(requests: Iterable[Request | DeviceAsk]) -> Counter[SliceSize]:
    """The slices that are asked for, each one counted once per card."""
    found: Counter[SliceSize] = Counter()
    for one in requests:
        found[SliceSize(one.memory, one.cores)] += one.count
    return found


@dataclass(slots=True)
class Room:
    """The free part of some nodes."""

    shapes: Counter[Shape] = field(default_factory=Counter)
    free: Counter[FreePart] = field(default_factory=Counter)
    held: Counter[SliceSize] = field(default_factory=Counter)

    def add(self, other: Room) -> None:
        self.shapes.update(other.shapes)
        self.free.update(other.free)
        self.held.update(other.held)

    def remove(self, other: Room) -> None:
        for mine, theirs in ((self.shapes, other.shapes), (self.free, other.free), (self.held, other.held)):
            _subtract(mine, theirs)

    def fragmented(self, asked: Counter[SliceSize]) -> SliceSize:
        """Free memory and cores of no use for what pods hold and, on top of that, ask for."""
        demand = (self.held + asked).most_common(MAX_SLICES)
        if not demand or not self.free:
            return SliceSize(0, 0)
        parts = np.array([(*part, number) for part, number in self.free.items()], dtype=np.int64)
        memory, cores, has_slot, number = parts.T
        unfit = np.zeros(len(parts))
        for size, count in demand:
            fits = (memory >= size.memory) & (cores >= size.cores) & (has_slot != 0)
            unfit += np.where(fits, 0, count)
        unfit *= number / sum(count for _, count in demand)
        return SliceSize(round(float(unfit @ memory)), round(float(unfit @ cores)))

    def document(self, models: Mapping[int, str]) -> list[Json]:
        """The shapes of these models, by model, the smallest first."""
        found = [(shape, count) for shape, count in self.shapes.items() if shape.model in models]
        found.sort(key=lambda one: (models[one[0].model], _rank(one[0])))
        return [{"shape": _name(shape, short_model(models[shape.model])), "count": count} for shape, count in found]


def count_room(
    room: Room,
    cards: Sequence[Card],
    position: Callable[[str], int],
    groups: Mapping[str, str],
    rules: Mapping[str, Rules],
) -> None:
    """What is free on one node that takes pods. `groups` are the NVLink groups by uuid, `rules` those of vendors."""
    whole: dict[int, int] = {}
    linked: Counter[tuple[int, str]] = Counter()
    sizes = Counter(groups.values())
    for card in cards:
        device, model, is_open = card.device, position(card.device.model), not card_state(card)
        whole.setdefault(model, 0)
        if device.mode == MIG:
            _count_mig(room, model, card, is_open)
            continue
        vendor = rules.get(device.vendor)
        free_cores = card.free_cores
        if vendor is not None and vendor.core_masks:
            free_cores = (device.cores & ~card.used_cores).bit_count()
        free = FreePart(card.free_memory, free_cores, card.used < device.slots)
        if vendor is not None and vendor.arrays_exact:
            # Other vendors divide their cards by rules of their own.
            _count_parts(room, model, device, free if is_open else FreePart(0, 0, False), card)
        if is_open:
            room.free[free] += 1
        is_whole = is_open and card.used == 0 and card.used_memory == 0 and card.used_cores == 0
        whole[model] += is_whole
        room.shapes[Shape(model, "card")] += is_whole
        if device.uuid in groups:
            linked[model, groups[device.uuid]] += is_whole
    for (model, group), number in linked.items():
        for size in GROUPS:
            if size <= sizes[group]:
                room.shapes[Shape(model, "linked", size)] += number // size
    _count_nodes(room, cards, whole)


def _count_parts(room: Room, model: int, device: Device, free: FreePart, card: Card) -> None:
    slots = device.slots - card.used if free.has_slot else 0
    for parts, _ in FRACTIONS:
        if device.slots < parts:
            continue
        memory, share = max(device.memory // parts, 1), max(device.cores // parts, 1)
        room.shapes[Shape(model, "part", parts)] += max(min(free.memory // memory, free.cores // share, slots), 0)


def _count_mig(room: Room, model: int, card: Card, is_open: bool) -> None:
    for profile in card.device.mig_profiles:
        shape = Shape(model, profile.name)
        taken = [slot.placement for slot in card.mig]
        count = 0
        while is_open and (place := next(free_places(profile, taken), None)) is not None:
            taken.append(place)
            count += 1
        room.shapes[shape] += count


def _count_nodes(room: Room, cards: Sequence[Card], whole: Mapping[int, int]) -> None:
    """A whole node is one whose cards are of one model, not in MIG mode, and all free."""
    if len(whole) == 1 and len(cards) > 1 and all(card.device.mode != MIG for card in cards):
        (model,) = whole
        room.shapes[Shape(model, "node", len(cards))] += whole[model] == len(cards)


def _subtract(mine: Counter[Any], theirs: Counter[Any]) -> None:
    """Shapes stay at 0, so that the page lists them; other things leave."""
    for key, number in theirs.items():
        left = mine[key] - number
        if left == 0 and not isinstance(key, Shape):
            del mine[key]
        else:
            mine[key] = left


def _rank(shape: Shape) -> tuple[int, int, str]:
    kinds = {"part": 1, "card": 2, "linked": 3, "node": 4}
    size = -shape.size if shape.kind == "part" else shape.size
    return kinds.get(shape.kind, 0), size, shape.kind


def _name(shape: Shape, model: str) -> str:
    match shape.kind:
        case "part":
            return f"{dict(FRACTIONS)[shape.size]} {model}"
        case "card":
            return f"whole {model}"
        case "linked":
            return f"{shape.size} linked {model}"
        case "node":
            return f"whole node of {shape.size} {model}"
    return f"{shape.kind} of {model}"
