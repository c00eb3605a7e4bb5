"""The file that describes simulated cards, YAML or JSON (docs/install.md), and the cards, links and events that it
means.

Decoding is strict: all mistakes are reported at once, with file, line and path. Card numbers are indexes over all
groups. If the file changes and is wrong, the error is logged once and the last valid description stays in effect. An
event in the file happens once, however often the file is read. It waits until its card is listened to, so a script need
not know how fast an agent starts.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import structlog
from msgspec import UNSET, UnsetType

from tessera.files.reader import read_file
from tessera.host.cards import MAX_NVLINKS, MIB, CardEvent, CardFacts, Links, TopologyLevel
from tessera.host.simulated.models import MODELS, simulated_uuid
from tessera.wire.config_file import MAX_BYTES, ConfigError, ConfigFile, nearest, unreadable
from tessera.wire.errors import quoted

log = structlog.get_logger(__name__)

MAX_CARDS = 64
"""of one node; the largest machines have sixteen"""

Index = Annotated[int, msgspec.Meta(ge=0, le=MAX_CARDS - 1)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
Uuid = Annotated[str, msgspec.Meta(pattern=r"^GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")]
Pcie = Literal["internal", "single", "multiple", "host-bridge", "node", "system"]

CONNECTIONS: dict[str, TopologyLevel] = {each.name.lower().replace("_", "-"): each for each in TopologyLevel}

_Stamp = tuple[int, int, int]

_FIRST_BUS = 0x10
DRIVER_VERSION, CUDA_VERSION = "580.65.06", (13, 0)
"""of every simulated card"""


class CardGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Equal cards."""

    model: str
    count: Annotated[int, msgspec.Meta(ge=1, le=MAX_CARDS)] = 1
    uuid: Uuid | UnsetType = UNSET
    name: Annotated[str, msgspec.Meta(min_length=1)] | UnsetType = UNSET
    """instead of the model's product name"""
    memory: int | UnsetType = UNSET
    """MiB; 0 = the card does not report it"""
    numa: int | tuple[int, ...] | UnsetType = UNSET
    """of all cards, or of each"""
    mig: bool = False
    """whether MIG mode is on initially"""
    resetless: bool = True
    """whether MIG mode can be switched without a reset"""
    busy: bool = False
    """whether unknown processes run on the cards"""
    problem: str = ""
    """why the cards cannot be read"""
    deaf: str = ""
    """why the cards cannot be listened to"""

    def __post_init__(self) -> None:
        if self.uuid is not UNSET and self.count != 1:
            raise ValueError('"uuid" names one card; write one group for each card that has its own')
        if isinstance(self.numa, tuple) and len(self.numa) != self.count:
            raise ValueError(f'"numa" has {len(self.numa)} numbers for {self.count} cards')
        if self.mig and not MODELS[self.model].mig_capable:
            raise ValueError(f"{self.model} cannot do MIG")


class LinkGroup(msgspec.Struct, frozen=True, kw_only=True):
    """How some cards are linked; a later group overrides an earlier one."""

    cards: tuple[Index, ...]
    nvlinks: Annotated[int, msgspec.Meta(ge=0, le=MAX_NVLINKS)] = 0
    through: Literal["cards", "switch"] = "switch"
    """whether the links end at the other cards or at a switch"""
    pcie: Pcie | UnsetType = UNSET
    one_way: bool = False
    """whether only the cards that come first see the links to those that come later"""

    def __post_init__(self) -> None:
        if len(set(self.cards)) != len(self.cards) or len(self.cards) < 2:
            raise ValueError('"cards" must name at least two different cards')


class ScriptedEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event that the driver reports."""

    card: Index | UnsetType = UNSET
    """unset: the driver does not say which"""
    at: Seconds = 0.0
    """after the event was first read in the file"""
    xid: int | UnsetType = UNSET
    ecc: Literal["single-bit", "double-bit"] | UnsetType = UNSET
    lost: str = ""
    """why the card cannot be read from then on"""

    def __post_init__(self) -> None:
        if (self.xid is UNSET) == (self.ecc is UNSET):
            raise ValueError('an event has either "xid" or "ecc"')
        if self.lost and self.card is UNSET:
            raise ValueError('"lost" needs a "card"')


class ScriptedProblem(msgspec.Struct, frozen=True, kw_only=True):
    """A period in which a card cannot be read."""

    card: Index
    problem: Annotated[str, msgspec.Meta(min_length=1)]
    after: Seconds = 0.0
    """seconds since the simulation began"""
    until: Seconds | UnsetType = UNSET

    def __post_init__(self) -> None:
        if self.until is not UNSET and self.until <= self.after:
            raise ValueError('"until" must be later than "after"')

    def is_at(self, passed: float) -> bool:
        return self.after <= passed and (self.until is UNSET or passed < self.until)


class SimulationDescription(msgspec.Struct, frozen=True, kw_only=True):
    """The cards of one node."""

    cards: tuple[CardGroup, ...]
    links: tuple[LinkGroup, ...] = ()
    events: tuple[ScriptedEvent, ...] = ()
    problems: tuple[ScriptedProblem, ...] = ()
    problem: str = ""
    """why the hardware cannot be queried at all"""
    state: str = ""
    """file for the state of the hardware; relative to this file"""

    def __post_init__(self) -> None:
        count = sum(group.count for group in self.cards)
        if count > MAX_CARDS:
            raise ValueError(f"{count} cards; at most {MAX_CARDS} are simulated")
        beyond = [index for index in self._mentioned() if index >= count]
        if beyond:
            there = (
                f"the cards are 0 to {count - 1}"
                if count > 1
                else "the only card is 0"
                if count
                else "the node has none"
            )
            raise ValueError(f"there is no card {beyond[0]}; {there}")
        given = [group.uuid for group in self.cards if group.uuid is not UNSET]
        if len(set(given)) != len(given):
            raise ValueError("two cards have the same uuid")

    def _mentioned(self) -> Iterable[int]:
        for group in self.links:
            yield from group.cards
        yield from (event.card for event in self.events if event.card is not UNSET)
        yield from (problem.card for problem in self.problems)


def parse_description(text: str, *, file: str) -> SimulationDescription:
    """Reads JSON if the file name ends in `.json`, otherwise YAML. Raises ConfigError."""
    read = ConfigFile(text, file=file, is_json=file.endswith(".json"))
    description: SimulationDescription = read.convert(SimulationDescription, read.value, check=_known_model)
    read.check()
    return description


def load_description(path: Path) -> SimulationDescription:
    """Raises ConfigError."""
    try:
        text = read_file(path, limit=MAX_BYTES).decode()
    except OSError as error:
        raise unreadable(path, error.strerror or str(error)) from error
    except UnicodeError as error:
        raise unreadable(path, "it is not UTF-8 text") from error
    return parse_description(text, file=str(path))


def _known_model(key: str, text: str) -> str | None:
    if key != "model" or text in MODELS:
        return None
    return f"unknown model {quoted(text)}{nearest(text, MODELS, what='models')}"


Source = Callable[[], SimulationDescription]
"""returns the current description; called from several threads"""


class WatchedFile:
    """A `Source` that reads the file again when it changes."""

    def __init__(self, path: Path, first: SimulationDescription) -> None:
        self._path = path
        self._known: tuple[_Stamp | None, SimulationDescription] = (_stamp(path), first)

    def __call__(self) -> SimulationDescription:
        stamp, description = self._known
        now = _stamp(self._path)
        if now == stamp:
            return description
        try:
            description = load_description(self._path)
        except ConfigError as error:
            log.warning("the simulated cards stay as they were", problem=str(error))
        self._known = (now, description)
        return description


def _stamp(path: Path) -> _Stamp | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


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
