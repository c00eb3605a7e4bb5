"""Cambricon MLU: cards are derived from the node's capacity, memory is counted in units of 256 MiB.

Cambricon's node agent reads a pod's slice from one annotation (`CAMBRICON_DSMLU_PROFILE`), which holds one card of one
container. It serialises allocation with a lock of its own.
"""

from __future__ import annotations

from tessera.core.model.devices import Device
from tessera.core.model.requests import WHOLE_CARD_CORES
from tessera.vendors.base import AnnotationKeys, Bound, Family, NodeProblem, SharedSection, Vendor
from tessera.vendors.parts.capacity import cards_from_capacity
from tessera.wire.objects import Node

MIB_PER_UNIT = 256
CORES_PER_CARD = 100

LOCK_S = 120.0
"""the age of Cambricon's lock after which HAMi takes it over; no flag changes it"""

PROFILE = "CAMBRICON_DSMLU_PROFILE"
"""`<card index>_<cores>_<memory units>`"""

ASSIGNED = ("CAMBRICON_DSMLU_ASSIGNED", "CAMBRICON_DSMLU_ASSIGHED")
"""HAMi before v2.8 misspelt the key and its agents wait for that spelling, so both are written"""


CHART = SharedSection(
    resource_count_name="cambricon.com/vmlu",
    resource_memory_name="cambricon.com/mlu.smlu.vmemory",
    resource_core_name="cambricon.com/mlu.smlu.vcore",
)


class Cambricon(Vendor):
    key = "MLU"
    arrays_exact = True
    quota_factor = MIB_PER_UNIT
    default_cores = WHOLE_CARD_CORES
    keys = AnnotationKeys(
        to_allocate="hami.io/cambricon-mlu-devices-to-allocate",
        allocated="hami.io/cambricon-mlu-devices-allocated",
        use_uuids=("cambricon.com/use-gpuuuid",),
        avoid_uuids=("cambricon.com/nouse-gpuuuid",),
        lock="cambricon.com/dsmlu.lock",
        lock_s=LOCK_S,
    )

    def devices(self, node: Node) -> tuple[Device, ...] | NodeProblem:
        return cards_from_capacity(self, node, stem="cambricon-mlu", cores_per_card=CORES_PER_CARD)

    def annotations(self, bound: Bound) -> dict[str, str]:
        written = super().annotations(bound)
        first = next((grant for container in bound.grants for grant in container), None)
        if first is not None:
            written.update(dict.fromkeys(ASSIGNED, "false"))
            written[PROFILE] = f"{first.index}_{first.cores}_{first.memory // MIB_PER_UNIT}"
        return written


FAMILY = Family(
    title="Cambricon MLU", section="cambricon", chart=CHART, build=lambda section, _: [Cambricon(section.names)]
)
