"""Vendors whose cards are requested by number alone.

A node agent registers the cards; they are shared by slots, and grants record memory and cores as 0. The registered
cores are replaced by a fixed number, so only slots decide how full a card looks.
"""

from __future__ import annotations

from dataclasses import replace

from tessera.core.fit import card_checks
from tessera.core.fit.device_rules import Ask
from tessera.core.model.devices import Device
from tessera.core.model.grants import Grant, Grants
from tessera.core.model.misfits import CardMisfit, Misfit
from tessera.core.model.node_info import Card
from tessera.core.model.requests import Request
from tessera.vendors.base import NodeProblem, Section, Vendor
from tessera.vendors.drafts import BadRequest, Resources
from tessera.vendors.parts.card_choice import first_fit
from tessera.vendors.parts.card_shares import whole_cards
from tessera.wire.objects import Node

CORES = 100
"""per cent, whatever the node agent says"""


class CountedSection(Section, frozen=True, kw_only=True):
    resource_count_name: str = ""


class Counted(Vendor):
    def request(self, resources: Resources) -> Request | BadRequest | None:
        return whole_cards(resources, self.names.count, vendor=self.key)

    def devices(self, node: Node) -> tuple[Device, ...] | NodeProblem:
        found = super().devices(node)
        return found if isinstance(found, NodeProblem) else tuple(replace(device, cores=CORES) for device in found)

    def fit(self, ask: Ask) -> Grants | Misfit:
        return first_fit(self, ask, lambda card: self.judge(card, ask))

    def judge(self, card: Card, ask: Ask) -> Grant | CardMisfit:
        refusal = card_checks.refuse_identity(self, ask, card) or card_checks.refuse_sharing(self, ask, card)
        return refusal or self.grant(card, ask)

    def grant(self, card: Card, ask: Ask) -> Grant:
        return Grant(uuid=card.device.uuid, vendor=self.key, memory=0, cores=0, index=card.device.index)
