"""Puts a slice's variables into the containers that get one, in place of whatever the tenant set.

Variables that would loosen a limit go too, unless the container has its cards alone. Repeating it changes nothing.
What comes through `envFrom` is not looked at: it never counts against a variable that is injected here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tessera.core.requests import WHOLE_CARD_CORES, PodRequest, Request
from tessera.scheduler.admission.identity import CARRIED, identity_env, is_slice_reference, travels
from tessera.scheduler.admission.pod_draft import Document, containers_of, with_containers, with_env, written_variables
from tessera.scheduler.admission.reserved_annotations import listed
from tessera.vendors.drafts import PodDraft

SWITCHES = frozenset({"CUDA_DISABLE_CONTROL", "CUDA_REDIRECT"})
"""turn HAMi-core off, or into another library"""
CORE_POLICY = "GPU_CORE_UTILIZATION_POLICY"
HARMLESS_POLICIES = frozenset({"", "default", "force", "FORCE"})


@dataclass(frozen=True, slots=True)
class Injection:
    """How slices are injected."""

    hook_path: str = "/usr/local"
    """directory in containers under which the agent mounts `vgpu`"""
    allow_disable_control: bool = False
    """let tenants turn HAMi-core off on cards that they share"""


def with_identity(
    document: Document, request: PodRequest, *, draft: PodDraft, skipped: frozenset[int], injection: Injection
) -> Document:
    """The document with the variables of every slice that travels, except in containers at `skipped` positions.

    `draft` holds what vendors wrote, and takes the warnings about what was replaced or removed.
    """
    containers = containers_of(document)
    for position, asked in _carried(request, skipped):
        name = request.containers[position].name
        sorting = _Sorting(
            asked,
            written=written_variables(draft.containers[position]),
            shared=asked.cores < WHOLE_CARD_CORES and not injection.allow_disable_control,
        )
        kept = [entry for entry in containers[position].get("env") or () if sorting.keeps(entry)]
        if sorting.replaced:
            names = listed(sorting.replaced)
            draft.warn(f"container {name}: {names}: the granted slice decides, the pod's own values do not count")
        if sorting.removed:
            names = listed(sorting.removed)
            draft.warn(f"container {name}: {names} removed: the limits on a shared card are not optional")
        if travels(asked, request):
            hook_path, devices = injection.hook_path, asked.count
            kept[:0] = identity_env(asked.vendor, container=position, name=name, devices=devices, hook_path=hook_path)
        containers[position] = with_env(containers[position], kept)
    return with_containers(document, containers)


def _carried(request: PodRequest, skipped: frozenset[int]) -> Iterator[tuple[int, Request]]:
    for position, ask in enumerate(request.containers):
        for asked in ask.requests:
            if asked.vendor in CARRIED and position not in skipped:
                yield position, asked


class _Sorting:
    """Tells a container's own variables from those that a slice decides."""

    def __init__(self, asked: Request, *, written: Mapping[str, str], shared: bool) -> None:
        self._owned = CARRIED[asked.vendor].owned
        self._written = written
        self._shared = shared
        self.replaced: list[str] = []
        self.removed: list[str] = []

    def keeps(self, entry: Document) -> bool:
        name = entry.get("name", "")
        if self._owned.fullmatch(name):
            if not is_slice_reference(entry):
                self.replaced.append(name)
            return False
        if self._shared and name not in self._written and _loosens(name, entry):
            self.removed.append(name)
            return False
        return True


def _loosens(name: str, entry: Document) -> bool:
    if name == CORE_POLICY:
        return "valueFrom" in entry or entry.get("value", "") not in HARMLESS_POLICIES
    return name in SWITCHES
