"""Enflame: the family, and its whole cards (`GCU`).

A node only says how many whole cards it has; a whole card is never shared. Not here: the partitions of cards that
Enflame's plugin offers by profile (`enflame_drs`).
"""

from __future__ import annotations

from msgspec import field

from tessera.core import generic
from tessera.core.cards import Card
from tessera.core.devices import Device
from tessera.core.grants import Grant, Grants
from tessera.core.misfits import CardMisfit, Misfit
from tessera.core.requests import WHOLE_CARD_CORES, Request
from tessera.core.rules import Ask
from tessera.vendors.base import AnnotationKeys, Family, NodeProblem, ResourceNames, Section, Switches, Vendor
from tessera.vendors.card_shares import WHOLE_MEMORY
from tessera.vendors.choosing import first_fit, refuse_used
from tessera.vendors.counts import cards_asked, cards_by_capacity
from tessera.vendors.drafts import BadRequest, Resources
from tessera.vendors.enflame_drs import Drs
from tessera.wire.objects import Node

CARD_MEMORY = 100
"""what a whole card counts for; the node does not say"""

DRS_NAME = "enflame.com/drs-gcu"
MEMORY_NAME = "enflame.com/gcu-memory"
CORES_NAME = "enflame.com/gcu-core"


class EnflameSection(Section, frozen=True, kw_only=True):
    gcu: str = field(default="", name="resourceNameGCU")
    drs: str = field(default="", name="resourceNameDRSGCU")
    memory: str = field(default="", name="resourceNameGCUMemory")
    cores: str = field(default="", name="resourceNameGCUCore")
    vgcu: str = field(default="", name="resourceNameVGCU")
    """older name of `drs`"""
    vgcu_percentage: str = field(default="", name="resourceNameVGCUPercentage")
    """of the shared mode before HAMi v2.10, which this is not"""


CHART = EnflameSection(gcu="enflame.com/gcu", drs=DRS_NAME, memory=MEMORY_NAME, cores=CORES_NAME)


class Gcu(Vendor):
    """Whole cards, one container each."""

    key = "GCU"
    keys = AnnotationKeys(
        to_allocate="hami.io/enflame-gcu-devices-to-allocate",
        allocated="hami.io/enflame-gcu-devices-allocated",
    )

    def __init__(self, count_name: str) -> None:
        self.names = ResourceNames(count=count_name)

    def request(self, resources: Resources) -> Request | BadRequest | None:
        count = cards_asked(resources, self.names.count)
        if count is None or isinstance(count, BadRequest):
            return count
        return Request(vendor=self.key, count=count, memory=CARD_MEMORY, percent=WHOLE_MEMORY, cores=WHOLE_CARD_CORES)

    def devices(self, node: Node) -> tuple[Device, ...] | NodeProblem:
        count = cards_by_capacity(node, self.names.count)
        if isinstance(count, NodeProblem):
            return count
        return tuple(
            Device(
                uuid=f"{node.name}-GCU-{position}",
                vendor=self.key,
                index=position,
                memory=CARD_MEMORY,
                model=self.key,
            )
            for position in range(count)
        )

    def fit(self, ask: Ask) -> Grants | Misfit:
        return first_fit(self, ask, lambda card: self._judge(card, ask))

    def _judge(self, card: Card, ask: Ask) -> Grant | CardMisfit:
        return generic.refuse_identity(self, ask, card) or refuse_used(card) or self.grant(card, ask)


def build(section: EnflameSection, switches: Switches) -> list[Vendor]:
    names = ResourceNames(
        count=section.drs or section.vgcu or DRS_NAME,
        memory=section.memory or MEMORY_NAME,
        cores=section.cores or CORES_NAME,
    )
    return [Gcu(section.gcu), Drs(names)]


FAMILY = Family(section="enflame", schema=EnflameSection, chart=CHART, build=build)
