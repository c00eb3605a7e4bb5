"""Iluvatar: one vendor per chip (section `iluvatars`), and the single vendor of HAMi v2.4 to v2.7 (`iluvatar`).

Memory is counted in units of 256 MiB. Several cards are always whole cards: the webhook requests all their cores. The
old vendor exists only where an old file configures it, and writes the annotations that agents of its time read.
"""

from __future__ import annotations

from tessera.core.model.devices import Device
from tessera.vendors.base import AnnotationKeys, Bound, Family, NodeProblem, SharedSection, Vendor
from tessera.vendors.drafts import ContainerDraft, Denied, PodDraft
from tessera.vendors.parts.capacity import cards_from_capacity
from tessera.wire.keys import NODE_LOCK
from tessera.wire.objects import Node

MIB_PER_UNIT = 256
CORES_PER_CARD = 100
CONTAINER_NAME_ENV = "SOL_CONTINER_NAME"


class IluvatarChip(SharedSection, frozen=True, kw_only=True):
    chip_name: str = ""
    common_word: str = ""
    """key of the vendor and part of its annotations; empty = the chip's name"""


def _chart_chip(name: str) -> IluvatarChip:
    return IluvatarChip(
        chip_name=name,
        common_word=name,
        resource_count_name=f"iluvatar.ai/{name}-vgpu",
        resource_memory_name=f"iluvatar.ai/{name}.vMem",
        resource_core_name=f"iluvatar.ai/{name}.vCore",
    )


CHART = tuple(_chart_chip(name) for name in ("MR-V100", "MR-V50", "BI-V150", "BI-V100"))


class Iluvatar(Vendor):
    """What both generations share."""

    arrays_exact = True
    quota_factor = MIB_PER_UNIT

    def mutate(self, container: ContainerDraft, pod: PodDraft) -> bool | Denied:
        count = container.amount(self.names.count, limits_only=True)
        if isinstance(count, int) and count > 1 and self.names.cores:
            # Both, because the apiserver has already copied the limit into the requests.
            container.set_both(self.names.cores, count * CORES_PER_CARD)
        return count is not None

    def max_cores(self, cards: int) -> int:
        return cards * CORES_PER_CARD


class IluvatarChips(Iluvatar):
    """Cards of one chip, registered by a node agent."""

    def __init__(self, section: IluvatarChip) -> None:
        super().__init__(section.names)
        self.key = section.common_word or section.chip_name
        if not self.key:
            raise ValueError("iluvatars: every entry needs a commonWord or a chipName")
        self.keys = AnnotationKeys(
            register=f"hami.io/node-{self.key}-register",
            handshake=f"hami.io/node-handshake-{self.key}",
            to_allocate=f"hami.io/{self.key}-devices-to-allocate",
            allocated=f"hami.io/{self.key}-devices-allocated",
            use_uuids=(f"hami.io/use-{self.key}-uuid",),
            avoid_uuids=(f"hami.io/no-use-{self.key}-uuid",),
            lock=NODE_LOCK,
        )

    def mutate(self, container: ContainerDraft, pod: PodDraft) -> bool | Denied:
        asks = super().mutate(container, pod)
        if asks is True and CONTAINER_NAME_ENV not in container.env:
            container.env[CONTAINER_NAME_ENV] = container.name
        return asks


class OldIluvatar(Iluvatar):
    """Cards of any chip, from the node's capacity (HAMi v2.4 to v2.7)."""

    key = "Iluvatar"
    keys = AnnotationKeys(
        to_allocate="hami.io/iluvatar-vgpu-devices-to-allocate",
        allocated="hami.io/iluvatar-vgpu-devices-allocated",
        use_uuids=("iluvatar.ai/use-gpuuuid",),
        avoid_uuids=("iluvatar.ai/nouse-gpuuuid",),
    )

    def devices(self, node: Node) -> tuple[Device, ...] | NodeProblem:
        return cards_from_capacity(self, node, stem="iluvatar", cores_per_card=CORES_PER_CARD)

    def annotations(self, bound: Bound) -> dict[str, str]:
        written = super().annotations(bound)
        written["iluvatar.ai/gpu-assigned"] = "false"
        written["iluvatar.ai/predicate-time"] = bound.nanoseconds
        for position, grants in enumerate(bound.grants):
            if grants:
                indexes = ",".join(str(grant.index) for grant in grants)
                written[f"iluvatar.ai/predicate-gpu-idx-{position}"] = indexes
        return written


FAMILY = Family(
    title="Iluvatar",
    section="iluvatars",
    chart=CHART,
    build=lambda section, switches: [IluvatarChips(chip) for chip in section] if switches.iluvatar else [],
)
OLD_FAMILY = Family(
    title="Iluvatar",
    section="iluvatar",
    chart=SharedSection(),
    build=lambda section, _: [OldIluvatar(section.names)] if section.resource_count_name else [],
)
