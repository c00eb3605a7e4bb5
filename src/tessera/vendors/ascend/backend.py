"""Huawei Ascend NPUs: one backend per chip type in the configuration.

A pod takes whole chips, one template of a chip, or (soft split, by annotation) any part of it. Chips of the 910 line
prefer one network; the 910C of a super pod comes in modules of two chips that are only granted together.
The chip types and their templates are in `templates`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from tessera.core.fit import card_checks
from tessera.core.fit.card_checks import Fitting
from tessera.core.fit.device_rules import Ask
from tessera.core.model.devices import Device, NodeFacts
from tessera.core.model.grants import Grant, Grants
from tessera.core.model.misfits import CardMisfit, Misfit, Reason
from tessera.core.model.node_info import Card, NodeInfo
from tessera.core.model.requests import Constraint, PodRequest, Request
from tessera.vendors.annotation_values import Choice
from tessera.vendors.ascend.templates import Chip
from tessera.vendors.base import AnnotationKeys, Bound, NodeProblem, ResourceNames, Vendor
from tessera.vendors.downward_api import ProtectedVariables
from tessera.vendors.drafts import BadRequest, ContainerDraft, Denied, PodDraft, Resources
from tessera.vendors.parts.card_shares import MAX_MIB_OF_A_CARD
from tessera.wire.gojson import encode
from tessera.wire.keys import NODE_LOCK
from tessera.wire.objects import Node

MODE = "huawei.com/vnpu-mode"
SOFT = "hami-core"
SOFT_NODE = "hami-vnpu-core"
"""node annotation: `true` where the node takes soft-split pods"""
VISIBLE = "ASCEND_VISIBLE_DEVICES"
PROTECTED = ProtectedVariables(devices=VISIBLE, no_devices="", harmless=frozenset({"void"}), stems=(VISIBLE,))

NETWORKED = "Ascend910"
"""chips whose name starts like this register their network"""
NETWORK = "NetworkID"
NETWORK_WEIGHT = 10
PAIRED = "Ascend910C"
SOFT_CORES = 100
"""per cent, the unit of soft split; nodes register AI cores, which no pod can ask for"""


class Ascend(Vendor):
    protected = PROTECTED
    closed = (Choice(key=MODE, words=(SOFT,)),)

    def __init__(self, chip: Chip, *, soft_split: bool = False) -> None:
        super().__init__(
            ResourceNames(count=chip.resource_name, memory=chip.resource_memory_name, cores=chip.resource_core_name)
        )
        word = chip.common_word
        self.chip = chip
        self.key = word
        self.hides_devices = chip.overwrite_env
        self.soft_split = soft_split
        self.pairs = word == PAIRED and chip.super_pod
        self.scores_nodes = word.startswith(NETWORKED)
        self.quota_factor = max(chip.memory_factor, 1)
        self.keys = AnnotationKeys(
            register=f"hami.io/node-register-{word}",
            handshake=f"hami.io/node-handshake-{word}",
            to_allocate=f"hami.io/{word}-devices-to-allocate",
            allocated=f"hami.io/{word}-devices-allocated",
            use_uuids=(f"hami.io/use-{word}-uuid",),
            avoid_uuids=(f"hami.io/no-use-{word}-uuid",),
            settings=(MODE,),
            traits=(SOFT_NODE,),
            lock=NODE_LOCK,
        )

    def mutate(self, container: ContainerDraft, pod: PodDraft) -> bool | Denied:
        count = container.amount(self.names.count, limits_only=True)
        if count is None:
            return False
        if isinstance(count, BadRequest) or count == 0:
            return True
        if self.pairs and count == 1:
            self._round_to_pair(container, pod)
        elif self.pairs and count % 2:
            return Denied(f"{self.key} device request must be 1 or 2*n, got {count}")
        soft = pod.annotations.get(MODE) == SOFT
        cores = container.amount(self.names.cores)
        if cores and not isinstance(cores, BadRequest) and not soft:
            return Denied(f"{self.names.cores} is only supported in {SOFT} (soft split) mode")
        denied = self._complete_memory(container, pod, count=count, soft=soft)
        if denied is not None:
            return denied
        if pod.runtime_class is None and self.chip.runtime_class_name:
            pod.runtime_class = self.chip.runtime_class_name
        return True

    def _round_to_pair(self, container: ContainerDraft, pod: PodDraft) -> None:
        container.limits[self.names.count] = str(2)
        if self.names.count in container.requests:
            container.set_both(self.names.count, 2)
        pod.warn(f"{self.names.count}: 1 was raised to 2, because a module holds two chips")

    def _complete_memory(self, container: ContainerDraft, pod: PodDraft, *, count: int, soft: bool) -> Denied | None:
        """Write the container's share of each chip into its limits."""
        name, factor, whole = self.names.memory, self.quota_factor, self.chip.memory_allocatable
        asked = container.amount(name, limits_only=True, most=MAX_MIB_OF_A_CARD // factor)
        if isinstance(asked, BadRequest) or not name:
            return None
        if asked is None:
            units = min(whole, max(whole // factor, 1))
        elif soft:
            units = asked
        else:
            template = self.chip.template(asked * factor)
            if template is None:
                return Denied(f"{name} {asked} is invalid")
            # A module counts as one: a pod whose request was raised to two chips must be admitted again.
            if count > (2 if self.pairs else 1) and template.memory != whole:
                return Denied("vNPU not supported for multiple devices")
            units = template.memory if factor == 1 else max(asked, template.memory // factor)
            if units != asked:
                pod.warn(f"{name}: {asked} became {units}, the next size that {self.key} can be cut to")
        container.set_both(name, units)
        return None

    def least_memory(self, annotations: Mapping[str, str]) -> int:
        """Requests are rounded up to a template, but not in soft split."""
        return super().least_memory(annotations) if annotations.get(MODE) == SOFT else 0

    def request(self, resources: Resources) -> Request | BadRequest | None:
        asked = super().request(resources)
        if isinstance(asked, Request) and self.pairs and asked.count > 1 and asked.count % 2:
            return BadRequest(
                self.names.count, str(asked.count), "chips come in modules of two: write 1 or an even number"
            )
        return asked

    def devices(self, node: Node) -> tuple[Device, ...] | NodeProblem:
        found = super().devices(node)
        if isinstance(found, NodeProblem):
            return found
        return tuple(replace(device, cores=SOFT_CORES) for device in found)

    def fit(self, ask: Ask) -> Grants | Misfit:
        if _soft(ask.constraint):
            if not self._takes_soft(ask.node):
                wrong = [CardMisfit(card.device.uuid, Reason.MODE_NOT_FIT) for card in ask.cards]
                return card_checks.verdict(self, ask, wrong)
        else:
            ask = self._cut(ask)
        fitting, refused = card_checks.eligible(self, ask)
        if ask.request.count > 1:
            if self.scores_nodes and all(_network(card.device) is not None for card in ask.cards):
                fitting = _by_network(fitting)
            if self.pairs:
                fitting, single = _by_pair(fitting, one_numa=ask.pod.numa_bind)
                refused += [CardMisfit(card.device.uuid, Reason.TOO_FEW_CARDS) for card, _ in single]
        return card_checks.choose(self, ask, fitting, refused)

    def _takes_soft(self, node: NodeFacts) -> bool:
        said = node.traits.get(SOFT_NODE)
        return self.soft_split if said is None else said == "true"

    def _cut(self, ask: Ask) -> Ask:
        """The request rounded to a template; the webhook has already done so for pods that passed it."""
        template = self.chip.template(ask.request.memory) if ask.request.memory else None
        return ask if template is None else replace(ask, request=replace(ask.request, memory=template.memory))

    def node_score(self, node: NodeInfo, pod: PodRequest, grants: tuple[Grants, ...]) -> float:
        if not self.scores_nodes:
            return 0.0
        networks = {card.device.uuid: _network(card.device) for card in node.of_vendor(self.key)}
        score = 0.0
        for container in grants:
            sizes = Counter(networks.get(grant.uuid) for grant in container)
            if None in sizes:
                return 0.0
            if sizes:
                score += max(sizes.values()) / len(container)
        return score * NETWORK_WEIGHT

    def annotations(self, bound: Bound) -> dict[str, str]:
        soft = _soft(bound.pod.constraint(self.key))
        given = [self._given(grant, soft=soft) for container in bound.grants for grant in container]
        return {
            **super().annotations(bound),
            "predicate-time": str(int(bound.now)),
            f"huawei.com/{self.key}": encode(given),
        }

    def _given(self, grant: Grant, *, soft: bool) -> dict[str, str | int]:
        """One slice in the form that Huawei's plugin reads; zero values are omitted."""
        template = None if soft else self.chip.template(grant.memory)
        name = template.name if template else ""
        fields: dict[str, str | int] = {"UUID": grant.uuid, "temp": name, "memory": grant.memory, "core": grant.cores}
        return {key: value for key, value in fields.items() if value}


def _soft(constraint: Constraint) -> bool:
    return constraint.setting(MODE) == SOFT


def _network(device: Device) -> int | None:
    """The chip's network, if its node registered one."""
    value = device.custom.get(NETWORK)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if value == value // 1 else None


def _by_network(fitting: Fitting) -> Fitting:
    """Cards of the largest network first; the order within a network is kept."""
    sizes = Counter(_network(card.device) for card, _ in fitting)

    def rank(pair: tuple[Card, Grant]) -> tuple[int, int]:
        network = _network(pair[0].device)
        return -sizes[network], network or 0

    return sorted(fitting, key=rank)


def _by_pair(fitting: Fitting, *, one_numa: bool) -> tuple[Fitting, Fitting]:
    """The cards of complete modules, module by module, and the cards whose other half is missing."""
    modules: dict[tuple[int, int], dict[int, tuple[Card, Grant]]] = {}
    for card, grant in fitting:
        device = card.device
        half = modules.setdefault((device.index // 2, device.numa if one_numa else 0), {})
        half.setdefault(device.index, (card, grant))
    paired = [pair for module in modules.values() if len(module) == 2 for pair in module.values()]
    chosen = {card.device.uuid for card, _ in paired}
    return paired, [pair for pair in fitting if pair[0].device.uuid not in chosen]
