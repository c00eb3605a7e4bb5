"""Hygon DCU: the generic rules with lists of models and uuids; a node agent registers cards in the text form.

A container that names no cores takes the whole card.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from tessera.core.devices import Device
from tessera.core.requests import WHOLE_CARD_CORES, Request
from tessera.vendors.base import AnnotationKeys, Family, NodeProblem, SharedSection, Switches, Vendor
from tessera.vendors.drafts import INT32_MAX, BadRequest, Resources
from tessera.vendors.parts.card_shares import request_of
from tessera.vendors.parts.registered import registered_cards
from tessera.wire.keys import NODE_LOCK
from tessera.wire.objects import Node


class HygonSection(SharedSection, frozen=True, kw_only=True):
    memory_factor: Annotated[int, Meta(ge=0, le=INT32_MAX)] = 0
    """MiB per unit of memory that pods ask for; 0 means 1"""


CHART = HygonSection(
    resource_count_name="hygon.com/dcunum",
    resource_memory_name="hygon.com/dcumem",
    resource_core_name="hygon.com/dcucores",
    memory_factor=1,
)


class Hygon(Vendor):
    key = "DCU"
    arrays_exact = True
    keys = AnnotationKeys(
        register="hami.io/node-dcu-register",
        handshake="hami.io/node-handshake-dcu",
        to_allocate="hami.io/dcu-devices-to-allocate",
        allocated="hami.io/dcu-devices-allocated",
        use_models="hygon.com/use-dcutype",
        avoid_models="hygon.com/nouse-dcutype",
        use_uuids=("hygon.com/use-gpuuuid",),
        avoid_uuids=("hygon.com/nouse-gpuuuid",),
        lock=NODE_LOCK,
    )

    def __init__(self, section: HygonSection) -> None:
        super().__init__(section.names())
        self.quota_factor = max(section.memory_factor, 1)

    def request(self, resources: Resources) -> Request | BadRequest | None:
        return request_of(
            resources,
            self.names,
            vendor=self.key,
            mib_per_unit=self.quota_factor,
            default_cores=WHOLE_CARD_CORES,
        )

    def devices(self, node: Node) -> tuple[Device, ...] | NodeProblem:
        return registered_cards(node, self.keys.register, vendor=self.key)


def build(section: HygonSection, switches: Switches) -> list[Vendor]:
    return [Hygon(section)]


FAMILY = Family(section="hygon", schema=HygonSection, chart=CHART, build=build)
