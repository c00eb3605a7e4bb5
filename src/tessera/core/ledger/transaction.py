"""Changes to a ledger that are tried, and then kept or taken back.

While a transaction is open, only it changes the ledger, and the ledger's listener hears nothing. `keep` tells the
listener what each touched pod, nomination and host has become; `discard` leaves everything as it was. `roll_back`
returns to a `mark`. A transaction may be begun inside another one: what it keeps is then kept or taken back with the
outer one. The log of the arrays and the revision of quotas only grow, so no cache takes what was tried for a later
state; the ledger's `version` is the former one again after `discard`.

A transaction is never left open across a pause: whatever decides meanwhile could neither read nor change the ledger.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from tessera.core.ledger.holders import GrantState, Holder
from tessera.core.model.requests import HostRequest

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from tessera.core.ledger.holdings import PodFacts
    from tessera.core.ledger.ledger import Ledger


class TransactionError(RuntimeError):
    """The ledger is changed past the transaction that is open, or a transaction is used that is not the innermost."""


class HolderBefore(NamedTuple):
    """What a holder was before a change; None if it was absent."""

    uid: str
    holder: Holder | None


class HostBefore(NamedTuple):
    """What a node had free beside its cards before a change; None if that was not known."""

    name: str
    free: tuple[int, int] | None


Change = HolderBefore | HostBefore


class Transaction:
    """Made by `Ledger.begin`. Leaving its `with` block discards what was not kept."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self._changes: list[Change] = []
        self._version = ledger.version

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.is_open:
            self.discard()

    @property
    def is_open(self) -> bool:
        return self in self.ledger.transactions

    # -- changes

    def put(self, facts: PodFacts, state: GrantState, *, observed: bool = False, deadline: float = math.inf) -> None:
        """Set what a pod holds, whatever it held or was nominated for before."""
        self.remove(facts.uid)
        self.ledger._add(Holder(facts, state, deadline, observed))

    def remove(self, uid: str) -> Holder | None:
        """Take away what a pod holds or claims; what that was."""
        self._check()
        self._changes.append(HolderBefore(uid, self.ledger.holder(uid)))
        return self.ledger._remove(uid)

    def nominate(self, facts: PodFacts, victims: frozenset[str], *, deadline: float = math.inf) -> None:
        """Claim a placement over `victims` for a pod that holds nothing."""
        assert self.ledger.pod(facts.uid) is None  # whatever holds a placement needs no claim
        self.remove(facts.uid)
        self.ledger._add(Holder(facts, GrantState.NOMINATED, deadline, victims=victims))

    def withdraw(self, uid: str) -> None:
        """End a pod's nomination."""
        if uid in self.ledger.nominations:
            self.remove(uid)

    def observe_host(self, name: str, free: HostRequest) -> None:
        self._check()
        arrays = self.ledger.arrays
        self._changes.append(HostBefore(name, arrays.host_free(name)))
        arrays.set_host_free(name, cpu=free.cpu, memory=free.memory)

    def _check(self) -> None:
        if self.ledger.transactions[-1:] != [self]:
            raise TransactionError("this transaction has ended, or another one was begun inside it")

    # -- the end

    def mark(self) -> int:
        """What `roll_back` returns to."""
        return len(self._changes)

    def roll_back(self, mark: int) -> None:
        """Take back all changes since the mark, the last one first."""
        self._check()
        while len(self._changes) > mark:
            self._restore(self._changes.pop())

    def discard(self) -> None:
        """Take back all changes, and end."""
        self.roll_back(0)
        self.ledger.transactions.pop()
        self.ledger.note_restored(self._version)

    def keep(self) -> None:
        """Keep all changes, and end. The listener is told each pod, nomination and host once, as it is now."""
        self._check()
        ledger, listener = self.ledger, self.ledger.listener
        ledger.transactions.pop()
        if ledger.transactions:
            ledger.transactions[-1]._changes += self._changes
            return
        first: dict[tuple[type[Change], str], Change] = {}
        for before in self._changes:
            first.setdefault((type(before), before[0]), before)
        for before in first.values():
            if isinstance(before, HostBefore):
                free = ledger.arrays.host_free(before.name)
                if listener is not None and free is not None and free != before.free:
                    listener.on_host(before.name, HostRequest(*free))
            else:
                ledger._tell_change(before.holder, ledger.holder(before.uid))

    def _restore(self, before: Change) -> None:
        ledger = self.ledger
        if isinstance(before, HostBefore):
            if before.free is None:
                ledger.arrays.forget_host(before.name)
            else:
                ledger.arrays.set_host_free(before.name, cpu=before.free[0], memory=before.free[1])
            return
        ledger._remove(before.uid)
        if before.holder is not None:
            ledger._add(before.holder)
