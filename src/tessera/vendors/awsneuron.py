"""AWS Neuron: whole devices, or NeuronCores of them; a device's cores are a bit mask.

The number of cores per device follows from each node's capacity, so it is known only when a node is tried. Several
devices are always unused neighbours, because only those are linked. A grant records the mask of its cores.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tessera.core.fit import card_checks
from tessera.core.fit.card_checks import Fitting, verdict
from tessera.core.fit.device_rules import Ask
from tessera.core.model.devices import Device
from tessera.core.model.grants import Grant, Grants, Use
from tessera.core.model.misfits import CardMisfit, Misfit, Reason
from tessera.core.model.node_info import Card
from tessera.core.model.requests import Request
from tessera.vendors.base import AnnotationKeys, Bound, Family, NodeProblem, Section, Vendor
from tessera.vendors.drafts import BadRequest, ContainerDraft, Denied, PodDraft, Resources
from tessera.vendors.parts.capacity import MAX_CARDS, alike_cards, capacity_of
from tessera.vendors.parts.card_choice import all_as, judge_all, pays_together, refuse_unpaid, refuse_used
from tessera.wire.golang import INT32_MAX
from tessera.wire.objects import Node
from tessera.wire.quantity import Whole, read

USUAL_CORES = 2
"""cores per device in most instance types; requests are expressed in it before the node is known"""
MAX_CORES = 31
"""the most cores per device whose mask fits a signed 32-bit counter"""
INSTANCE_TYPE_LABEL = "node.kubernetes.io/instance-type"
INSTANCE_TYPE = "AWSNodeType"
ALIGNED_SIZES = (1, 4, 8, 16)
"""group sizes that are linked outside Inferentia; a group starts at a multiple of its size"""
IDS = "ids"
RESOURCE = "resource"


class NeuronSection(Section, frozen=True, kw_only=True):
    resource_count_name: str = ""
    resource_core_name: str = ""


CHART = NeuronSection(resource_count_name="aws.amazon.com/neuron", resource_core_name="aws.amazon.com/neuroncore")


@dataclass(frozen=True, slots=True)
class NeuronRequest(Request):
    """`count` and `cores` assume devices of `USUAL_CORES`; `on` converts them for others."""

    whole: bool = False
    """whole devices, however many cores they have"""

    def on(self, per_device: int) -> tuple[int, int] | None:
        """(devices, cores of each) on devices of `per_device` cores; None where the cores would not fill devices."""
        if self.whole:
            return self.count, per_device
        total = self.count * self.cores
        if total <= per_device:
            return 1, total
        return (total // per_device, per_device) if total % per_device == 0 else None


class Neuron(Vendor):
    key = "AWSNeuron"
    request_type = NeuronRequest
    core_masks = True
    keys = AnnotationKeys(
        allocated="hami.io/aws-neuron-devices-allocated",
        use_uuids=("aws.amazon.com/use-neuron-uuid",),
        avoid_uuids=("aws.amazon.com/nouse-neuron-uuid",),
    )

    def mutate(self, container: ContainerDraft, pod: PodDraft) -> bool | Denied:
        found = self.request(container)
        return Denied(f"{found.resource} {found.advice}") if isinstance(found, BadRequest) else found is not None

    def request(self, resources: Resources) -> Request | BadRequest | None:
        if resources.text(self.names.count) is not None:
            count = self._positive(resources, self.names.count, most=INT32_MAX)
            if isinstance(count, BadRequest):
                return count
            return NeuronRequest(vendor=self.key, count=count, cores=USUAL_CORES, whole=True)
        if resources.text(self.names.cores) is None:
            return None
        cores = self._positive(resources, self.names.cores, most=INT32_MAX * USUAL_CORES)
        if isinstance(cores, BadRequest):
            return cores
        if cores <= USUAL_CORES:
            return NeuronRequest(vendor=self.key, count=1, cores=cores)
        if cores % USUAL_CORES:
            advice = f"must be 1 or a multiple of {USUAL_CORES}, got {cores}"
            return BadRequest(self.names.cores, str(cores), advice)
        return NeuronRequest(vendor=self.key, count=cores // USUAL_CORES, cores=USUAL_CORES)

    def max_cores(self, cards: int) -> int:
        """Cores are a number, and how many a device has depends on the node."""
        return INT32_MAX * USUAL_CORES

    def _positive(self, resources: Resources, name: str, *, most: int) -> int | BadRequest:
        text = resources.text(name)
        match read(text if text is not None else ""):
            case Whole(value) if value <= 0:
                advice = "must be greater than 0"
            case Whole(value) if value > most:
                advice = f"must not exceed {most}"
            case Whole(value):
                return value
            case _:
                advice = "must be an integer"
        return BadRequest(name, str(text), advice)

    def devices(self, node: Node) -> tuple[Device, ...] | NodeProblem:
        count = capacity_of(node, self.names.count, most=MAX_CARDS)
        cores = capacity_of(node, self.names.cores)
        if isinstance(count, NodeProblem):
            return count
        if isinstance(cores, NodeProblem):
            return cores
        if count == 0:
            return ()
        # Without a resource for cores no pod can ask for one, so a device is indivisible.
        per_device = cores // count if self.names.cores else 1
        if not 1 <= per_device <= MAX_CORES:
            return NodeProblem(
                f"{count} {self.names.count} with {cores} {self.names.cores} would be {per_device} cores a device,"
                f" not 1 to {MAX_CORES}"
            )
        card = Device(
            f"{node.name}-{self.key}", self.key, slots=per_device, cores=(1 << per_device) - 1, model=self.key
        )
        instance = node.labels.get(INSTANCE_TYPE_LABEL, "")
        return alike_cards(replace(card, custom={INSTANCE_TYPE: instance}), count)

    def least_cards(self, request: Request) -> int:
        """How many devices a number of cores takes depends on the node's devices."""
        return request.count if as_neuron(request).whole else 1

    def fit(self, ask: Ask) -> Grants | Misfit:
        per_device = max((card.device.slots for card in ask.cards), default=0)
        asked = as_neuron(ask.request).on(per_device) if per_device else None
        if asked is None:
            return verdict(self, ask, [CardMisfit(card.device.uuid, Reason.MODE_NOT_FIT) for card in ask.cards])
        devices, cores = asked
        return self._cores_of_one(ask, cores) if devices == 1 else self._neighbours(ask, devices)

    def _cores_of_one(self, ask: Ask, cores: int) -> Grants | Misfit:
        fitting, refused = judge_all(ask, lambda card: self._judge_cores(card, ask, cores))
        return (fitting[0][1],) if fitting else verdict(self, ask, refused)

    def _judge_cores(self, card: Card, ask: Ask, cores: int) -> Grant | CardMisfit:
        refusal = card_checks.refuse_identity(self, ask, card) or card_checks.refuse_sharing(self, ask, card)
        if refusal is not None:
            return refusal
        free = free_cores(card)
        if len(free) < cores:
            return CardMisfit(
                card.device.uuid,
                Reason.CARD_INSUFFICIENT_CORES,
                asked=cores,
                free=len(free),
                total=card.device.cores.bit_count(),
            )
        grant = self._granted(card, ask, sum(1 << core for core in free[:cores]))
        return refuse_unpaid(ask, card, grant) or grant

    def _neighbours(self, ask: Ask, devices: int) -> Grants | Misfit:
        fitting, refused = judge_all(ask, lambda card: self._judge_whole(card, ask))
        if len(fitting) < devices:
            return verdict(self, ask, refused, taken=len(fitting))
        run = neighbours(fitting, devices)
        if run is None:
            return verdict(self, ask, [*refused, *all_as(Reason.NUMA_NOT_FIT, fitting, asked=devices)])
        if not pays_together(ask.room, run):
            return verdict(self, ask, [*refused, *all_as(Reason.QUOTA_NOT_FIT, fitting, asked=devices)])
        return run

    def _judge_whole(self, card: Card, ask: Ask) -> Grant | CardMisfit:
        refusal = card_checks.refuse_identity(self, ask, card) or refuse_used(card)
        return refusal or self._granted(card, ask, card.device.cores)

    def _granted(self, card: Card, ask: Ask, mask: int) -> Grant:
        device = card.device
        custom: Mapping[str, str] = {IDS: str(device.index)}
        if not as_neuron(ask.request).whole:
            ids = (device.slots * device.index + core for core in range(device.slots) if mask >> core & 1)
            custom = {IDS: ",".join(map(str, ids)), RESOURCE: self.names.cores}
        return Grant(uuid=device.uuid, vendor=self.key, memory=0, cores=mask, index=device.index, custom=custom)

    def charge(self, device: Device, grant: Grant) -> Use:
        return Use(slots=grant.slots, memory=grant.memory, cores=grant.cores)

    def annotations(self, bound: Bound) -> dict[str, str]:
        written = super().annotations(bound)
        granted = [grant for container in bound.grants for grant in container]
        if granted:
            written["AWS_NEURON_IDS"] = ",".join(grant.custom[IDS] for grant in granted)
            written["NEURON_ALLOC_TIME"] = bound.nanoseconds
            written["NEURON_ALLOCATED"] = "false"
            written["aws.amazon.com/predicate-node"] = bound.node
        for grant in granted:
            if RESOURCE in grant.custom:
                written["NEURON_RESOURCE_TYPE"] = grant.custom[RESOURCE]
        return written


