"""One node in the ledger: its cards, and what its holders take of them.

What a holder takes adds up, but for core ids, and is taken back exactly (`Holder.holdings`). With nominations on the
node it does not just add up: each card is counted again from what pods hold and claim (`nominations`). Only the ledger
changes an entry.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import or_

from tessera.core.fit.device_rules import Rules
from tessera.core.ledger.holders import Holder
from tessera.core.ledger.holdings import holdings
from tessera.core.ledger.nominations import Part, shares_of, with_nominations
from tessera.core.model.devices import Device, NodeFacts
from tessera.core.model.node_info import Card


@dataclass(slots=True)
class NodeEntry:
    """A node: its cards once it registered, and its pods even before that."""

    rules: Mapping[str, Rules]
    facts: NodeFacts | None = None
    devices: dict[str, Device] = field(default_factory=dict)
    cards: dict[str, Card] = field(default_factory=dict)
    pods: dict[str, Holder] = field(default_factory=dict)
    unread: dict[str, str] = field(default_factory=dict)
    """pods whose allocation cannot be read, and why"""

    @property
    def problem(self) -> str:
        """Why the node as a whole takes nothing new."""
        own = self.facts.problem if self.facts else ""
        return own or (self.unread[min(self.unread)] if self.unread else "")

    def register(self, facts: NodeFacts) -> None:
        """Its cards are these, with what its pods hold of them."""
        self.facts = facts
        self.cards = {device.uuid: Card(device, cordoned=device.uuid in facts.cordoned) for device in facts.devices}
        self.devices = {device.uuid: device for device in facts.devices}
        for entry in self.pods.values():
            entry.holdings = holdings(entry.facts, self.devices, self.rules)
        for entry in self.pods.values():
            self.charge(entry)

    def forget(self) -> None:
        """Its cards are not known any more."""
        self.facts, self.cards, self.devices = None, {}, {}
        for entry in self.pods.values():
            entry.holdings = {}

    def charge(self, entry: Holder) -> None:
        for uuid, holding in entry.holdings.items():
            card = self.cards[uuid]
            card.used += holding.use.slots
            card.used_memory += holding.use.memory
            card.used_cores += holding.use.cores
            card.mig += holding.mig
            card.held = card.held or holding.held
            card.tenants += (entry.facts.tenant(holding.vendor),)
            self._count_masks(card)

    def uncharge(self, entry: Holder) -> None:
        """Of a pod that is not among `pods` any more."""
        uid = entry.facts.uid
        for uuid, holding in entry.holdings.items():
            card = self.cards[uuid]
            card.used -= holding.use.slots
            card.used_memory -= holding.use.memory
            card.used_cores -= holding.use.cores
            for slot in holding.mig:
                mig = list(card.mig)
                mig.remove(slot)
                card.mig = tuple(mig)
            card.tenants = tuple(tenant for tenant in card.tenants if tenant.uid != uid)
            if holding.held:
                card.held = self._held_by_others(uuid)
            self._count_masks(card)

    def cards_with(self, nominations: Sequence[Holder]) -> dict[str, Card]:
        """All cards from what pods hold and these nominations claim, by uuid: the larger part of each nomination."""
        return {uuid: self._with(card, nominations) for uuid, card in self.cards.items()}

    def _with(self, card: Card, nominations: Sequence[Holder]) -> Card:
        uuid = card.device.uuid
        shares = shares_of(uuid, ((entry.facts, entry.holdings) for entry in self.pods.values()))
        parts, named = [], set[str]()
        for nomination in nominations:
            held = [share for share in shares if share.tenant.uid in nomination.victims - named]
            parts.append(Part(held, shares_of(uuid, ((nomination.facts, nomination.holdings),))))
            named |= nomination.victims
        staying = [share for share in shares if share.tenant.uid not in named]
        return with_nominations(card, staying, parts, core_masks=self._has_core_masks(card))

    def _count_masks(self, card: Card) -> None:
        """Core ids do not add up: an id that two pods hold is one id."""
        if self._has_core_masks(card):
            held = (entry.holdings.get(card.device.uuid) for entry in self.pods.values())
            card.used_cores = reduce(or_, (holding.use.cores for holding in held if holding is not None), 0)

    def _held_by_others(self, uuid: str) -> str:
        reasons = (entry.holdings[uuid].held for entry in self.pods.values() if uuid in entry.holdings)
        return next(filter(None, reasons), "")

    def _has_core_masks(self, card: Card) -> bool:
        rules = self.rules.get(card.device.vendor)
        return rules is not None and rules.core_masks
