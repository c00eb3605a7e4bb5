"""The downward API: a container reads its slice from annotations of its own pod.

kubelet's Allocate does not say which pod it is for, but a container's own environment wins over Allocate's response. So
the webhook gives the container variables that refer to annotations of its pod, and the Binding writes these.
A missing annotation leaves the variable empty, which means no device: mistakes fail closed. The variables themselves
belong to a vendor (`DownwardApi`); containers of vendors without one depend on Allocate.

The container runtime and the enforcing library read their variables from the container's environment, and cannot see
where they came from. So a tenant may give those that decide about cards and limits (`ProtectedVariables`) only values
that change nothing. The webhook removes what a tenant wrote, and the chart's policies refuse what the webhook did not
see; both use these lists.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Protocol

from tessera.core.model.grants import Grants, Placement
from tessera.core.model.requests import Constraint, PodRequest, Request
from tessera.wire.golang import parse_bool
from tessera.wire.objects import Pod

if TYPE_CHECKING:
    from tessera.vendors.base import Vendor

POD_UID = "TESSERA_POD_UID"
"""helper variable for paths that contain the pod's uid"""

_SLICE = re.compile(r"metadata\.annotations\['tessera\.io/c(?P<position>[0-9]{1,9})\..*'\]", re.ASCII)

EnvEntry = dict[str, Any]
"""one entry of a container's `env`, as JSON"""


class DownwardApi(Protocol):
    """How one vendor's slices reach a container through its environment."""

    @property
    def enforcement_switch(self) -> str:
        """The variable by which a container asks to run without the enforcing library."""

    def accepts(self, constraint: Constraint) -> bool:
        """Whether slices under this constraint are known before Allocate."""

    def references(self, container: int, devices: int) -> tuple[tuple[str, str], ...]:
        """Each variable and the annotation that it reads."""

    def literals(self, container_name: str, hook_path: str) -> tuple[tuple[str, str], ...]:
        """Variables with a value of their own; they may use `$(TESSERA_POD_UID)`."""

    def shields(self, container: int, devices: int) -> tuple[tuple[str, str], ...]:
        """Further references, for a container whose `envFrom` may bring variables that loosen its limits."""

    def shield_literals(self, hook_path: str) -> tuple[tuple[str, str], ...]:
        """The same for variables with a value of their own: what the container would get without them."""

    def annotations(self, container: int, grants: Grants) -> dict[str, str]:
        """What the references of one container find; empty where the slice has no name before Allocate."""


def container_env(
    api: DownwardApi, *, container: int, name: str, devices: int, hook_path: str = "/usr/local"
) -> list[EnvEntry]:
    """The entries to inject into one container, in the order in which they must stand."""
    # `$(...)` expands only variables that stand before it.
    return [
        _field_ref(POD_UID, "metadata.uid"),
        *_entries(api.references(container, devices), api.literals(name, hook_path)),
    ]


def shield_env(api: DownwardApi, *, container: int, devices: int, hook_path: str = "/usr/local") -> list[EnvEntry]:
    """The entries that override what an `envFrom` may bring."""
    return _entries(api.shields(container, devices), api.shield_literals(hook_path))


def slice_annotations(placement: Placement, vendors: Mapping[str, Vendor]) -> dict[str, str]:
    """The annotations that a pod's references read, for its Binding."""
    written: dict[str, str] = {}
    for vendor, containers in placement.grants.items():
        api = vendors[vendor].downward_api
        if api is not None:
            for position, grants in enumerate(containers):
                if grants:
                    written |= api.annotations(position, grants)
    return written


def injects_env(request: Request, pod: PodRequest, vendor: Vendor) -> bool:
    """Whether a container's slice of this request goes through its environment."""
    return vendor.downward_api is not None and vendor.downward_api.accepts(pod.constraint(request.vendor))


@dataclass(frozen=True, slots=True)
class PodReferences:
    """What the environment of a pod's containers says about where their slices come from."""

    has_any: bool
    """some container reads a slice annotation: without it, the container sees no device, whatever Allocate answers"""
    misplaced: str | None
    """the first container whose references name another position: containers were added after admission"""
    disables_enforcement: bool
    """a container asks to run without the enforcing library, which only Allocate's response can grant"""
    paths: tuple[Mapping[str, str | None], ...]
    """by container: the field that each variable reads; None for other values and for names that occur twice"""

    def cover(self, pod: PodRequest, vendors: Mapping[str, Vendor]) -> bool:
        """Whether every container that gets devices reads all of its slice through the downward API."""
        return not self.disables_enforcement and all(
            _has_all(paths, vendors[request.vendor].downward_api, position, request.count)
            for position, (paths, ask) in enumerate(zip(self.paths, pod.containers, strict=True))
            for request in ask.requests
        )


