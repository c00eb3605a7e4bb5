"""Whole Enflame cards (key `GCU`).

A node only reports how many whole cards it has; a whole card is never shared. Partitions are in `drs`.
"""

from __future__ import annotations

from tessera.core import card_checks
from tessera.core.device_rules import Ask
from tessera.core.devices import Device
from tessera.core.grants import Grant, Grants
from tessera.core.misfits import CardMisfit, Misfit
from tessera.core.node_info import Card
from tessera.core.requests import WHOLE_CARD_CORES, Request
from tessera.vendors.base import AnnotationKeys, NodeProblem, ResourceNames, Vendor
from tessera.vendors.drafts import BadRequest, Resources
from tessera.vendors.parts.capacity import numbered_cards
from tessera.vendors.parts.card_choice import first_fit, refuse_used
from tessera.vendors.parts.card_shares import whole_cards
from tessera.wire.objects import Node

CARD_MEMORY = 100
"""charged for a whole card; the node does not report it"""


class Gcu(Vendor):
    """Whole cards, one container each."""

    key = "GCU"
    keys = AnnotationKeys(
        to_allocate="hami.io/enflame-gcu-devices-to-allocate",
        allocated="hami.io/enflame-gcu-devices-allocated",
    )

    def __init__(self, count_name: str) -> None:
        super().__init__(ResourceNames(count=count_name))

    def request(self, resources: Resources) -> Request | BadRequest | None:
        return whole_cards(resources, self.names.count, vendor=self.key, memory=CARD_MEMORY, cores=WHOLE_CARD_CORES)

    def devices(self, node: Node) -> tuple[Device, ...] | NodeProblem:
        return numbered_cards(node, self.names.count, vendor=self.key, stem="GCU", memory=CARD_MEMORY)

    def fit(self, ask: Ask) -> Grants | Misfit:
        return first_fit(self, ask, lambda card: self._judge(card, ask))

    def _judge(self, card: Card, ask: Ask) -> Grant | CardMisfit:
        return card_checks.refuse_identity(self, ask, card) or refuse_used(card) or self.grant(card, ask)
