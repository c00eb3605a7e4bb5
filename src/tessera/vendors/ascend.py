"""Huawei Ascend NPUs: one vendor per chip type in the section `vnpus`.

A pod takes whole chips, one template of a chip, or (soft split, by annotation) any part of it. A chip can only be cut
along its templates, so a memory request is rounded up to the smallest that holds it (`Chip.template`); soft-split pods
get exactly what they ask for. Chips of the 910 line prefer one network; the 910C of a super pod comes in modules of two
chips that are only granted together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

from msgspec import Meta, field

from tessera.core.fit import card_checks
from tessera.core.fit.card_checks import Fitting
from tessera.core.fit.device_rules import Ask
from tessera.core.model.devices import Device, NodeFacts
from tessera.core.model.grants import Grant, Grants
from tessera.core.model.misfits import CardMisfit, Misfit, Reason
from tessera.core.model.node_info import Card, NodeInfo
from tessera.core.model.requests import Constraint, PodRequest, Request
from tessera.vendors.annotation_values import Choice
from tessera.vendors.base import (
    Amount,
    AnnotationKeys,
    Bound,
    Family,
    NodeProblem,
    ResourceNames,
    Section,
    Switches,
    Vendor,
)
from tessera.vendors.downward_api import ProtectedVariables
from tessera.vendors.drafts import BadRequest, ContainerDraft, Denied, PodDraft, Resources
from tessera.vendors.parts.card_shares import MAX_MIB_OF_A_CARD
from tessera.wire.golang import encode
from tessera.wire.keys import NODE_LOCK
from tessera.wire.objects import Node

Word = Annotated[str, Meta(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$", max_length=32)]
"""becomes a part of annotation keys"""


class Template(Section, frozen=True, kw_only=True):
    """A way to cut a part from a chip; without a name it stands for the whole chip."""

    name: str = ""
    memory: Amount = 0
    """MiB"""
    ai_core: Amount = 0
    ai_cpu: Amount = field(default=0, name="aiCPU")


class Chip(Section, frozen=True, kw_only=True):
    common_word: Word
    """the backend's key"""
    chip_name: str = ""
    resource_name: str = ""
    resource_memory_name: str = ""
    resource_core_name: str = ""
    memory_allocatable: Amount = 0
    """MiB that a whole chip gives"""
    memory_capacity: Amount = 0
    """MiB that may be asked for; the chip keeps the difference"""
    memory_factor: Amount = 0
    """MiB per unit of memory in pods and quotas; 0 means 1"""
    ai_core: Amount = 0
    ai_cpu: Amount = field(default=0, name="aiCPU")
    runtime_class_name: str = ""
    overwrite_env: bool = False
    """hide all chips from containers that ask for none"""
    super_pod: bool = False
    templates: tuple[Template, ...] = ()

    def template(self, memory: int) -> Template | None:
        """The template or whole chip that serves a request for `memory` MiB; None if no chip has that much."""
        for template in sorted(self.templates, key=lambda t: (t.memory, t.name)):
            if 0 < template.memory >= memory:
                return template
        whole = Template(memory=self.memory_allocatable)
        return whole if whole.memory > 0 and memory <= self.memory_capacity else None


class AscendSection(Section, frozen=True, kw_only=True):
    hami_vnpu_core: bool = False
    """nodes take soft-split pods unless they say otherwise"""
    configs: tuple[Chip, ...] = ()
    """HAMi up to v2.8 had this list as the section"""


Cut = tuple[str, int, int, int]
"""name, memory in MiB, AI cores, AI CPUs"""


def _chip(
    word: str, chip_name: str, *, memory: int, ai_core: int, ai_cpu: int, cuts: tuple[Cut, ...], **other: Any
) -> Chip:
    return Chip(
        common_word=word,
        chip_name=chip_name,
        resource_name=f"huawei.com/{word}",
        resource_memory_name=f"huawei.com/{word}-memory",
        resource_core_name=f"huawei.com/{word}-core",
        memory_allocatable=memory,
        memory_factor=1,
        ai_core=ai_core,
        ai_cpu=ai_cpu,
        templates=tuple(Template(name=n, memory=m, ai_core=core, ai_cpu=cpu) for n, m, core, cpu in cuts),
        **{"memory_capacity": memory, **other},
    )


CUTS_64G_20 = (("vir05_1c_16g", 16384, 5, 1), ("vir10_3c_32g", 32768, 10, 3))
"""of chips with 64 GiB and 20 AI cores"""

CHART = AscendSection(
    configs=(
        _chip(
            "Ascend910A",
            "910A",
            memory=32768,
            ai_core=30,
            ai_cpu=0,
            cuts=(("vir02", 2184, 2, 0), ("vir04", 4369, 4, 0), ("vir08", 8738, 8, 0), ("vir16", 17476, 16, 0)),
        ),
        _chip(
            "Ascend910B2",
            "910B2",
            memory=65536,
            ai_core=24,
            ai_cpu=6,
            cuts=(("vir03_1c_8g", 8192, 3, 1), ("vir06_1c_16g", 16384, 6, 1), ("vir12_3c_32g", 32768, 12, 3)),
        ),
        _chip("Ascend910B3", "910B3", memory=65536, ai_core=20, ai_cpu=7, cuts=CUTS_64G_20),
        _chip("Ascend910B4-1", "910B4-1", memory=65536, ai_core=20, ai_cpu=7, cuts=CUTS_64G_20),
        _chip(
            "Ascend910B4",
            "910B4",
            memory=32768,
            ai_core=20,
            ai_cpu=7,
            cuts=(("vir05_1c_8g", 8192, 5, 1), ("vir10_3c_16g", 16384, 10, 3)),
        ),
        _chip(
            "Ascend310P",
            "310P3",
            memory=21527,
            memory_capacity=24576,
            ai_core=8,
            ai_cpu=7,
            cuts=(("vir01", 3072, 1, 1), ("vir02", 6144, 2, 2), ("vir04", 12288, 4, 4)),
        ),
        _chip("Ascend910C", "Ascend910", memory=65536, ai_core=20, ai_cpu=7, cuts=CUTS_64G_20, super_pod=True),
    )
)


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


__all__ = ["FAMILY", "Ascend"]


def build(section: AscendSection, switches: Switches) -> list[Vendor]:
    if not switches.ascend:
        return []
    return [Ascend(chip, soft_split=section.hami_vnpu_core) for chip in section.configs]


FAMILY = Family(title="Huawei Ascend", section="vnpus", chart=CHART, build=build, list_key="configs")
