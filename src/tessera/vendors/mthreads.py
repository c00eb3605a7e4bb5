"""Moore Threads: a card has 16 cores and 96 memory units of 512 MiB; a pod's amounts are sums over its cards.

Several cards are always whole cards; one card may be cut at fixed sizes. All containers of a pod that use MThreads
share the cards of the first of them, because MThreads' node agent gets one list of cards per pod.
"""

from __future__ import annotations

from tessera.core.fit.device_rules import Ask
from tessera.core.model.devices import Device
from tessera.core.model.misfits import Reason
from tessera.core.model.node_info import Card
from tessera.core.model.requests import Request
from tessera.vendors.base import AnnotationKeys, Bound, Family, NodeProblem, SharedSection, Vendor
from tessera.vendors.drafts import BadRequest, ContainerDraft, Denied, PodDraft, Resources
from tessera.vendors.parts.capacity import cards_from_capacity
from tessera.vendors.parts.card_shares import WHOLE_MEMORY, cards_asked
from tessera.wire.golang import INT32_MAX
from tessera.wire.objects import Node

MIB_PER_UNIT = 512
CORES_PER_CARD = 16
UNITS_PER_CARD = 96
SLICES = (2, 4, 8, 16, 32, 64, 96)
"""memory of a part of a card, in units"""

CARDS_ANNOTATION = "mthreads.com/request-gpu-num"


CHART = SharedSection(
    resource_count_name="mthreads.com/vgpu",
    resource_memory_name="mthreads.com/sgpu-memory",
    resource_core_name="mthreads.com/sgpu-core",
)


class MThreads(Vendor):
    key = "Mthreads"
    quota_factor = MIB_PER_UNIT
    keys = AnnotationKeys(
        allocated="hami.io/mthreads-vgpu-devices-allocated",
        use_uuids=("mthreads.ai/use-gpuuuid",),
        avoid_uuids=("mthreads.ai/nouse-gpuuuid",),
    )

    def mutate(self, container: ContainerDraft, pod: PodDraft) -> bool | Denied:
        # Zero and negative numbers are accepted here, so that they get the vendor's own message.
        count = container.amount(self.names.count, least=-INT32_MAX)
        if count is None or isinstance(count, BadRequest):
            return count is not None
        if count <= 0:
            return Denied(f"{self.names.count} must be greater than 0")
        if count > 1:
            self._take_whole(container, count)
            pod.annotations[CARDS_ANNOTATION] = str(count)
        elif container.text(self.names.memory, limits_only=True) is None:
            self._take_whole(container, count)
        elif container.amount(self.names.memory, limits_only=True) not in SLICES:
            return Denied(f"sGPU memory request value is invalid, valid values are {list(SLICES)}")
        return True

    def _take_whole(self, container: ContainerDraft, count: int) -> None:
        """Set all cores and memory in limits and requests: the apiserver has already copied limits into requests."""
        if self.names.cores:
            container.set_both(self.names.cores, count * CORES_PER_CARD)
        if self.names.memory:
            container.set_both(self.names.memory, count * UNITS_PER_CARD)

    def max_cores(self, cards: int) -> int:
        return cards * CORES_PER_CARD

    def request(self, resources: Resources) -> Request | BadRequest | None:
        count = cards_asked(resources, self.names.count)
        if count is None or isinstance(count, BadRequest):
            return count
        units = resources.amount(self.names.memory, most=INT32_MAX // MIB_PER_UNIT, unit=f"units of {MIB_PER_UNIT} MiB")
        if isinstance(units, BadRequest):
            return units
        cores = resources.amount(self.names.cores)
        if isinstance(cores, BadRequest):
            return cores
        memory = (units or 0) * MIB_PER_UNIT // count
        return Request(
            vendor=self.key,
            count=count,
            memory=memory,
            percent=0 if memory else WHOLE_MEMORY,
            cores=(cores or 0) // count,
        )

    def devices(self, node: Node) -> tuple[Device, ...] | NodeProblem:
        return cards_from_capacity(self, node, stem="mthreads", cores_per_card=CORES_PER_CARD)

    def custom_rule(self, card: Card, ask: Ask) -> Reason | None:
        earlier = ask.earlier
        return Reason.CUSTOM_RULE if earlier and card.device.uuid not in earlier else None

    def annotations(self, bound: Bound) -> dict[str, str]:
        written = super().annotations(bound)
        for grants in bound.grants:
            if grants:
                written["mthreads.com/gpu-index"] = ",".join(str(grant.index) for grant in grants)
        written["mthreads.com/predicate-time"] = bound.nanoseconds
        written["mthreads.com/predicate-node"] = bound.node
        return written


FAMILY = Family(
    title="Moore Threads", section="mthreads", chart=CHART, build=lambda section, _: [MThreads(section.names)]
)
