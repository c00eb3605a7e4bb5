"""Sums over nodes: what cards have, what is granted and used of them, how long pods waited, and what is still free in
the units in which people ask.

A node has sums of its own, which are added when it is rendered and taken away when it changes: a change costs one node.

The shapes of a model are a quarter, a half and the whole of a card, groups of cards that NVLinks connect, and all cards
of a node; of a card in MIG mode they are its profiles. They are counted shape by shape: each count says what fits if
only that shape comes. Free memory and cores are *fragmented* where what pods ask for does not fit on the card that has
them: weighed with the slices that pods hold and wait for, each by its part of them. Waits are those of the pods that
hold cards now, from creation to binding in whole seconds; `longest` also looks at the pods that still wait.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from tessera.core.fit.device_rules import Rules
from tessera.core.model.devices import MIG, Device
from tessera.core.model.mig import free_places
from tessera.core.model.node_info import Card
from tessera.core.model.requests import PodRequest
from tessera.inspect.render.usage import short_model
from tessera.inspect.state import Json
from tessera.inspect.usage import card_state
from tessera.inspect.utilization import Utilization

FRACTIONS = ((4, "1/4"), (2, "1/2"))
GROUPS = (2, 4, 8)
"""sizes of groups of linked cards"""
MAX_SLICES = 32
"""of different sizes that say what pods ask for: the most frequent ones"""
DIGITS = 2
"""of numbers of cards"""


@dataclass(slots=True)
class Share:
    """Amounts that were granted, of cards, of a namespace or of a model. `cards` counts by the larger share."""

    memory: int = 0
    cores: int = 0
    cards: float = 0.0

    def add(self, other: Share, sign: int = 1) -> None:
        self.memory += sign * other.memory
        self.cores += sign * other.cores
        self.cards += sign * other.cards

    @property
    def document(self) -> Json:
        return {"memory": self.memory, "cores": self.cores, "cards": round(max(self.cards, 0.0), DIGITS)}


class Shape(NamedTuple):
    """Something that people ask for."""

    model: str
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


def count_slices(requests: Iterable[PodRequest]) -> Counter[SliceSize]:
    """The slices that are asked for, each one counted once per card."""
    found: Counter[SliceSize] = Counter()
    for request in requests:
        for container in request.containers:
            for one in container.requests:
                found[SliceSize(one.memory, one.cores)] += one.count
    return found


@dataclass(slots=True)
class Sums:
    """Of one node, or of all."""

    cards: dict[str, Share] = field(default_factory=dict)
    """by model: what its cards have"""
    granted: dict[tuple[str, str], Share] = field(default_factory=dict)
    """by namespace and model"""
    used: Counter[str] = field(default_factory=Counter)
    """by namespace: MiB that its containers use, as far as the monitor knows"""
    measured: int = 0
    """slices with figures of the monitor"""
    idle: Share = field(default_factory=Share)
    """what is granted to containers that use nothing"""
    waits: Counter[int] = field(default_factory=Counter)
    """seconds from creation to binding, of the pods"""
    shapes: Counter[Shape] = field(default_factory=Counter)
    free: Counter[FreePart] = field(default_factory=Counter)
    held: Counter[SliceSize] = field(default_factory=Counter)

    def add(self, other: Sums, sign: int = 1) -> None:
        for mine, theirs in ((self.cards, other.cards), (self.granted, other.granted)):
            _add_shares(mine, theirs, sign)
        for counts, others in (
            (self.used, other.used), (self.waits, other.waits),
            (self.shapes, other.shapes), (self.free, other.free), (self.held, other.held),
        ):  # fmt: skip
            _add_counts(counts, others, sign)
        self.measured += sign * other.measured
        self.idle.add(other.idle, sign)

    # -- of one node

    def count_card(self, model: str, memory: int, cores: int) -> None:
        self.cards.setdefault(model, Share()).add(Share(memory, cores, 1.0))

    def count_slice(self, owner: tuple[str, str], granted: Share, measured: Utilization) -> None:
        """`owner`: the namespace of its pod, and the card's model."""
        self.held[SliceSize(granted.memory, granted.cores)] += 1
        self.granted.setdefault(owner, Share()).add(granted)
        if measured.memory_mib is not None:
            self.measured += 1
            self.used[owner[0]] += measured.memory_mib
        if measured.is_idle:
            self.idle.add(granted)

    # -- of all

    def room(self) -> list[Json]:
        """How many more of the usual shapes fit, by model, the smallest first."""
        present = self._present()
        found = [(shape, count) for shape, count in self.shapes.items() if shape.model in present]
        found.sort(key=lambda one: (one[0].model, _rank(one[0])))
        return [{"shape": _name(shape), "count": count} for shape, count in found]

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

    def document(self, asked: Counter[SliceSize], waiting: Iterable[float] = ()) -> Json:
        """`asked` are the slices that waiting pods ask for, `waiting` the seconds that they have waited."""
        by_model: dict[str, Share] = {}
        by_namespace: dict[str, Share] = {}
        total, granted = Share(), Share()
        for (namespace, model), share in self.granted.items():
            for sums in (by_model.setdefault(model, Share()), by_namespace.setdefault(namespace, Share()), granted):
                sums.add(share)
        for share in self.cards.values():
            total.add(share)
        fragmented = self.fragmented(asked)
        return {
            "cards": round(total.cards),
            "granted": granted.document,
            "total": total.document,
            "used": self._used(self.used.total()),
            "fragmented": {"memory": fragmented.memory, "cores": fragmented.cores},
            "idle": self.idle.document if self.measured else None,
            "waits": self._waits(waiting),
            "byNamespace": [
                {"namespace": name, "granted": share.document, "used": self._used(self.used[name])}
                for name, share in sorted(by_namespace.items(), key=lambda one: (-one[1].cards, one[0]))
                if share.cards > 0
            ],
            "byModel": [
                {
                    "model": model,
                    "cards": round(self.cards[model].cards),
                    "granted": by_model.get(model, Share()).document,
                    "total": self.cards[model].document,
                }
                for model in self._present()
            ],
        }

    def _present(self) -> list[str]:
        """The models that there are cards of now."""
        return sorted(model for model, share in self.cards.items() if share.cards > 0.5)

    def _used(self, memory: int) -> Json | None:
        """The monitor knows the memory of slices; cores and cards are those of the grants."""
        return Share(memory).document if self.measured else None

    def _waits(self, waiting: Iterable[float]) -> Json:
        found = sorted(self.waits.items())
        longest = max([*waiting, *(seconds for seconds, _ in found[-1:])], default=None)
        quantiles = {"p50": _quantile(found, 0.5), "p95": _quantile(found, 0.95)}
        return {"count": self.waits.total(), **quantiles, "longest": longest}


