"""Injects a slice's variables into the containers that get one, replacing the tenant's own values.

Variables that would loosen a limit are removed, unless the container has its cards alone. Idempotent. `envFrom` is
ignored: it never overrides an injected variable.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tessera.core.requests import WHOLE_CARD_CORES, PodRequest, Request
from tessera.scheduler.admission.pod_draft import Document, containers_of, with_containers, with_env, written_variables
from tessera.scheduler.admission.reserved_annotations import listed
from tessera.vendors.base import Vendor
from tessera.vendors.downward_api import DownwardApi, container_env, injects_env, is_slice_reference
from tessera.vendors.drafts import PodDraft


@dataclass(frozen=True, slots=True)
class Injection:
    """How slices are injected."""

    hook_path: str = "/usr/local"
    """directory in containers under which the agent mounts `vgpu`"""
    allow_disable_control: bool = False
    """let tenants turn HAMi-core off on cards that they share"""


def with_slice_env(
    document: Document,
    request: PodRequest,
    *,
    vendors: Mapping[str, Vendor],
    draft: PodDraft,
    skipped: frozenset[int],
    injection: Injection,
) -> Document:
    """The document with the variables of every slice that uses the downward API, except in `skipped` positions.

    `draft` holds what vendors wrote, and takes the warnings about what was replaced or removed.
    """
    containers = containers_of(document)
    for position, asked, api in _requests(request, vendors, skipped):
        name = request.containers[position].name
        sorting = _Sorting(
            api,
            written=written_variables(draft.containers[position]),
            shared=asked.cores < WHOLE_CARD_CORES and not injection.allow_disable_control,
        )
        kept = [entry for entry in containers[position].get("env") or () if sorting.keeps(entry)]
        if sorting.replaced:
            names = listed(sorting.replaced)
            draft.warn(f"container {name}: {names}: set by the granted slice; the pod's own values are replaced")
        if sorting.removed:
            names = listed(sorting.removed)
            draft.warn(f"container {name}: {names} removed: the limits on a shared card are not optional")
        if injects_env(asked, request, vendors[asked.vendor]):
            kept[:0] = container_env(
                api, container=position, name=name, devices=asked.count, hook_path=injection.hook_path
            )
        containers[position] = with_env(containers[position], kept)
    return with_containers(document, containers)


def _requests(
    pod: PodRequest, vendors: Mapping[str, Vendor], skipped: frozenset[int]
) -> Iterator[tuple[int, Request, DownwardApi]]:
    for position, ask in enumerate(pod.containers):
        for request in ask.requests:
            api = vendors[request.vendor].downward_api
            if api is not None and position not in skipped:
                yield position, request, api


class _Sorting:
    """Separates a container's own variables from those that the slice sets."""

    def __init__(self, api: DownwardApi, *, written: Mapping[str, str], shared: bool) -> None:
        self._api = api
        self._written = written
        self._shared = shared
        self.replaced: list[str] = []
        self.removed: list[str] = []

    def keeps(self, entry: Document) -> bool:
        name = entry.get("name", "")
        if self._api.owned.fullmatch(name):
            if not is_slice_reference(entry):
                self.replaced.append(name)
            return False
        if self._shared and name not in self._written and self._api.loosens_limits(entry):
            self.removed.append(name)
            return False
        return True
