"""Counts the use of every card from API objects alone. An independent oracle: it uses none of Tessera's rules.

An allocation is read as HAMi's documents describe it (`uuid,type,MiB,cores:` for each card, `;` after each container).
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import Any

from tessera.wire.objects import Container, Node, Pod
from tests.model.machines import GARBLED, XPU_REGISTER
from tests.model.shapes import (
    CORES,
    GPU,
    MEMORY,
    MIB_PER_MLU_UNIT,
    MLU,
    MLU_CORES,
    MLU_MEMORY,
    PERCENT,
    XPU,
    XPU_MEMORY,
)
from tests.support.builders import REGISTER

DEVICES = frozenset({GPU, MLU, XPU})
ALLOCATED = {
    "NVIDIA": "hami.io/vgpu-devices-allocated",
    "MLU": "hami.io/cambricon-mlu-devices-allocated",
    "XPU": "hami.io/xpu-devices-allocated",
}
MIG_ALLOCATIONS = "hami.io/vgpu-mig-allocations"
OVER = ("Succeeded", "Failed")
WHOLE = 100
"""cores"""
READINGS = 1024
"""texts whose reading is kept: most are read after every step"""

Entry = tuple[str, int, int]
"""uuid, MiB, cores"""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a container requests of one vendor, per card."""

    count: int
    memory: int | None
    """MiB; None if it depends on the card"""
    cores: int


@dataclass(frozen=True, slots=True)
class Capacity:
    slots: int
    memory: int
    cores: int
    mig: bool


@dataclass(slots=True)
class Load:
    """What pods use of one card."""

    slots: int = 0
    memory: int = 0
    cores: int = 0
    tenants: set[str] = field(default_factory=set)
    alone: set[str] = field(default_factory=set)
    """tenants that must not share it"""
    places: list[tuple[int, int]] = field(default_factory=list)
    """of MIG instances: first slice and the one after the last"""

    def excess(self, card: Capacity) -> str:
        """What exceeds the card; empty = nothing."""
        for what, used, there in (
            ("slots", self.slots, card.slots),
            ("MiB", self.memory, card.memory),
            ("cores", self.cores, card.cores),
        ):
            # On a MIG card only placements count; sizes of instances are rounded.
            if used > there and (what == "slots" or not card.mig):
                return f"{used} of {there} {what}"
        if self.alone and len(self.tenants) > 1:
            return f"{sorted(self.alone)} share a whole card with {sorted(self.tenants)}"
        ordered = sorted(self.places)
        if any(end > start for (_, end), (start, _) in pairwise(ordered)):
            return f"MIG instances overlap: {ordered}"
        return ""