def _quantile(found: list[tuple[int, int]], part: float) -> int | None:
    """The smallest wait that so many of the pods had at most."""
    need, seen = part * sum(number for _, number in found), 0
    for seconds, number in found:
        seen += number
        if seen >= need:
            return seconds
    return None


def _add_shares(mine: dict[Any, Share], theirs: Mapping[Any, Share], sign: int) -> None:
    for key, share in theirs.items():
        mine.setdefault(key, Share()).add(share, sign)


def _add_counts(mine: Counter[Any], theirs: Mapping[Any, int], sign: int) -> None:
    """Shapes stay at 0, so that the page lists them; other things leave."""
    for key, number in theirs.items():
        left = mine[key] + sign * number
        if left == 0 and not isinstance(key, Shape):
            mine.pop(key, None)
        else:
            mine[key] = left


# -- what is free on one node


def count_room(
    sums: Sums,
    cards: Sequence[Card],
    groups: Mapping[str, str],
    rules: Mapping[str, Rules],
) -> None:
    """Of a node that takes pods. `groups` are the NVLink groups by uuid, `rules` those of vendors."""
    whole: dict[str, int] = {}
    linked: Counter[tuple[str, str]] = Counter()
    sizes = Counter(groups.values())
    for card in cards:
        device, model, is_open = card.device, card.device.model, not card_state(card)
        whole.setdefault(model, 0)
        if device.mode == MIG:
            _count_mig(sums, model, card, is_open)
            continue
        vendor = rules.get(device.vendor)
        free_cores = card.free_cores
        if vendor is not None and vendor.core_masks:
            free_cores = (device.cores & ~card.used_cores).bit_count()
        free = FreePart(card.free_memory, free_cores, card.used < device.slots)
        if vendor is not None and vendor.arrays_exact:
            # Other vendors divide their cards by rules of their own.
            _count_parts(sums, model, device, free if is_open else FreePart(0, 0, False), card)
        if is_open:
            sums.free[free] += 1
        is_whole = is_open and card.used == 0 and card.used_memory == 0 and card.used_cores == 0
        whole[model] += is_whole
        sums.shapes[Shape(model, "card")] += is_whole
        if device.uuid in groups:
            linked[model, groups[device.uuid]] += is_whole
    for (model, group), number in linked.items():
        for size in GROUPS:
            if size <= sizes[group]:
                sums.shapes[Shape(model, "linked", size)] += number // size
    # A whole node is one whose cards are of one model, not in MIG mode, and all free.
    if len(whole) == 1 and len(cards) > 1 and all(card.device.mode != MIG for card in cards):
        (model,) = whole
        sums.shapes[Shape(model, "node", len(cards))] += whole[model] == len(cards)


def _count_parts(sums: Sums, model: str, device: Device, free: FreePart, card: Card) -> None:
    slots = device.slots - card.used if free.has_slot else 0
    for parts, _ in FRACTIONS:
        if device.slots < parts:
            continue
        memory, share = max(device.memory // parts, 1), max(device.cores // parts, 1)
        sums.shapes[Shape(model, "part", parts)] += max(min(free.memory // memory, free.cores // share, slots), 0)


def _count_mig(sums: Sums, model: str, card: Card, is_open: bool) -> None:
    for profile in card.device.mig_profiles:
        shape = Shape(model, profile.name)
        taken = [slot.placement for slot in card.mig]
        count = 0
        while is_open and (place := next(free_places(profile, taken), None)) is not None:
            taken.append(place)
            count += 1
        sums.shapes[shape] += count


def _rank(shape: Shape) -> tuple[int, int, str]:
    kinds = {"part": 1, "card": 2, "linked": 3, "node": 4}
    size = -shape.size if shape.kind == "part" else shape.size
    return kinds.get(shape.kind, 0), size, shape.kind


def _name(shape: Shape) -> str:
    model = short_model(shape.model)
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
