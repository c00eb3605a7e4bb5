"""A small cluster, or a few cards of a large one, as the numbers that `card_packing` needs.

Only pods that take a part of one card for one container are in it, on cards whose vendor has the shared rules and that
are not in MIG mode. All others stay where they are. What comes out is checked by the plain rule where it is used.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tessera.core.card_checks import refuse
from tessera.core.card_packing import MOST_WORK, PackingCard, PackingPod, pack
from tessera.core.devices import MIG
from tessera.core.fit import make_ask
from tessera.core.grants import Grant, Use
from tessera.core.ledger import Ledger, PodEntry
from tessera.core.node_info import Card
from tessera.core.nominations import counted, shares_of
from tessera.core.relocation import MovablePod

MOST_PODS = 16
"""with more of them there are too many ways"""
WINDOW_WORK = 4_000
"""as `MOST_WORK`, to empty one card of a large cluster: some ten milliseconds"""


class SmallCluster:
    """Collects pods that may move, then finds the best moves."""

    def __init__(
        self, ledger: Ledger, pods: Mapping[str, MovablePod], *, cards: Collection[str] | None = None, only: str = ""
    ) -> None:
        """`cards`: the uuids of those that it has, if not all. `only`: the one that is to be emptied, if not any."""
        self._ledger = ledger
        self._pods = pods
        self._cards = cards
        self._only = only
        self._entries: list[tuple[PodEntry, tuple[int, ...]]] = []

    @property
    def is_too_large(self) -> bool:
        return not self._only and len(self._entries) > MOST_PODS

    def add(self, entry: PodEntry, cost: tuple[int, ...]) -> None:
        """A pod that may move; `cost`: of two equal plans, the one with the lower costs is better."""
        asked = self._pods[entry.facts.uid].request.requests
        is_plain = len(asked) == 1 and asked[0][1].count == 1 and len(entry.holdings) == 1
        is_here = self._cards is None or all(uuid in self._cards for uuid in entry.holdings)
        if is_plain and is_here and all(self._is_plain(self._card(entry.facts.node, uuid)) for uuid in entry.holdings):
            self._entries.append((entry, cost))

    def moves(self, *, most_moves: float) -> list[tuple[str, str]]:
        """The best moves in order, each the uid of a pod and the uuid of its new card; none if it is too large."""
        if self.is_too_large or not self._entries:
            return []
        movable = {entry.facts.uid for entry, _ in self._entries}
        cards: list[tuple[str, Card, Card]] = []
        for name in self._ledger.node_names():
            view = self._ledger.node(name)
            for card in view.cards if view is not None and not view.facts.problem else ():
                is_here = self._cards is None or card.device.uuid in self._cards
                if is_here and card.tenants and self._is_plain(card):
                    cards.append((name, card, self._without(name, card, movable)))
        where = {card.device.uuid: place for place, (_, card, _) in enumerate(cards)}
        pods = []
        for entry, cost in self._entries:
            [uuid] = entry.holdings
            uses = tuple(self._use(entry.facts.uid, name, rest) for name, _, rest in cards)
            own = entry.holdings[uuid].use
            pods.append(
                PackingPod(where[uuid], (*uses[: where[uuid]], own, *uses[where[uuid] + 1 :]), (*cost, own.memory))
            )
        found = pack(
            [
                PackingCard(
                    Use(rest.device.slots, rest.device.memory, rest.device.cores),
                    Use(rest.used, rest.used_memory, rest.used_cores),
                )
                for _, _, rest in cards
            ],
            pods,
            most_moves=most_moves,
            only=[where[self._only]] if self._only else None,
            most_work=WINDOW_WORK if self._only else MOST_WORK,
        )
        return [(self._entries[pod][0].facts.uid, cards[card][1].device.uuid) for pod, card in found]

    def _use(self, uid: str, node: str, card: Card) -> Use | None:
        """What the pod takes of the card, if it is one that it accepts when no other pod that may move is there."""
        pod, view = self._pods[uid], self._ledger.node(node)
        [(position, asked)] = pod.request.requests
        if view is None or asked.vendor != card.device.vendor:
            return None
        if pod.candidates is not None and node not in pod.candidates:
            return None
        entry, free = self._ledger.pod(uid), self._ledger.arrays.host_free(node)
        is_at_home = entry is not None and entry.facts.node == node
        if free is not None and not is_at_home and (free[0] < pod.host.cpu or free[1] < pod.host.memory):
            return None
        rules = self._ledger.rules[asked.vendor]
        ask = make_ask(view, pod.request, asked, [card], container=position)
        if refuse(rules, ask, card) is not None:
            return None
        device = card.device
        return rules.charge(device, Grant(device.uuid, asked.vendor, asked.memory_on(device.memory), asked.cores))

    def _without(self, node: str, card: Card, gone: set[str]) -> Card:
        shares = shares_of(
            card.device.uuid, ((each.facts, each.holdings) for each in self._ledger.pods_on(node)), gone=gone
        )
        return counted(card, shares, core_masks=False)

    def _card(self, node: str, uuid: str) -> Card | None:
        view = self._ledger.node(node)
        return next((card for card in view.cards if card.device.uuid == uuid), None) if view is not None else None

    def _is_plain(self, card: Card | None) -> bool:
        rules = None if card is None else self._ledger.rules.get(card.device.vendor)
        return card is not None and rules is not None and rules.arrays_exact and card.device.mode != MIG
