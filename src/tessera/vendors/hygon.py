"""Hygon DCU: the generic rules with lists of models and uuids; a node agent registers cards in the text form.

A container that names no cores takes the whole card.
"""

from __future__ import annotations

from tessera.core.model.requests import WHOLE_CARD_CORES
from tessera.vendors.base import Amount, AnnotationKeys, Family, SharedSection, Vendor
from tessera.wire.keys import NODE_LOCK


class HygonSection(SharedSection, frozen=True, kw_only=True):
    memory_factor: Amount = 0
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
    default_cores = WHOLE_CARD_CORES
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
        super().__init__(section.names)
        self.quota_factor = max(section.memory_factor, 1)


FAMILY = Family(title="Hygon DCU", section="hygon", chart=CHART, build=lambda section, _: [Hygon(section)])
