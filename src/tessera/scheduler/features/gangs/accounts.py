"""What gangs of a namespace may hold without being bound: an account of card-seconds per namespace.

A full account pays for all cards of the cluster for `FULL_S`, and is refilled with `--gang-hold-share` of all
cards. Whatever is held for a gang counts for as long as it is held, unless it ends in a bind. So in any time the gangs
of a namespace hold at most a full account and what was refilled meanwhile, in however many gangs, under whatever names.
This module ends nothing: `lifecycle` and `preemption` release what an account does not pay for any longer.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from tessera.core.ledger.holdings import Holding
from tessera.core.model.devices import Device

FULL_S = 300.0
"""for which a full account pays for all cards of the cluster: as much as a turn of ten minutes costs in which cards
become free one by one"""
RESERVE_S = 20.0
"""for which an account must still pay for everything that is held: the next look follows after 15 s"""


class _Span(NamedTuple):
    """Something that is held, since when."""

    namespace: str
    cards: float
    since: float


@dataclass(slots=True, eq=False)
class _Account:
    left: float
    """card-seconds, at `at`, without what is held now"""
    at: float
    cards: float = 0.0
    """held now"""
    started: float = 0.0
    """the sum of cards times seconds of the clock at which each began to be held"""
    spans: int = 0

    def pending(self, now: float) -> float:
        """Card-seconds of what is held now, so far."""
        return max(0.0, self.cards * now - self.started)


class Cluster(Protocol):
    """The ledger, as far as accounts care."""

    card_count: int


class HoldAccounts:
    """How long each namespace has held cards for gangs, and how much it may hold yet."""

    def __init__(self, time: Callable[[], float], cluster: Cluster, *, share: float) -> None:
        """`share` of the cluster's cards that refills an account, from 0 to 1."""
        self._time = time
        self._cluster = cluster
        self._share = share
        self._accounts: dict[str, _Account] = {}
        self._spans: dict[Hashable, _Span] = {}
        """by what is held: the uid of a hold or of a member"""

    def open(self, namespace: str, key: Hashable, cards: float) -> None:
        """So much is held under this key from now on, if nothing is."""
        if key in self._spans:
            return
        account, now = self._settled(namespace), self._time()
        account.cards += cards
        account.started += cards * now
        account.spans += 1
        self._spans[key] = _Span(namespace, cards, now)

    def close(self, key: Hashable, *, bound: bool = False) -> None:
        """Nothing is held under this key any longer; `bound`: because its member is bound there."""
        span = self._spans.pop(key, None)
        if span is None:
            return
        account, now = self._settled(span.namespace), self._time()
        account.cards -= span.cards
        account.started -= span.cards * span.since
        account.spans -= 1
        if not account.spans:
            account.cards = account.started = 0.0  # Sums of fractions leave a rest.
        if not bound:
            account.left -= span.cards * (now - span.since)

    def rename(self, key: Hashable, new: Hashable) -> None:
        """The same goes on under another key."""
        self.close(new)
        span = self._spans.pop(key, None)
        if span is not None:
            self._spans[new] = span

    def cards_of(self, key: Hashable) -> float | None:
        """None if the account pays for nothing under this key."""
        span = self._spans.get(key)
        return None if span is None else span.cards

    def pays_for(self, namespace: str) -> bool:
        """Whether the account pays for what the namespace holds, until the next look."""
        account = self._settled(namespace)
        return account.left - account.pending(self._time()) >= account.cards * RESERVE_S

    def pays_again_at(self, namespace: str, cards: float) -> float:
        """When it will pay for so many cards beside what is held, at the earliest."""
        account, now = self._settled(namespace), self._time()
        short = (account.cards + cards) * RESERVE_S - account.left + account.pending(now)
        return now + max(0.0, short) / max(self._share * self._cluster.card_count, 1e-9)

    def held_by(self, namespace: str) -> float:
        """Cards."""
        account = self._accounts.get(namespace)
        return account.cards if account is not None else 0.0

    def overdrawn(self) -> list[str]:
        """Namespaces whose accounts do not pay for what they hold. Accounts that are full again are dropped."""
        found = [namespace for namespace in sorted(self._accounts) if not self.pays_for(namespace)]
        full = FULL_S * self._cluster.card_count
        self._accounts = {
            name: account for name, account in self._accounts.items() if account.spans or account.left < full
        }
        return found

    def _settled(self, namespace: str) -> _Account:
        """The account, refilled until now."""
        now, cards = self._time(), self._cluster.card_count
        full = FULL_S * cards
        account = self._accounts.get(namespace)
        if account is None:
            account = self._accounts[namespace] = _Account(full, now)
        refilled = min(full, account.left + self._share * cards * (now - account.at))
        account.left = max(account.left, refilled)  # Nodes may be gone for a moment.
        account.at = now
        return account


def cards_taken(holdings: Mapping[str, Holding], devices: Mapping[str, Device]) -> float:
    """How many cards these are: of a card that is shared, the largest part of slots, memory and cores."""
    taken = 0.0
    for uuid, holding in holdings.items():
        device, use = devices.get(uuid), holding.use
        if device is None:
            continue
        part = use.memory / device.memory if device.memory else 0.0
        if part < 1.0:
            part = max(part, use.slots / max(device.slots, 1), use.cores / max(device.cores, 1))
        taken += min(1.0, part)
    return taken
