"""A small cluster, or a few cards of a large one, as the numbers that `card_packing` needs.

Only pods that take a part of one card, or one instance, for one container are in it, on cards whose vendor has the
shared rules. All others stay where they are. What comes out is checked by the plain rule where it is used.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from tessera.core.card_checks import instance_profiles, refuse
from tessera.core.card_packing import MAX_WORK, PackingCard, PackingPod, PackingUse, pack
from tessera.core.card_rules.amounts import memory_wanted
from tessera.core.devices import MIG, MigSlot
from tessera.core.fit import make_ask
from tessera.core.grants import Grant, Use
from tessera.core.holders import Holder
from tessera.core.ledger import Ledger
from tessera.core.mig import bits, by_size, free_places
from tessera.core.node_info import Card
from tessera.core.nominations import counted, shares_of
from tessera.core.relocation import MovablePod

UNBOUNDED = 2**31
"""cores"""
MAX_PODS = 16
"""with more of them there are too many ways"""
WINDOW_WORK = 4_000
"""as `MAX_WORK`, to empty one card of a large cluster: some ten milliseconds"""


class SmallMove(NamedTuple):
    """A pod, and where it goes."""

    uid: str
    node: str
    uuid: str
    slot: MigSlot | None
    """on a card in MIG mode"""


class _Way(NamedTuple):
    taken: PackingUse
    slot: MigSlot | None = None


class SmallCluster:
    """Collects pods that may move, then finds the best moves."""

    def __init__(
        self,
        ledger: Ledger,
        pods: Mapping[str, MovablePod],
        *,
        cards: Mapping[str, str] | None = None,
        only: str = "",
        idle: Collection[str] = (),
    ) -> None:
        """`cards`: the uuids of those that it has, with their nodes, if not all. `only`: the one that is to be emptied,
        if not any. `idle`: uids of what stands on idle cards that may be used."""
        self._ledger = ledger
        self._pods = pods
        self._cards = cards
        self._only = only
        self._idle = idle
        self.work = 0
        """of the search, as `card_packing` counts it"""
        self._entries: list[tuple[Holder, tuple[int, ...]]] = []

    @property
    def is_too_large(self) -> bool:
        return not self._only and len(self._entries) > MAX_PODS

    @property
    def pods(self) -> int:
        return len(self._entries)

    def add(self, entry: Holder, cost: tuple[int, ...]) -> None:
        """A pod that may move; `cost`: of two equal plans, the one with the lower costs is better."""
        asked = self._pods[entry.facts.uid].request.requests
        is_plain = len(asked) == 1 and asked[0][1].count == 1 and len(entry.holdings) == 1
        is_here = self._cards is None or all(uuid in self._cards for uuid in entry.holdings)
        cards = [self._card(entry.facts.node, uuid) for uuid in entry.holdings] if is_plain and is_here else []
        if cards and all(card is not None and self._is_known(card) for card in cards):
            self._entries.append((entry, cost))

    def moves(self, *, max_moves: float) -> list[SmallMove]:
        """The best moves in order; none if it is too large."""
        if self.is_too_large or not self._entries:
            return []
        gone = {*self._idle, *(entry.facts.uid for entry, _ in self._entries)}
        cards: list[tuple[str, Card]] = []
        names = self._ledger.node_names() if self._cards is None else sorted(set(self._cards.values()))
        for name in names:
            view = self._ledger.node(name)
            for card in view.cards if view is not None and not view.facts.problem else ():
                is_here = self._cards is None or card.device.uuid in self._cards
                if is_here and card.tenants and self._is_known(card):
                    cards.append((name, self._without(name, card, gone)))
        where = {card.device.uuid: place for place, (_, card) in enumerate(cards)}
        ways = [[self._ways(entry.facts.uid, name, rest) for name, rest in cards] for entry, _ in self._entries]
        pods = []
        for (entry, cost), per_card in zip(self._entries, ways, strict=True):
            [(uuid, holding)] = entry.holdings.items()
            own = PackingUse(holding.use, bits(slot.placement for slot in holding.mig))
            uses = tuple(tuple(way.taken for way in on_card) for on_card in per_card)
            pods.append(PackingPod(where[uuid], own, uses, (*cost, own.use.memory)))
        found = pack(
            [_packing_card(card) for _, card in cards],
            pods,
            max_moves=max_moves,
            only=[where[self._only]] if self._only else None,
            max_work=WINDOW_WORK if self._only else MAX_WORK,
        )
        self.work = found.work
        return [
            SmallMove(
                self._entries[pod][0].facts.uid, cards[card][0], cards[card][1].device.uuid, ways[pod][card][way].slot
            )
            for pod, card, way in found.moves
        ]

    def _ways(self, uid: str, node: str, card: Card) -> list[_Way]:
        """What the pod may take of the card, if it is one that it accepts when no other pod that may move is there."""
        pod, view = self._pods[uid], self._ledger.node(node)
        [(position, asked)] = pod.request.requests
        if view is None or asked.vendor != card.device.vendor:
            return []
        if pod.candidates is not None and node not in pod.candidates:
            return []
        entry, free = self._ledger.pod(uid), self._ledger.arrays.host_free(node)
        is_at_home = entry is not None and entry.facts.node == node
        if free is not None and not is_at_home and (free[0] < pod.host.cpu or free[1] < pod.host.memory):
            return []
        rules, device = self._ledger.rules[asked.vendor], card.device
        ask = make_ask(view, pod.request, asked, [card], container=position)
        if refuse(rules, ask, card) is not None:
            return []
        memory = memory_wanted(asked, device)
        if device.mode != MIG:
            grant = Grant(device.uuid, asked.vendor, memory, asked.cores)
            return [_Way(PackingUse(rules.charge(device, grant)))]
        found = []
        for profile in by_size(instance_profiles(ask, device)):
            for place in free_places(profile, ()) if profile.memory >= memory else ():
                slot = MigSlot(profile.name, place)
                grant = Grant(device.uuid, asked.vendor, profile.memory, profile.cores, mig=slot)
                found.append(_Way(PackingUse(rules.charge(device, grant), bits([place])), slot))
        return found

    def _without(self, node: str, card: Card, gone: set[str]) -> Card:
        shares = shares_of(
            card.device.uuid, ((each.facts, each.holdings) for each in self._ledger.pods_on(node)), gone=gone
        )
        return counted(card, shares, core_masks=False)

    def _card(self, node: str, uuid: str) -> Card | None:
        view = self._ledger.node(node)
        return next((card for card in view.cards if card.device.uuid == uuid), None) if view is not None else None

    def _is_known(self, card: Card) -> bool:
        return is_known(self._ledger, card)


def is_known(ledger: Ledger, card: Card) -> bool:
    """Whether amounts, and places of instances, decide what fits on a card."""
    rules = ledger.rules.get(card.device.vendor)
    return rules is not None and rules.arrays_exact


def _packing_card(card: Card) -> PackingCard:
    """Instances bring cores of their own, which are rounded: they decide nothing."""
    device = card.device
    capacity = Use(device.slots, device.memory, UNBOUNDED if device.mode == MIG else device.cores)
    fixed = Use(card.used, card.used_memory, card.used_cores)
    return PackingCard(capacity, PackingUse(fixed, bits(slot.placement for slot in card.mig)))
