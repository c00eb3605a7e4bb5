"""Whole Kunlun cards (key `kunlun`): derived from the node's capacity, never shared.

This module decides which cards are free; `layout` decides which may go together.
"""

from __future__ import annotations

from dataclasses import replace

from tessera.core.fit.device_rules import Ask
from tessera.core.model.devices import Device
from tessera.core.model.grants import Grant, Grants
from tessera.core.model.misfits import Misfit
from tessera.core.model.node_info import Card, NodeInfo
from tessera.core.model.requests import PodRequest, Request
from tessera.vendors.base import AnnotationKeys, Bound, NodeProblem, Vendor
from tessera.vendors.drafts import BadRequest, ContainerDraft, Denied, PodDraft, Resources
from tessera.vendors.kunlun import layout
from tessera.vendors.kunlun.layout import AVOID_UUIDS, CARD_MEMORY, USE_UUIDS, fit_layout, warn_of_count
from tessera.vendors.parts.capacity import SHARERS, numbered_cards
from tessera.vendors.parts.card_choice import unused_card
from tessera.vendors.parts.card_shares import whole_cards
from tessera.wire.objects import Node

NODE_SCORES = {-1: 3000.0, 0: 2000.0, 1: 1000.0, 2: 0.0}
"""by how much more ragged the pod's cards are than the cards in use before"""
OTHER_NODE_SCORE = 1000.0


class Kunlun(Vendor):
    key = "kunlun"
    scores_nodes = True
    keys = AnnotationKeys(allocated="hami.io/kunlun-allocated", use_uuids=USE_UUIDS, avoid_uuids=AVOID_UUIDS)

    def mutate(self, container: ContainerDraft, pod: PodDraft) -> bool | Denied:
        warn_of_count(container, pod, self.names.count)
        return super().mutate(container, pod)

    def request(self, resources: Resources) -> Request | BadRequest | None:
        return whole_cards(resources, self.names.count, vendor=self.key)

    def devices(self, node: Node) -> tuple[Device, ...] | NodeProblem:
        found = numbered_cards(self, node, stem="kunlun", memory=CARD_MEMORY, slots=SHARERS)
        if isinstance(found, NodeProblem):
            return found
        half = len(found) // 2
        return tuple(replace(card, numa=0 if card.index < half else 1) for card in found)

    def fit(self, ask: Ask) -> Grants | Misfit:
        # Free cards are all alike, so policies do not matter: the lowest index comes first.
        by_index = sorted(ask.cards, key=lambda card: (card.device.index, card.device.uuid))
        return fit_layout(self, replace(ask, cards=by_index), lambda card: unused_card(self, ask, card))

    def grant(self, card: Card, ask: Ask) -> Grant:
        device = card.device
        return Grant(device.uuid, self.key, memory=device.memory, cores=device.cores, index=device.index)

    def node_score(self, node: NodeInfo, pod: PodRequest, grants: tuple[Grants, ...]) -> float:
        """Compare the boards of this pod's cards before and after."""
        if any(card.device.vendor != self.key for card in node.cards):
            return 0.0
        seat = layout.seats([card.device for card in node.cards])
        after = frozenset(seat[grant.uuid] for container in grants for grant in container)
        boards = {place // layout.BOARD for place in after}
        before = frozenset(
            place
            for card in node.cards
            if card.used > 0 and (place := seat[card.device.uuid]) // layout.BOARD in boards
        )
        return NODE_SCORES.get(layout.bubbles(after) - layout.bubbles(before), OTHER_NODE_SCORE)

    def annotations(self, bound: Bound) -> dict[str, str]:
        written = super().annotations(bound)
        for container in bound.grants:
            if container:
                written["BAIDU_COM_DEVICE_IDX"] = ",".join(str(grant.index) for grant in container)
        return written
