"""Gives containers the variables of their slices, and takes away what a tenant wrote instead.

A protected variable is set by the container's slice; by kubelet's Allocate, if the slice has no name before; or not at
all, in a container that gets no cards. `env` overrides `envFrom` and Allocate. So an entry overrides what `envFrom` may
bring, and where Allocate has to set the variable, such an `envFrom` is refused. Idempotent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tessera.core.model.requests import WHOLE_CARD_CORES, PodRequest, Request
from tessera.scheduler.admission.pod_draft import Document, containers_of, with_containers, with_env, written_variables
from tessera.scheduler.settings import Settings
from tessera.vendors.base import Vendor
from tessera.vendors.downward_api import (
    EnvEntry,
    ProtectedVariables,
    container_env,
    injects_env,
    is_slice_reference,
    shield_env,
)
from tessera.vendors.drafts import ContainerDraft, Denied, PodDraft
from tessera.wire.errors import listed


def with_slice_env(
    document: Document,
    request: PodRequest | None,
    *,
    vendors: Mapping[str, Vendor],
    draft: PodDraft,
    skipped: frozenset[int],
    settings: Settings,
) -> Document | Denied:
    """The document with the variables that its slices need, except in `skipped` positions.

    `request` is None if the pod gets no slices, because another scheduler places it. `draft` holds what vendors wrote,
    and takes the warnings about what was replaced or removed.
    """
    containers = containers_of(document)
    groups = _by_variables(vendors)
    for position, edits in enumerate(draft.containers):
        if position in skipped:
            continue
        for protected, makers in groups:
            use = _Use(position, edits, pod=request, makers=makers, settings=settings)
            answer = _with_owner(containers[position], protected, use, draft)
            if isinstance(answer, Denied):
                return answer
            containers[position] = answer
    return with_containers(document, containers)


def _by_variables(vendors: Mapping[str, Vendor]) -> list[tuple[ProtectedVariables, list[Vendor]]]:
    """Vendors that share their variables, such as several chips of one maker, together."""
    found: dict[int, tuple[ProtectedVariables, list[Vendor]]] = {}
    for vendor in vendors.values():
        if vendor.protected is not None:
            found.setdefault(id(vendor.protected), (vendor.protected, []))[1].append(vendor)
    return list(found.values())


class _Use:
    """What one container asks of the cards of one maker."""

    def __init__(
        self,
        position: int,
        draft: ContainerDraft,
        *,
        pod: PodRequest | None,
        makers: Iterable[Vendor],
        settings: Settings,
    ) -> None:
        by_key = {vendor.key: vendor for vendor in makers}
        asked: Iterable[Request] = pod.containers[position].requests if pod is not None else ()
        self.position = position
        self.draft = draft
        self.settings = settings
        self.request = next((each for each in asked if each.vendor in by_key), None)
        self.api = by_key[self.request.vendor].downward_api if self.request is not None else None
        self.is_injected = (
            settings.injects_downward_api
            and pod is not None
            and self.request is not None
            and injects_env(self.request, pod, by_key[self.request.vendor])
        )
        self.hides = any(vendor.hides_devices for vendor in by_key.values())
        self.is_foreign = pod is None and any(
            draft.text(name) not in (None, 0, "0") for name in (vendor.names.count for vendor in by_key.values())
        )

    @property
    def is_limited(self) -> bool:
        """Whether the container must not loosen its limits."""
        alone = self.request is not None and self.request.cores >= WHOLE_CARD_CORES
        return not (alone or self.settings.allow_disable_control)

    def has_instances(self, prefix: str) -> bool:
        return bool(prefix) and any(name.startswith(prefix) for name in (*self.draft.limits, *self.draft.requests))


def _with_owner(container: Document, protected: ProtectedVariables, use: _Use, draft: PodDraft) -> Document | Denied:
    """The container with the protected variables as their owner wants them."""
    name, env = use.draft.name, container.get("env") or ()
    has_instances = use.has_instances(protected.instances)
    exposed = protected.may_have_prefix(_prefixes(container))
    waits = (use.request is not None and not use.is_injected) or has_instances
    if exposed and waits and use.settings.injects_downward_api:
        return Denied(
            f"container {name}: envFrom may set {protected.devices}, which only Allocate can set here: give envFrom a "
            "prefix, or list the variables under env"
        )
    front: list[EnvEntry] = []
    if use.is_injected and use.request is not None and use.api is not None:
        position, count, hook = use.position, use.request.count, use.settings.hook_path
        front = container_env(use.api, container=position, name=name, devices=count, hook_path=hook)
        if exposed and use.is_limited:
            front += shield_env(use.api, container=position, devices=count, hook_path=hook)
    gets_none = use.request is None and not (has_instances or use.is_foreign)
    sorting = _Sorting(protected, front, written=use.draft, limited=use.is_limited, keeps_harmless=gets_none)
    # A pod may have tens of thousands of variables, few of them ours.
    kept = [entry for entry in env if not entry.get("name", "").startswith(sorting.stems) or sorting.keeps(entry)]
    front = [entry for entry in front if entry["name"] not in sorting.kept]
    if (
        gets_none
        and protected.devices not in sorting.kept
        and (use.hides or exposed or protected.devices in sorting.removed)
    ):
        kept.append({"name": protected.devices, "value": protected.no_devices})
    _warn(draft, name, sorting, gets_slice=use.request is not None)
    return with_env(container, [*front, *kept])


def _prefixes(container: Document) -> list[str]:
    """Of the variables that the container takes from ConfigMaps and Secrets."""
    sources = container.get("envFrom")
    found = (
        [source.get("prefix") for source in sources if isinstance(source, dict)] if isinstance(sources, list) else []
    )
    return [prefix if isinstance(prefix, str) else "" for prefix in found]


class _Sorting:
    """Separates a container's own variables from protected ones."""

    def __init__(
        self,
        protected: ProtectedVariables,
        front: Iterable[EnvEntry],
        *,
        written: ContainerDraft,
        limited: bool,
        keeps_harmless: bool,
    ) -> None:
        self._protected = protected
        self._front = {entry["name"]: entry for entry in front}
        self._written = written_variables(written)
        self._limited = limited
        self._keeps_harmless = keeps_harmless
        self.stems = (*protected.names, *self._front)
        """what the names of all variables begin with that `keeps` may decide on"""
        self.kept: set[str] = set()
        self.replaced: list[str] = []
        self.removed: list[str] = []

    def keeps(self, entry: Document) -> bool:
        """Called for each variable whose name begins with one of `stems`."""
        name: str = entry.get("name", "")
        if self._keeps(name, entry):
            self.kept.add(name)
            return True
        return False

    def _keeps(self, name: str, entry: Document) -> bool:
        protected = self._protected
        if entry == self._front.get(name):
            return False
        if protected.owned.fullmatch(name):
            if self._keeps_harmless and name == protected.devices and not protected.shows_devices(entry):
                return True
            if not is_slice_reference(entry):
                (self.removed if self._keeps_harmless else self.replaced).append(name)
            elif self._keeps_harmless:
                self.removed.append(name)
            return False
        if self._limited and name not in self._written and protected.loosens_limits(entry):
            self.removed.append(name)
            return False
        return True


def _warn(draft: PodDraft, name: str, sorting: _Sorting, *, gets_slice: bool) -> None:
    if sorting.replaced:
        names = listed(sorting.replaced)
        draft.warn(f"container {name}: {names}: set by the granted slice; the pod's own values are replaced")
    if sorting.removed and gets_slice:
        draft.warn(f"container {name}: {listed(sorting.removed)} removed: the limits on a shared card are not optional")
    elif sorting.removed:
        draft.warn(f"container {name}: {listed(sorting.removed)} removed: only a granted slice sets it")
