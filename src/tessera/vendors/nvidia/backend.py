"""NVIDIA: shares by memory and cores, whole cards and MIG instances; its section of device-config.yaml.

Admission warns about what surprises people (a plain count means the whole card, memory wins over percentage, shares of
cores are not exact) and changes only containers that ask for a card. The choice of a MIG instance is in `core.mig`.

MIG instances have no name before Allocate makes them, so a container cannot read them through the downward API: a pod
gets them only if it names the mode. That holds for pods that bypassed the webhook too, so that there is one rule. MPS
has one daemon per card and a process talks to one daemon, so a container gets one such card. Cards that name no mode
accept every pod.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Annotated, Any, Literal

from msgspec import Meta, field

from tessera.core.model.devices import HAMI_CORE, MIG, MPS, WHOLE, Device
from tessera.core.model.requests import WHOLE_CARD_CORES, Constraint, PodRequest, Request, names_word
from tessera.vendors.annotation_values import Choice
from tessera.vendors.base import Amount, AnnotationKeys, Bound, NodeProblem, Section, SharedSection, Vendor
from tessera.vendors.drafts import BadPod, BadRequest, ContainerDraft, Denied, PodDraft, Resources
from tessera.vendors.nvidia.downward_api import CORE_POLICY, PROTECTED, NvidiaDownwardApi
from tessera.vendors.parts.card_shares import WHOLE_MEMORY
from tessera.wire.errors import WireError, quoted, shortened
from tessera.wire.keys import MIG_ALLOCATIONS, NODE_LOCK
from tessera.wire.objects import Node
from tessera.wire.pod_devices import MigAllocation, encode_mig_allocations
from tessera.wire.registration import decode_pair_scores

Scaling = Annotated[float, Meta(ge=0)]


class MigAllowance(Section, frozen=True, kw_only=True):
    """Profiles that a model of card may be cut into. Node agents read it: cards register what they offer."""

    models: tuple[str, ...] = ()
    """parts of product names"""
    profiles: tuple[str, ...] = ()


def validate_mig_allowlist(allowlist: Iterable[MigAllowance]) -> None:
    """Raise ValueError unless every entry has models and well-formed profiles, such as `2g.20gb`."""
    for entry in allowlist:
        if not entry.models or not entry.profiles:
            raise ValueError("invalid MIG profile allowlist: MIG profile allowlist must define models and profiles")
        for profile in entry.profiles:
            slices, dot, _ = profile.partition(".")
            if not dot or len(slices) < 2 or not slices.endswith("g"):
                raise ValueError(f"invalid MIG profile allowlist: invalid MIG profile {quoted(profile)}")


def _allow(models: str, profiles: str) -> MigAllowance:
    return MigAllowance(
        models=tuple(model.strip() for model in models.split(",")),
        profiles=tuple(profiles.split()),
    )


CHART_ALLOWLIST = (
    _allow("A30", "1g.6gb 2g.12gb 4g.24gb"),
    _allow("A100-SXM4-40GB, A100-40GB-PCIe, A100-PCIE-40GB", "1g.5gb 2g.10gb 3g.20gb 7g.40gb"),
    # The driver calls the whole A100 80GB 7g.79gb, unlike its siblings.
    _allow("A100-SXM4-80GB, A100-80GB-PCIe, A100-PCIE-80GB", "1g.10gb 2g.20gb 3g.40gb 7g.79gb"),
    _allow("H100-PCIE-80GB, H100-SXM5-80GB", "1g.10gb 2g.20gb 3g.40gb 7g.80gb"),
    _allow("H100-PCIE-94GB, H100-SXM5-94GB", "1g.12gb 2g.24gb 3g.47gb 7g.94gb"),
    _allow("H20, H100 on GH200", "1g.12gb 2g.24gb 3g.48gb 7g.96gb"),
    _allow("H200 NVL, H200-SXM5", "1g.18gb 2g.35gb 3g.71gb 7g.141gb"),
    _allow("B200", "1g.23gb 2g.45gb 3g.90gb 7g.180gb"),
    _allow("RTX PRO 6000 Blackwell Server Edition", "1g.24gb 2g.48gb 4g.96gb"),
)


class NvidiaSection(SharedSection, frozen=True, kw_only=True):
    resource_memory_percentage_name: str = ""
    resource_priority_name: str = ""
    overwrite_env: bool = False
    """hide all cards from containers that ask for none"""
    default_memory: Amount = 0
    """MiB for a container that names no memory; 0 = the whole card"""
    default_cores: Amount = 0
    default_gpu_num: Amount = field(default=0, name="defaultGPUNum")
    """cards for a container that names only memory or cores; 0 = it requests nothing"""
    memory_factor: Amount = 0
    """MiB per unit of memory in pods and quotas; 0 means 1"""
    gpu_core_policy: Literal["", "default", "force", "disable"] = ""
    runtime_class_name: str = ""
    mig_profile_allowlist: tuple[MigAllowance, ...] = ()
    known_mig_geometries: tuple[Any, ...] = ()
    """HAMi v2.5 to v2.9: accepted so that old files load; cards register their own profiles now"""

    # Only node agents read the rest; None = not configured.
    device_split_count: Amount | None = None
    device_memory_scaling: Scaling | None = None
    device_core_scaling: Scaling | None = None
    pre_configured_device_memory: Amount | None = None
    """MiB of cards that do not report their memory"""
    enable_numa_topology: bool | None = None
    lib_cuda_log_level: int | str | None = None
    disable_core_limit: bool | None = None


CHART = NvidiaSection(
    resource_count_name="nvidia.com/gpu",
    resource_memory_name="nvidia.com/gpumem",
    resource_memory_percentage_name="nvidia.com/gpumem-percentage",
    resource_core_name="nvidia.com/gpucores",
    resource_priority_name="nvidia.com/priority",
    default_gpu_num=1,
    memory_factor=1,
    gpu_core_policy="default",
    mig_profile_allowlist=CHART_ALLOWLIST,
    device_split_count=10,
    device_memory_scaling=1.0,
    device_core_scaling=1.0,
    pre_configured_device_memory=0,
    enable_numa_topology=False,
    lib_cuda_log_level=1,
)


MODES = (HAMI_CORE, MIG, MPS, WHOLE)


def mode_words(text: str) -> list[str]:
    """The words of a mode annotation, whatever stands between them."""
    return [word for word in re.split(r"[^\w.-]+", text) if word]


def names_any_mode(word: str) -> bool:
    return any(names_word(word, mode) for mode in MODES)


def narrow_modes(pod: PodRequest, vendor: str) -> Constraint | BadPod:
    """The pod's constraint with only the modes that work."""
    constraint = pod.constraint(vendor)
    several = _container_with_several(pod, vendor)
    accepted, usable = _modes(constraint.mode, several=several is not None)
    if several is not None and accepted and not usable:
        return BadPod(several, f"cards in mode {MPS} are given to a container one at a time: ask for one")
    return constraint if usable == accepted else replace(constraint, mode=",".join(usable))


