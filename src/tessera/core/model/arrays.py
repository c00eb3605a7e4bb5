"""All cards of the cluster as arrays (devices x nodes), so that a request can be checked on every node at once.

A copy of the ledger's numbers, never a second truth: the ledger writes it, `audit` compares it. A node keeps its column
while it is registered. `log` records which columns changed, so that a reader that remembers its position evaluates only
those again. Nodes with MIG cards, cards in several modes or more than `MAX_DEVICES` cards are `odd`: the arrays cannot
judge them.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tessera.core.model import published_cards
from tessera.core.model.devices import MIG, Device, MigProfile
from tessera.core.model.mig import bits
from tessera.core.model.node_info import Card, UseTotals
from tessera.core.model.published_cards import PublishedCards
from tessera.core.model.requests import CardFilter

MAX_DEVICES = 64
"""cards per node; the largest machines sold have 16, a wider array would be mostly padding"""
LOG_LIMIT = 100_000
"""entries; a reader further behind starts afresh"""

UNKNOWN = -1
"""free CPU and memory of a host that is not known"""

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

Instances = tuple[tuple[MigProfile, ...], int]
"""what a card in MIG mode offers: its profiles, and the memory that percentages refer to"""


@dataclass(frozen=True, slots=True)
class CardKind:
    """Cards that every rule about models and modes treats alike; those in MIG mode also offer the same instances."""

    vendor: str
    sample: Device


@dataclass(slots=True)
class NodeColumn:
    """Where a node is, and what is needed to change its column card by card."""

    row: int
    places: dict[str, int]
    """uuid -> device position; empty for nodes that are too wide"""
    totals: UseTotals = field(default_factory=UseTotals)
    charged: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    """uuid -> (slots, cores, memory) in use as the totals have them"""


class NameOrder(NamedTuple):
    """Columns sorted by name, for one epoch: equal nodes are decided by it."""

    epoch: int
    names: tuple[str, ...]
    rows: Ints
    """columns, in the order of `names`"""
    places: Ints
    """by column: its place in that order"""


class Column(NamedTuple):
    """One of the arrays."""

    empty: int = 0
    """what it shows where there is no card, or no node"""
    kind: type[np.generic] = np.int64


NUMBER, FLAG = Column(), Column(kind=np.bool_)
CARD_COLUMNS: Mapping[str, Column] = MappingProxyType(
    dict.fromkeys(("kind", "published"), Column(empty=-1))
    | dict.fromkeys(("slots", "memory", "cores", "used", "used_memory", "used_cores", "pods", "taken"), NUMBER)
    | dict.fromkeys(("sick", "cordoned"), FLAG)
)
"""arrays with a number for each card"""
NODE_COLUMNS: Mapping[str, Column] = MappingProxyType(
    dict.fromkeys(("present", "odd", "unavailable"), FLAG)
    | dict.fromkeys(("free_cpu", "free_memory"), Column(empty=UNKNOWN))
    | {"score": Column(kind=np.float64)}
)
"""arrays with a number for each node"""
COLUMNS: Mapping[str, Column] = MappingProxyType({**CARD_COLUMNS, **NODE_COLUMNS})
USE_COLUMNS = ("used", "used_memory", "used_cores", "pods")
"""what pods use of a card, under the same names in `Card`: each pod adds its part"""


class CardArrays:
    """The arrays and the names of their columns. Only the ledger changes them."""

    kind: Ints
    slots: Ints
    memory: Ints
    cores: Ints
    used: Ints
    used_memory: Ints
    used_cores: Ints
    pods: Ints
    """that hold a part of the card"""
    taken: Ints
    """memory slices that instances hold on a card in MIG mode, one bit each"""
    published: Ints
    """what a card publishes for claims, as far as cards may have it in common; -1 if it is not for claims"""
    sick: Bools
    cordoned: Bools
    present: Bools
    odd: Bools
    unavailable: Bools
    score: npt.NDArray[np.float64]
    free_cpu: Ints
    free_memory: Ints

    def __init__(self, nodes: int = 64, devices: int = 8) -> None:
        self.epoch = 0
        """changes when a column appears, disappears or the arrays grow: columns that a reader keeps are void then"""
        self.kinds: list[CardKind] = []
        self.published_cards = PublishedCards((devices, nodes))
        self.names: list[str] = []
        """by column; empty if the column is free"""
        self.log: list[int] = []
        self.log_start = 0
        self.largest_card: dict[str, int] = {}
        """vendor -> MiB of the largest card ever registered: an upper bound"""
        self.given_back = 0
        """cards that bound pods held until they ended or were deleted, each counted once per pod; it only grows"""
        self.mig_vendors: set[str] = set()
        """vendors that ever registered a card in MIG mode"""
        self._kind_ids: dict[tuple[str, str, str, Instances], int] = {}
        self._columns: dict[str, NodeColumn] = {}
        self._rows: dict[str, int] = {}
        self._free: list[int] = []
        self._places_by_uuid: dict[str, set[str]] = {}
        """uuid -> names of nodes that have it: one, unless two nodes register the same card"""
        self._order: NameOrder | None = None
        self._hosts: dict[str, tuple[int, int]] = {}
        """free CPU and memory by node, with cards or without"""
        self._allocate(devices, nodes)

    def _allocate(self, devices: int, nodes: int) -> None:
        for name, column in CARD_COLUMNS.items():
            setattr(self, name, np.full((devices, nodes), column.empty, dtype=column.kind))
        for name, column in NODE_COLUMNS.items():
            setattr(self, name, np.full(nodes, column.empty, dtype=column.kind))

    # -- reading

    @property
    def now(self) -> int:
        """Position after the newest entry of the log."""
        return self.log_start + len(self.log)

    def changed_since(self, position: int) -> list[int] | None:
        """Columns that changed after `position`, each once; None if the log no longer reaches back."""
        if position < self.log_start:
            return None
        return list(dict.fromkeys(self.log[position - self.log_start :]))

    def row(self, name: str) -> int:
        """The node's column, or -1."""
        return self._rows.get(name, -1)

    def rows(self, names: Collection[str]) -> Ints:
        """The columns of many nodes, -1 where a node has none."""
        return np.fromiter(map(self._rows.get, names, repeat(-1)), dtype=np.int64, count=len(names))

    def places(self, uuids: Iterable[str]) -> tuple[Ints, Ints]:
        """Where these cards are: device positions and columns."""
        found = [
            (self._columns[name].places[uuid], self._columns[name].row)
            for uuid in uuids
            for name in self._places_by_uuid.get(uuid, ())
        ]
        return np.array([d for d, _ in found], dtype=np.int64), np.array([n for _, n in found], dtype=np.int64)

    def places_on(self, name: str) -> Mapping[str, int]:
        """The device position of each card of a node; empty for nodes that are too wide."""
        column = self._columns.get(name)
        return {} if column is None else column.places

    def without(self, amounts: Ints, columns: Ints | slice) -> CardArrays:
        """A copy in which so much less is in use in some columns; `amounts`: one for each of `USE_COLUMNS`."""
        left = copy.copy(self)
        for name, amount in zip(USE_COLUMNS, amounts, strict=True):
            array = getattr(self, name).copy()
            array[:, columns] -= amount
            setattr(left, name, array)
        return left

    def capacity(self, vendor: str) -> tuple[list[int], list[int]]:
        """The memory and the cores of each card of a vendor, in one order."""
        cards = np.isin(self.kind, [number for number, kind in enumerate(self.kinds) if kind.vendor == vendor])
        return self.memory[cards].tolist(), self.cores[cards].tolist()

    def kind_counts(self) -> list[int]:
        """Cards of every kind, by its number."""
        counts: list[int] = np.bincount(self.kind[self.kind >= 0], minlength=len(self.kinds)).tolist()
        return counts

    def selected(self, accepts: CardFilter, columns: Ints | slice) -> Bools:
        """Which cards of some columns are published for claims and accepted."""
        found: Bools = self.filter_codes(accepts, columns) == published_cards.ACCEPTED
        return found

    def filter_codes(self, accepts: CardFilter, columns: Ints | slice) -> npt.NDArray[np.uint8]:
        """What a filter says of the cards of some columns (`published_cards`)."""
        return self.published_cards.codes(accepts, self.published[:, columns], columns)

    @property
    def order(self) -> NameOrder:
        """The columns in the order of their nodes' names."""
        if self._order is None or self._order.epoch != self.epoch:
            rows = sorted(range(len(self.names)), key=self.names.__getitem__)
            places = np.zeros(len(rows), dtype=np.int64)
            places[rows] = np.arange(len(rows))
            names = tuple(map(self.names.__getitem__, rows))
            self._order = NameOrder(self.epoch, names, np.array(rows, dtype=np.int64), places)
        return self._order

    # -- writing

    def put(self, name: str, cards: Sequence[Card], *, unavailable: bool) -> None:
        """Write a node's whole column."""
        wide = len(cards) > MAX_DEVICES
        self._forget_places(name)
        column = self._columns.get(name)
        if column is None:
            column = self._columns[name] = NodeColumn(self._new_row(name), {})
            self._rows[name] = column.row
            self.epoch += 1
        if not wide and len(cards) > len(self.kind):
            self._grow(len(cards), self.kind.shape[1])
        row = column.row
        self._clear(row)
        column.places, column.totals, column.charged = {}, UseTotals(), {}
        for place, card in enumerate(cards):
            device = card.device
            self.largest_card[device.vendor] = max(self.largest_card.get(device.vendor, 0), device.memory)
            column.totals.slots += device.slots
            column.totals.cores += device.cores
            column.totals.memory += device.memory
            if device.mode == MIG:
                self.mig_vendors.add(device.vendor)
            if not wide:
                column.places[device.uuid] = place
                self._places_by_uuid.setdefault(device.uuid, set()).add(name)
                self._put_card(row, place, card)
        self.present[row] = True
        modes = {(card.device.vendor, card.device.mode) for card in cards}
        mixed = len(modes) > len({vendor for vendor, _ in modes})
        self.odd[row] = wide or mixed or any(mode == MIG for _, mode in modes)
        self.unavailable[row] = unavailable
        self.free_cpu[row], self.free_memory[row] = self._hosts.get(name, (UNKNOWN, UNKNOWN))
        self.update(name, cards)

    def update(self, name: str, cards: Iterable[Card]) -> None:
        """Write the use of some cards of a node that is there."""
        column = self._columns[name]
        row, totals = column.row, column.totals
        for card in cards:
            uuid = card.device.uuid
            used, cores, memory = column.charged.get(uuid, (0, 0, 0))
            totals.used += card.used - used
            totals.used_cores += card.used_cores - cores
            totals.used_memory += card.used_memory - memory
            column.charged[uuid] = (card.used, card.used_cores, card.used_memory)
            place = column.places.get(uuid)
            if place is not None:
                self.used[place, row] = card.used
                self.used_memory[place, row] = card.used_memory
                self.used_cores[place, row] = card.used_cores
                self.pods[place, row] = len(card.tenants)
                self.sick[place, row] = not card.device.healthy or bool(card.held)
                if card.device.mode == MIG:
                    self.taken[place, row] = bits(slot.placement for slot in card.mig)
        self.score[row] = totals.score()
        self._record(row)

    def set_host_free(self, name: str, *, cpu: int, memory: int) -> bool:
        """Set what a node has free beside its cards: thousandths of a core and MiB. False: nothing new."""
        if self._hosts.get(name) == (cpu, memory):
            return False
        self._hosts[name] = cpu, memory
        row = self.row(name)
        if row >= 0:
            self.free_cpu[row], self.free_memory[row] = cpu, memory
            self._record(row)
        return True

    def host_free(self, name: str) -> tuple[int, int] | None:
        """Thousandths of a core and MiB; None if it is not known."""
        return self._hosts.get(name)

    def forget_host(self, name: str) -> bool:
        """The node is gone. False: nothing was known."""
        if self._hosts.pop(name, None) is None:
            return False
        row = self.row(name)
        if row >= 0:
            self.free_cpu[row] = self.free_memory[row] = UNKNOWN
            self._record(row)
        return True

    def remove(self, name: str) -> None:
        """Free a node's column."""
        self._forget_places(name)
        column = self._columns.pop(name, None)
        if column is not None:
            del self._rows[name]
            self._clear(column.row)
            self.names[column.row] = ""
            self._free.append(column.row)
            self.epoch += 1

    # -- inside

    def _put_card(self, row: int, place: int, card: Card) -> None:
        device = card.device
        self.kind[place, row] = self._kind_of(device)
        self.published[place, row] = self.published_cards.put(place, row, device)
        self.slots[place, row] = device.slots
        self.memory[place, row] = device.memory
        self.cores[place, row] = device.cores
        self.cordoned[place, row] = card.cordoned

    def _record(self, row: int) -> None:
        self.log.append(row)
        if len(self.log) > LOG_LIMIT:
            drop = len(self.log) // 2
            del self.log[:drop]
            self.log_start += drop

    def _kind_of(self, device: Device) -> int:
        key = (device.vendor, device.model, device.mode, _instances_of(device))
        number = self._kind_ids.get(key)
        if number is None:
            number = self._kind_ids[key] = len(self.kinds)
            self.kinds.append(CardKind(device.vendor, device))
        return number

    def _forget_places(self, name: str) -> None:
        column = self._columns.get(name)
        for uuid in column.places if column else ():
            names = self._places_by_uuid[uuid]
            names.discard(name)
            if not names:
                del self._places_by_uuid[uuid]

    def _new_row(self, name: str) -> int:
        if self._free:
            row = self._free.pop()
            self.names[row] = name
            return row
        if len(self.names) == self.kind.shape[1]:
            self._grow(len(self.kind), 2 * self.kind.shape[1])
        self.names.append(name)
        return len(self.names) - 1

    def _clear(self, row: int) -> None:
        self.published_cards.clear(row)
        for name, column in COLUMNS.items():
            getattr(self, name)[..., row] = column.empty

    def _grow(self, devices: int, nodes: int) -> None:
        """Larger arrays with the same content; powers of two, so that growth is rare."""
        devices = max(len(self.kind), 1 << (devices - 1).bit_length())
        old = {name: getattr(self, name) for name in COLUMNS}
        self._allocate(devices, nodes)
        self.published_cards.resize((devices, nodes))
        for name, array in old.items():
            getattr(self, name)[tuple(slice(0, size) for size in array.shape)] = array
        self.epoch += 1


def _instances_of(device: Device) -> Instances:
    return (device.mig_profiles, device.memory) if device.mode == MIG else ((), 0)