def as_neuron(request: Request) -> NeuronRequest:
    """A plain request, which this vendor did not parse itself, asks for cores."""
    if isinstance(request, NeuronRequest):
        return request
    return NeuronRequest(vendor=request.vendor, count=request.count, cores=max(request.cores, 1))


def free_cores(card: Card) -> list[int]:
    """Core ids on the device, ascending."""
    free = card.device.cores & ~card.used_cores
    return [core for core in range(card.device.cores.bit_length()) if free >> core & 1]


def neighbours(fitting: Fitting, devices: int) -> Grants | None:
    """The first run of `devices` adjacent indexes; outside Inferentia only aligned runs of certain sizes are linked."""
    by_index = {card.device.index: grant for card, grant in fitting}
    instance = str(fitting[0][0].device.custom.get(INSTANCE_TYPE, ""))
    anywhere = instance.lower().startswith("inf")
    if not anywhere and devices not in ALIGNED_SIZES:
        return None
    length = 0
    for index in sorted(by_index):
        length = length + 1 if index - 1 in by_index else 1
        start = index - devices + 1
        if length >= devices and (anywhere or start % devices == 0):
            return tuple(by_index[i] for i in range(start, index + 1))
    return None


FAMILY = Family(title="AWS Neuron", section="awsneuron", chart=CHART, build=lambda section, _: [Neuron(section.names)])