@lru_cache(maxsize=256)
def _modes(mode: str | None, *, several: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The modes that the pod accepts, and those of them that work."""
    refused = {MPS} if several else set()
    if mode is None:
        refused.add(MIG)
    accepted = tuple(one for one in MODES if mode is None or names_word(mode, one))
    return accepted, tuple(one for one in accepted if one not in refused)


def _container_with_several(pod: PodRequest, vendor: str) -> str | None:
    """The first container that asks for more than one card of the vendor."""
    for container in pod.containers:
        if any(request.vendor == vendor and request.count > 1 for request in container.requests):
            return container.name
    return None


PRIORITY_ENV = "CUDA_TASK_PRIORITY"
PAIR_SCORES = "hami.io/node-nvidia-score"

POLICY_EFFECTS = {
    "force": "is enforced even while the card is idle",
    "disable": "is not enforced",
}
"""the effect of an administrator's core policy on a container's share of cores"""


class Nvidia(Vendor):
    key = "NVIDIA"
    arrays_exact = True
    honours_cordon = True
    keys = AnnotationKeys(
        register="hami.io/node-nvidia-register",
        handshake="hami.io/node-handshake",
        to_allocate="hami.io/vgpu-devices-to-allocate",
        allocated="hami.io/vgpu-devices-allocated",
        use_models="nvidia.com/use-gputype",
        avoid_models="nvidia.com/nouse-gputype",
        use_uuids=("nvidia.com/use-gpuuuid",),
        avoid_uuids=("nvidia.com/nouse-gpuuuid",),
        mode="nvidia.com/vgpu-mode",
        lock=NODE_LOCK,
    )
    mode_annotation = keys.mode
    closed = (Choice(key=keys.mode, words=MODES, accepts=names_any_mode, split=mode_words, is_required=True),)
    protected = PROTECTED

    def __init__(self, section: NvidiaSection) -> None:
        validate_mig_allowlist(section.mig_profile_allowlist)
        self.section = section
        self.percentage = section.resource_memory_percentage_name
        self.priority = section.resource_priority_name
        super().__init__(replace(section.names, others=(self.percentage, self.priority)))
        self.quota_factor = max(section.memory_factor, 1)
        self.default_cores = section.default_cores
        self.hides_devices = section.overwrite_env
        self.downward_api = NvidiaDownwardApi(core_policy="disable" if section.disable_core_limit else "default")

    def mutate(self, container: ContainerDraft, pod: PodDraft) -> bool | Denied:
        percent = container.text(self.percentage)
        if percent is not None and isinstance(container.amount(self.percentage, most=WHOLE_MEMORY), BadRequest):
            return Denied(
                f"invalid {self.percentage} value {shortened(str(percent))} in container {container.name}: "
                f"must be an integer between 0 and {WHOLE_MEMORY}"
            )
        if not self._asks(container):
            return False
        priority = container.amount(self.priority, limits_only=True)
        if isinstance(priority, BadRequest):
            return Denied(f"container {container.name}: {priority.text}")
        if priority is not None:
            container.env[PRIORITY_ENV] = str(priority)
        self._complete_cores(container, pod)
        self._apply_core_policy(container, pod)
        self._warn_of_best_effort(container, pod)
        if percent is not None and container.amount(self.names.memory) not in (None, 0):
            pod.warn(f"container {container.name}: {self.names.memory} decides, {self.percentage} beside it is ignored")
        if pod.runtime_class is None and self.section.runtime_class_name:
            pod.runtime_class = self.section.runtime_class_name
        return True

    @property
    def parts(self) -> tuple[str, ...]:
        return *super().parts, self.percentage

    def least_memory(self, annotations: Mapping[str, str]) -> int:
        """A MIG instance has at least what its profile has, and 1 MiB asks for the smallest."""
        return 0 if names_word(annotations.get(self.keys.mode, ""), MIG) else super().least_memory(annotations)

    def _asks(self, container: ContainerDraft) -> bool:
        """Whether the container gets a card. Adds the default count to a container that names only memory or cores."""
        count = container.amount(self.names.count)
        if count is not None:
            return count != 0
        parts = (self.names.memory, self.percentage, self.names.cores)
        default = self.section.default_gpu_num
        if not default or not self.names.count or all(container.text(n, limits_only=True) is None for n in parts):
            return False
        container.limits[self.names.count] = str(default)
        return True

    def _complete_cores(self, container: ContainerDraft, pod: PodDraft) -> None:
        """A request without memory and cores is for whole cards."""
        name = self.names.cores
        if not name or container.text(name) is not None:
            return
        if container.text(self.percentage) is not None:
            whole = container.amount(self.percentage) == WHOLE_MEMORY
        else:
            whole = container.text(self.names.memory) is None
        if whole:
            container.limits[name] = str(WHOLE_CARD_CORES)
            pod.warn(
                f"container {container.name}: gets whole cards ({name}: {WHOLE_CARD_CORES}) for itself; "
                f"ask for {' or '.join(n for n in (self.names.memory, name) if n)} to share them"
            )

    def _apply_core_policy(self, container: ContainerDraft, pod: PodDraft) -> None:
        policy = self.section.gpu_core_policy
        effect = POLICY_EFFECTS.get(policy)
        if effect is None:
            return
        container.env[CORE_POLICY] = policy
        if container.amount(self.names.cores) not in (None, 0, WHOLE_CARD_CORES):
            pod.warn(f"container {container.name}: in this cluster {self.names.cores} {effect} (core policy {policy})")

    def _warn_of_best_effort(self, container: ContainerDraft, pod: PodDraft) -> None:
        """HAMi-core counts the blocks of kernels, and large kernels have few: measured, they exceed their share."""
        cores, modes = container.amount(self.names.cores), pod.annotations.get(self.keys.mode, HAMI_CORE)
        is_off = self.section.disable_core_limit or self.section.gpu_core_policy == "disable"
        if is_off or isinstance(cores, BadRequest) or not 0 < (cores or 0) < WHOLE_CARD_CORES:
            return
        if not names_word(modes, HAMI_CORE):
            return
        # Without the container's name: the same sentence is shown once per pod.
        pod.warn(
            f"{self.names.cores} is best effort on cards in mode {HAMI_CORE}, large kernels exceed their share; "
            f"{self.keys.mode}: {MPS} or {MIG} asks for cards that enforce it, if this cluster has them"
        )

    def request(self, resources: Resources) -> Request | BadRequest | None:
        found, percent = super().request(resources), resources.amount(self.percentage)
        if not isinstance(found, Request) or (found.memory and not isinstance(percent, BadRequest)):
            return found
        if isinstance(percent, BadRequest):
            return percent
        memory = 0 if percent else self.section.default_memory
        return replace(found, memory=memory, percent=0 if memory else min(percent or WHOLE_MEMORY, WHOLE_MEMORY))

    def narrow(self, pod: PodRequest) -> Constraint | BadPod:
        return narrow_modes(pod, self.key)

    def devices(self, node: Node) -> tuple[Device, ...] | NodeProblem:
        cards = super().devices(node)
        scores = node.annotations.get(PAIR_SCORES)
        if isinstance(cards, NodeProblem) or not scores:
            return cards
        try:
            links = decode_pair_scores(scores)
        except WireError:
            # Scores only order cards that fit: without them the cards stay usable.
            return cards
        return tuple(replace(card, links=links[card.uuid]) if card.uuid in links else card for card in cards)

    def annotations(self, bound: Bound) -> dict[str, str]:
        written = super().annotations(bound)
        allocations = []
        for position, grants in enumerate(bound.grants):
            for index, grant in enumerate(grants):
                if grant.mig is not None:
                    slot = MigAllocation(container=position, device=index, uuid=grant.uuid, slot=grant.mig)
                    allocations.append(slot)
        if allocations:
            written[MIG_ALLOCATIONS] = encode_mig_allocations(allocations)
        return written