def read_references(pod: Pod, vendors: Mapping[str, Vendor]) -> PodReferences:
    """Read the environment of all containers once."""
    switches = enforcement_switches(vendors)
    has_any = disables_enforcement = False
    misplaced: str | None = None
    found: list[dict[str, str | None]] = []
    for position, container in enumerate((*pod.init_containers, *pod.app_containers)):
        paths: dict[str, str | None] = {}
        for entry in container.env or ():
            path = entry.field_path
            # kubelet uses the last entry of a name; a name that occurs twice is not trusted.
            paths[entry.name] = path if entry.name not in paths else None
            if path is not None and (match := _SLICE.fullmatch(path)) is not None:
                has_any = True
                if misplaced is None and int(match["position"]) != position:
                    misplaced = container.name
            elif entry.name in switches and parse_bool(entry.value) is True:
                disables_enforcement = True
        found.append(paths)
    return PodReferences(has_any, misplaced, disables_enforcement, tuple(found))


def enforcement_switches(vendors: Mapping[str, Vendor]) -> frozenset[str]:
    """The variables whose value `read_references` looks at."""
    apis = (vendor.downward_api for vendor in vendors.values())
    return frozenset(api.enforcement_switch for api in apis if api is not None)


def is_slice_reference(entry: Mapping[str, Any]) -> bool:
    """Whether an entry could have been made by `container_env`."""
    match entry:
        case {"valueFrom": {"fieldRef": {"fieldPath": str(path)}}}:
            return path == "metadata.uid" or _SLICE.fullmatch(path) is not None
        case {"value": str(value)}:
            return f"$({POD_UID})" in value
    return False


def _has_all(paths: Mapping[str, str | None], api: DownwardApi | None, container: int, devices: int) -> bool:
    if api is None:
        return False
    return all(paths.get(variable) == _path(key) for variable, key in api.references(container, devices))


def _entries(references: Iterable[tuple[str, str]], literals: Iterable[tuple[str, str]]) -> list[EnvEntry]:
    return [
        *(_field_ref(variable, _path(key)) for variable, key in references),
        *({"name": variable, "value": value} for variable, value in literals),
    ]


@lru_cache(maxsize=1024)
def _path(key: str) -> str:
    return f"metadata.annotations['{key}']"


def _field_ref(name: str, path: str) -> EnvEntry:
    # The apiserver would add a missing apiVersion; with it, what is stored equals what was sent.
    return {"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}


@dataclass(frozen=True)
class ProtectedVariables:
    """The variables of one maker's cards."""

    devices: str
    """names the cards that a container sees"""
    no_devices: str
    """value of `devices` that shows none"""
    harmless: frozenset[str]
    """further values of `devices` that show none"""
    stems: tuple[str, ...]
    """names of variables that only a slice sets; each may end in `_` and the number of a card"""
    switches: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """variables that loosen limits on a shared card, each with the values that do not"""
    instances: str = ""
    """prefix of resources that a plugin allocates without the scheduler"""

    @property
    def pattern(self) -> str:
        """Matches the variables that only a slice sets; for Python and for CEL."""
        return f"(?:{'|'.join(map(re.escape, self.stems))})(?:_[0-9]+)?"

    @cached_property
    def owned(self) -> re.Pattern[str]:
        return re.compile(self.pattern, re.ASCII)

    @cached_property
    def names(self) -> tuple[str, ...]:
        return (*self.stems, *self.switches)

    def shows_devices(self, entry: Mapping[str, Any]) -> bool:
        """Whether an entry for `devices` may show a container some cards."""
        return "valueFrom" in entry or entry.get("value", "") not in {self.no_devices, *self.harmless}

    def loosens_limits(self, entry: Mapping[str, Any]) -> bool:
        """Whether a tenant's own variable would loosen the limits on a shared card."""
        harmless = self.switches.get(entry.get("name", ""))
        return harmless is not None and ("valueFrom" in entry or entry.get("value", "") not in harmless)

    def may_have_prefix(self, prefixes: Iterable[str]) -> bool:
        """Whether an `envFrom` with one of these prefixes may contain one of these variables."""
        return any(name.startswith(prefix) or prefix.startswith(name) for prefix in prefixes for name in self.names)