def asked(container: Container) -> dict[str, Asked]:
    limits = container.resources.limits or {}
    found = {}
    if GPU in limits:
        memory = int(limits[MEMORY]) if MEMORY in limits else None
        found["NVIDIA"] = Asked(int(limits[GPU]), memory, int(limits.get(CORES, 0)))
    if MLU in limits:
        units = int(limits[MLU_MEMORY]) * MIB_PER_MLU_UNIT if MLU_MEMORY in limits else None
        found["MLU"] = Asked(int(limits[MLU]), units, int(limits.get(MLU_CORES, WHOLE)))
    if XPU in limits:
        memory = int(limits[XPU_MEMORY])
        found["XPU"] = Asked(int(limits[XPU]), memory, memory * WHOLE // 98304)
    assert MEMORY not in limits or PERCENT not in limits
    return found


def wants_devices(pod: Pod) -> bool:
    return any(not DEVICES.isdisjoint(container.resources.limits or ()) for container in containers(pod))


def containers(pod: Pod) -> list[Container]:
    return [*(pod.spec.init_containers or ()), *(pod.spec.containers or ())]


def allocation(pod: Pod) -> dict[str, tuple[tuple[Entry, ...], ...]]:
    """By vendor, for each container."""
    return {vendor: _parse(pod.annotations[key]) for vendor, key in ALLOCATED.items() if key in pod.annotations}


@lru_cache(maxsize=READINGS)
def _parse(text: str) -> tuple[tuple[Entry, ...], ...]:
    result: list[tuple[Entry, ...]] = []
    for container in text.split(";")[:-1]:
        cards = [piece.split(",") for piece in container.split(":") if piece]
        result.append(tuple((uuid, int(memory), int(cores)) for uuid, _word, memory, cores in cards))
    return tuple(result)


def places(pod: Pod) -> dict[tuple[int, int], tuple[str, int, int]]:
    """MIG reservations by container and device: uuid, first slice, the one after the last."""
    if MIG_ALLOCATIONS not in pod.annotations:
        return {}
    listed = json.loads(pod.annotations[MIG_ALLOCATIONS])
    return {
        (entry.get("containerIndex", 0), entry.get("deviceIndex", 0)): (
            entry["gpuUUID"],
            entry["placement"].get("start", 0),
            entry["placement"].get("start", 0) + entry["placement"]["size"],
        )
        for entry in listed
    }


def capacities(node: Node) -> dict[str, Capacity]:
    found: dict[str, Capacity] = {}
    for key in (REGISTER, XPU_REGISTER):
        found |= _registered(node.annotations.get(key, GARBLED))
    cores = int(node.capacity.get(MLU_CORES, 0))
    for position in range(cores // 100):
        memory = int(node.capacity[MLU_MEMORY]) * 100 // cores * MIB_PER_MLU_UNIT
        found[f"{node.name}-cambricon-mlu-{position}"] = Capacity(100, memory, 100, False)
    return found


@lru_cache(maxsize=READINGS)
def _registered(text: str) -> dict[str, Capacity]:
    if text == GARBLED:
        return {}
    cards: list[dict[str, Any]] = json.loads(text)
    return {
        card["id"]: Capacity(card["count"], card["devmem"], card["devcore"], card.get("mode") == "mig")
        for card in cards
    }


def is_live(pod: Pod) -> bool:
    return bool(pod.spec.node_name) and pod.status.phase not in OVER


def is_unreadable(pod: Pod) -> bool:
    """Bound by another program, with an allocation that cannot be decoded."""
    return "unreadable" in (pod.metadata.labels or {})


def loads(pods: Iterable[Pod], cards: dict[str, Capacity]) -> dict[str, Load]:
    """What live pods of one node use of its cards."""
    total: defaultdict[str, Load] = defaultdict(Load)
    for pod in pods:
        for uuid, load in _loads_of(pod, cards).items():
            sum_ = total[uuid]
            sum_.slots += load.slots
            sum_.memory += load.memory
            sum_.cores += load.cores
            if load.slots:
                sum_.tenants.add(pod.metadata.uid)
            sum_.places += load.places
            if load.alone:
                sum_.alone.add(pod.metadata.uid)
    return total


def _loads_of(pod: Pod, cards: dict[str, Capacity]) -> dict[str, Load]:
    """The maximum over a pod's life: each init container with the sidecars before it, then all other containers."""
    init = pod.spec.init_containers or []
    ended = {s.name for s in pod.status.init_container_statuses or () if s.state.terminated is not None}
    reserved = places(pod)
    found: dict[str, Load] = {}
    for uuid, moments in _moments(pod, cards).items():
        load = found[uuid] = Load()
        lasting, running, peak = [0, 0, 0], [0, 0, 0], [0, 0, 0]
        for position, use, whole, stays in moments:
            if whole and not (position < len(init) and init[position].name in ended):
                load.alone.add(pod.metadata.uid)
            if stays:
                lasting = [a + b for a, b in zip(lasting, use, strict=True)]
            elif position >= len(init) or init[position].restart_policy == "Always":
                running = [a + b for a, b in zip(running, use, strict=True)]
            elif init[position].name not in ended:
                # All devices of one init container on this card count at the same moment.
                peak = [max(p, r + u) for p, r, u in zip(peak, running, use, strict=True)]
        most = [base + max(p, r) for base, p, r in zip(lasting, peak, running, strict=True)]
        load.slots, load.memory, load.cores = most
        load.places = [(start, end) for card, start, end in reserved.values() if card == uuid]
    return found


def demands(pod: Pod) -> dict[str, tuple[int, int]]:
    """MiB and cores that a pod counts against quotas, by vendor: the maximum over its life, over all cards."""
    reserved = places(pod)
    init = pod.spec.init_containers or []
    ended = {s.name for s in pod.status.init_container_statuses or () if s.state.terminated is not None}
    found = {}
    for vendor, entries in allocation(pod).items():
        lasting, running, peak = [0, 0], [0, 0], [0, 0]
        for position, container in enumerate(entries):
            use = [0, 0]
            for device, (_, memory, cores) in enumerate(container):
                target = lasting if (position, device) in reserved and vendor == "NVIDIA" else use
                target[0] += memory
                target[1] += min(cores, WHOLE)
            if position >= len(init) or init[position].restart_policy == "Always":
                running = [r + u for r, u in zip(running, use, strict=True)]
            elif init[position].name not in ended:
                peak = [max(p, r + u) for p, r, u in zip(peak, running, use, strict=True)]
        memory, cores = (base + max(p, r) for base, p, r in zip(lasting, peak, running, strict=True))
        found[vendor] = (memory, cores)
    return found


Moment = tuple[int, tuple[int, int, int], bool, bool]
"""container, (slots, MiB, cores), whether it is the whole card, whether it lasts for the life of the pod"""


def _moments(pod: Pod, cards: dict[str, Capacity]) -> dict[str, list[Moment]]:
    found: dict[str, list[Moment]] = {}
    for entries in allocation(pod).values():
        for position, container in enumerate(entries):
            for uuid, memory, cores in container:
                card = cards.get(uuid)
                if card is None:
                    continue
                whole = not card.mig and cores >= min(WHOLE, card.cores)
                use = (1, memory, card.cores if whole else cores)
                found.setdefault(uuid, []).append((position, use, whole, card.mig))
    return found
