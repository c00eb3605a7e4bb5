"""A cluster to try on: as it is once everything has left that leaves already, and victims that are chosen one by one.

Nodes are copied from the ledger when they are looked at, so nothing changes there, and a search may pause. A copy may
be older than the ledger by then.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Generator, Iterable

import numpy as np

from tessera.core.holders import Holder
from tessera.core.ledger import Ledger
from tessera.core.victims import PodBook, PodTraits, Unit, make_unit

UNITS_AT_ONCE = 64
"""added up between two pauses"""


class _VictimBook:
    """The book, with the victims that were chosen for the gang so far."""

    def __init__(self, book: PodBook) -> None:
        self._book = book
        self._chosen: set[str] = set()
        self._spent: Counter[str] = Counter()

    @property
    def lowest_priority(self) -> int | None:
        return self._book.lowest_priority

    def traits(self, uid: str) -> PodTraits | None:
        traits = self._book.traits(uid)
        return traits._replace(is_leaving=True) if traits is not None and uid in self._chosen else traits

    def members(self, group: str) -> Collection[str]:
        return self._book.members(group)

    def match_budgets(self, uids: Iterable[str]) -> Generator[None, None, None]:
        return self._book.match_budgets(uids)

    def budgets(self, uid: str) -> tuple[str, ...]:
        return self._book.budgets(uid)

    def disruptions_allowed(self, budget: str) -> int:
        return self._book.disruptions_allowed(budget) - self._spent[budget]

    @property
    def has_spent(self) -> bool:
        return bool(self._spent)

    def choose(self, uids: Iterable[str]) -> None:
        for uid in uids:
            self._chosen.add(uid)
            self._spent.update(self._book.budgets(uid))

    def unchoose(self, uids: Iterable[str]) -> None:
        for uid in uids:
            self._chosen.discard(uid)
            self._spent.subtract(self._book.budgets(uid))


class TrialCluster:
    """The cluster once everything has left that leaves already, and the victims that were chosen."""

    def __init__(self, source: Ledger, book: PodBook, *, free: frozenset[str]) -> None:
        """`free`: uids of what is held for the gang itself."""
        self._source = source
        self.ledger = source.copy_without_nodes()
        self.book = _VictimBook(book)
        self.leaving: dict[str, set[str]] = {}
        """by node"""
        self._gone = free.union(*(nomination.victims for nomination in source.nominations.all()))
        self.victims: dict[str, Holder] = {}

    def look_at(self, name: str) -> None:
        """Copy a node, and those of the groups of its pods: a group leaves as a whole."""
        names = [name]
        while names:
            name = names.pop()
            if name in self.leaving:
                continue
            self.leaving[name] = set()
            self.ledger.copy_node(name, self._source)
            for entry in self._source.pods_on(name):
                uid = entry.facts.uid
                traits = self.book.traits(uid)
                if uid in self._gone or (traits is not None and traits.is_leaving):
                    self.ledger.release(uid)
                    if traits is not None:
                        self.leaving[name].add(uid)
                elif traits is not None and traits.group:
                    held = (self._source.pod(member) for member in self.book.members(traits.group))
                    names += [one.facts.node for one in held if one is not None]

    def evict(self, uids: Iterable[str]) -> set[str]:
        """The nodes where these pods were."""
        nodes = set()
        for uid in uids:
            entry = self.ledger.pod(uid)
            if entry is not None:
                self.victims[uid] = entry
                self.ledger.release(uid)
                self.book.choose([uid])
                nodes.add(entry.facts.node)
        return nodes

    def restore(self, uids: Iterable[str]) -> None:
        for uid in uids:
            entry = self.victims.pop(uid)
            self.book.unchoose([uid])
            self.ledger.put_pod(entry.facts, entry.state, observed=entry.observed)

    def free_memory(self) -> int:
        """In MiB, of all cards that were looked at."""
        arrays = self.ledger.arrays
        return int(np.maximum(arrays.memory - arrays.used_memory, 0).sum())

    def units(self) -> Generator[None, None, list[Unit]]:
        """What was chosen, without pods that are gone since: a search pauses."""
        groups: dict[str, list[tuple[PodTraits, int]]] = {}
        for uid, entry in self.victims.items():
            traits = self.book.traits(uid)
            if traits is None:
                continue
            held = sum(holding.use.memory for holding in entry.holdings.values())
            groups.setdefault(traits.group or f"/{uid}", []).append((traits, held))
            if len(groups) % UNITS_AT_ONCE == 0:
                yield
        found = []
        for pods in groups.values():
            found.append(make_unit(pods, [budget for one, _ in pods for budget in self.book.budgets(one.uid)]))
            if len(found) % UNITS_AT_ONCE == 0:
                yield
        return found
