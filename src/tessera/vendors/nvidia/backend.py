"""NVIDIA: shares by memory and cores, whole cards and MIG instances.

Admission warns about what surprises people (a plain count means the whole card, memory wins over percentage, shares of
cores are not exact) and changes only containers that ask for a card. The choice of a MIG instance is in `core.mig`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tessera.core.model.devices import HAMI_CORE, MIG, MPS, Device
from tessera.core.model.requests import WHOLE_CARD_CORES, Constraint, PodRequest, Request, names_word
from tessera.vendors.annotation_values import Choice
from tessera.vendors.base import AnnotationKeys, Bound, NodeProblem, Vendor
from tessera.vendors.drafts import BadPod, BadRequest, ContainerDraft, Denied, PodDraft, Resources
from tessera.vendors.nvidia.downward_api import CORE_POLICY, PROTECTED, NvidiaDownwardApi
from tessera.vendors.nvidia.section import NvidiaSection, validate_mig_allowlist
from tessera.vendors.nvidia.sharing_modes import MODES, mode_words, names_any_mode, narrow_modes
from tessera.vendors.parts.card_shares import WHOLE_MEMORY
from tessera.wire.errors import WireError
from tessera.wire.keys import MIG_ALLOCATIONS, NODE_LOCK
from tessera.wire.mig import MigAllocation, encode_mig_allocations
from tessera.wire.objects import Node
from tessera.wire.quotes import shortened
from tessera.wire.registration import decode_pair_scores

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
