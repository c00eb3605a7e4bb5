"""Whole Enflame cards (key `GCU`).

A node only reports how many whole cards it has; a whole card is never shared. Partitions are in `drs`.
"""

from __future__ import annotations

from tessera.core.fit.device_rules import Ask
from tessera.core.model.devices import Device
from tessera.core.model.grants import Grants
from tessera.core.model.misfits import Misfit
from tessera.core.model.requests import WHOLE_CARD_CORES, Request
from tessera.vendors.base import AnnotationKeys, NodeProblem, Vendor
from tessera.vendors.drafts import BadRequest, Resources
from tessera.vendors.parts.capacity import numbered_cards
from tessera.vendors.parts.card_choice import first_fit, unused_card
from tessera.vendors.parts.card_shares import whole_cards
from tessera.wire.objects import Node

CARD_MEMORY = 100
"""charged for a whole card; the node does not report it"""


class Gcu(Vendor):
    key = "GCU"
    keys = AnnotationKeys(
        to_allocate="hami.io/enflame-gcu-devices-to-allocate",
        allocated="hami.io/enflame-gcu-devices-allocated",
    )

    def request(self, resources: Resources) -> Request | BadRequest | None:
        return whole_cards(resources, self.names.count, vendor=self.key, memory=CARD_MEMORY, cores=WHOLE_CARD_CORES)

    def devices(self, node: Node) -> tuple[Device, ...] | NodeProblem:
        return numbered_cards(self, node, stem="GCU", memory=CARD_MEMORY)

    def fit(self, ask: Ask) -> Grants | Misfit:
        return first_fit(self, ask, lambda card: unused_card(self, ask, card))
