"""Cards, links and scripted events of a description.

An event in the file happens once, however often the file is read. It waits until its card is listened to, so a script
need not know how fast an agent starts.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from msgspec import UNSET

from tessera.host.cards import MIB, CardEvent, CardFacts, Links, TopologyLevel
from tessera.host.simulated.description import CONNECTIONS, CardGroup, SimulationDescription
from tessera.host.simulated.models import MODELS
from tessera.host.simulated.state import simulated_uuid

_FIRST_BUS = 0x10
DRIVER_VERSION, CUDA_VERSION = "580.65.06", (13, 0)
"""of every simulated card"""


@dataclass(frozen=True, slots=True)
class Due:
    """An event with its time."""

    at: float
    event: CardEvent
    lost: str = ""
    """why its card cannot be read from then on"""


class Script:
    """Pending events. Any thread may add some; one listener takes them."""

    def __init__(self) -> None:
        self._known: Counter[Due] = Counter()
        self._pending: list[Due] = []
        self._news = threading.Event()

    def read(self, entries: Iterable[Due], *, now: float) -> None:
        """Takes all events of the current file; `at` counts from when an entry is first seen."""
        seen = Counter(entries)
        for entry, times in (seen - self._known).items():
            self._pending.extend([replace(entry, at=now + entry.at)] * times)
        self._known |= seen
        self._news.set()

    def next(self, listened: Collection[str], *, now: float) -> Due | None:
        """Removes and returns the earliest event that is due."""
        due = [each for each in self._audible(listened) if each.at <= now]
        if not due:
            return None
        first = min(due, key=lambda each: each.at)
        self._pending.remove(first)
        return first

    def sleep(self, timeout: float, listened: Collection[str], *, now: float) -> None:
        """Waits until there may be a new event, at most `timeout` seconds."""
        times = [each.at - now for each in self._audible(listened)]
        self._news.wait(max(0.0, min([timeout, *times])))
        self._news.clear()

    def wake(self) -> None:
        self._news.set()

    def _audible(self, listened: Collection[str]) -> list[Due]:
        # A copy, because other threads may add events.
        return [each for each in tuple(self._pending) if each.event.uuid is None or each.event.uuid in listened]


@dataclass(frozen=True, slots=True)
class SimulatedCard:
    """A card without faults and in its initial state."""

    facts: CardFacts
    group: CardGroup


def cards_of(description: SimulationDescription, *, node_name: str) -> tuple[SimulatedCard, ...]:
    """In order of index."""
    groups = [(group, within) for group in description.cards for within in range(group.count)]
    return tuple(
        SimulatedCard(_facts(group, within, index=index, node_name=node_name), group)
        for index, (group, within) in enumerate(groups)
    )


def _facts(group: CardGroup, within: int, *, index: int, node_name: str) -> CardFacts:
    model = MODELS[group.model]
    memory = model.memory_mib if group.memory is UNSET else group.memory
    return CardFacts(
        uuid=simulated_uuid("GPU", f"{node_name}/{index}") if group.uuid is UNSET else group.uuid,
        index=index,
        name=model.name if group.name is UNSET else group.name,
        minor=index,
        memory_bytes=memory * MIB or None,
        numa=_numa(group, within),
        bus_id=f"00000000:{_FIRST_BUS + index:02X}:00.0",
        pcie_root=f"pci0000:{_FIRST_BUS + index:02x}",
        driver_version=DRIVER_VERSION,
        cuda_version=CUDA_VERSION,
        compute_capability=model.compute_capability,
        mig_capable=model.mig_capable,
        mig_enabled=group.mig,
        mig_profiles=model.profiles,
    )


def _numa(group: CardGroup, within: int) -> int | None:
    if isinstance(group.numa, tuple):
        return group.numa[within]
    return None if group.numa is UNSET else group.numa


def links_of(description: SimulationDescription, cards: Sequence[SimulatedCard]) -> dict[tuple[str, str], Links]:
    """Returns the links of every ordered pair. By default, cards of one NUMA node share their CPU."""
    facts = [card.facts for card in cards]
    found = {
        (one.uuid, other.uuid): Links(TopologyLevel.NODE if one.numa == other.numa else TopologyLevel.SYSTEM)
        for one in facts
        for other in facts
        if one.uuid != other.uuid
    }
    for group in description.links:
        for position, one in enumerate(group.cards):
            for later, other in enumerate(group.cards):
                if one == other:
                    continue
                pair = (facts[one].uuid, facts[other].uuid)
                pcie = found[pair].connection if group.pcie is UNSET else CONNECTIONS[group.pcie]
                seen = group.nvlinks if position < later or not group.one_way else 0
                switched = group.through == "switch"
                found[pair] = Links(pcie, direct=0 if switched else seen, switched=seen if switched else 0)
    return found


def script_of(description: SimulationDescription, cards: Sequence[SimulatedCard]) -> list[Due]:
    return [
        Due(
            each.at,
            CardEvent(
                uuid=None if each.card is UNSET else cards[each.card].facts.uuid,
                xid=None if each.xid is UNSET else each.xid,
                uncorrectable=each.ecc == "double-bit",
            ),
            each.lost,
        )
        for each in description.events
    ]
