"""AMD: memory in MiB, and cores in per cent, which are converted to compute units of the card.

A container that names no cores or no memory gets all of it. Grants are recorded and counted in compute units, at
least one per grant. Only limits are read.
"""

from __future__ import annotations

from tessera.core.fit import card_checks
from tessera.core.fit.device_rules import Ask
from tessera.core.model.devices import Device
from tessera.core.model.grants import Grant, Grants, Use
from tessera.core.model.misfits import CardMisfit, Misfit, Reason
from tessera.core.model.node_info import Card
from tessera.core.model.requests import WHOLE_CARD_CORES, Request
from tessera.vendors.base import AnnotationKeys, Family, NodeProblem, SharedSection, Vendor
from tessera.vendors.drafts import BadRequest, ContainerDraft, Denied, PodDraft, Resources
from tessera.vendors.parts.capacity import capacity_of
from tessera.vendors.parts.card_choice import first_fit, refuse_unpaid
from tessera.wire.keys import NODE_LOCK
from tessera.wire.objects import Node
from tessera.wire.pod_devices import has_separator

PERCENTAGE = "must be an integer percentage between 1 and 100"


CHART = SharedSection(
    resource_count_name="amd.com/gpu",
    resource_memory_name="amd.com/gpumem",
    resource_core_name="amd.com/gpucores",
)


class Amd(Vendor):
    key = "AMD"
    default_cores = WHOLE_CARD_CORES
    limits_only = True
    keys = AnnotationKeys(
        register="hami.io/node-amd-register",
        to_allocate="hami.io/amd-devices-to-allocate",
        allocated="hami.io/amd-devices-allocated",
        use_models="amd.com/use-gputype",
        avoid_models="amd.com/nouse-gputype",
        use_uuids=("amd.com/use-gpu-uuid",),
        avoid_uuids=("amd.com/nouse-gpu-uuid",),
        lock=NODE_LOCK,
    )

    def mutate(self, container: ContainerDraft, pod: PodDraft) -> bool | Denied:
        if not super().mutate(container, pod):
            for name in (self.names.memory, self.names.cores):
                if container.text(name, limits_only=True) is not None:
                    pod.warn(
                        f"{name} without {self.names.count} gives no slice, and the default scheduler leaves the pod "
                        f"pending unless a node offers {name} itself: add {self.names.count}"
                    )
            return False
        cores = container.amount(self.names.cores, least=1, most=WHOLE_CARD_CORES, limits_only=True)
        return Denied(f"{self.names.cores} {PERCENTAGE}") if isinstance(cores, BadRequest) else True

    def request(self, resources: Resources) -> Request | BadRequest | None:
        cores = resources.amount(self.names.cores, least=1, most=WHOLE_CARD_CORES, limits_only=True, unit="per cent")
        found = super().request(resources)
        return cores if isinstance(found, Request) and isinstance(cores, BadRequest) else found

    def devices(self, node: Node) -> tuple[Device, ...] | NodeProblem:
        """The registered cards, as long as the device plugin offers any: a registration outlives its plugin."""
        if self.names.count:
            offered = capacity_of(node, self.names.count)
            if isinstance(offered, NodeProblem):
                return offered
            if offered == 0:
                return ()
        return super().devices(node)

    def fit(self, ask: Ask) -> Grants | Misfit:
        return first_fit(self, ask, lambda card: self._judge(card, ask))

    def _judge(self, card: Card, ask: Ask) -> Grant | CardMisfit:
        refusal = card_checks.refuse_identity(self, ask, card) or card_checks.refuse_sharing(self, ask, card)
        if refusal is not None:
            return refusal
        grant = self.grant(card, ask)
        return refuse_unpaid(ask, card, grant) or _refuse_capacity(card, grant) or grant

    def grant(self, card: Card, ask: Ask) -> Grant:
        device = card.device
        return Grant(
            uuid=device.uuid,
            vendor=self.key,
            memory=ask.request.memory_on(device.memory),
            cores=compute_units(device.cores, ask.request.cores),
            index=device.index,
            word="" if device.model == self.key or has_separator(device.model) else device.model,
        )

    def charge(self, device: Device, grant: Grant) -> Use:
        return Use(slots=grant.slots, memory=grant.memory, cores=grant.cores)


def compute_units(total: int, percent: int) -> int:
    """Compute units for a percentage of `total`: rounded down, but at least one."""
    return max(1, min(total, total * percent // 100))


def _refuse_capacity(card: Card, grant: Grant) -> CardMisfit | None:
    device = card.device
    short = card_checks.refuse_memory(card, grant.memory) or card_checks.refuse_cores(card, grant.cores)
    if short is not None:
        return short
    if card.used > 0 and grant.cores == device.cores:
        return CardMisfit(device.uuid, Reason.EXCLUSIVE_CONFLICT, asked=grant.cores, total=device.cores)
    return None


FAMILY = Family(title="AMD", section="amd", chart=CHART, build=lambda section, _: [Amd(section.names)])
