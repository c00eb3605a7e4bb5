"""The API objects that decide placement at one moment, and how the scheduler that decides on them was started.

A live cluster, a snapshot file and a description all become a `ClusterState`; equal states get equal answers. Objects
are plain JSON that `sanitize` has already reduced to what decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tessera.core.model.requests import HostRequest
from tessera.files.documents import DocumentError, read_documents
from tessera.kube.resources import (
    DEVICE_CLASSES,
    NODES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_QUOTAS,
    RESOURCE_SLICES,
    Resource,
)

Json = dict[str, Any]

HOW_TO_READ = (
    "Ask for the ClusterRole tessera-reader, which the chart installs, or for a snapshot (tessera snapshot) to read."
)
"""for a person who lacks rights"""

CHART_DEFAULTS = "the chart's defaults"


class InspectionError(Exception):
    """Why a question cannot be answered, in words that a person can act on."""


class ListForbidden(InspectionError):
    """The user may not list nodes or pods."""


def documents(data: bytes | str, file: str) -> list[Any]:
    """The documents of a file of JSON or YAML. Raises InspectionError."""
    try:
        return read_documents(data)
    except DocumentError as error:
        raise InspectionError(f"{file}: {error}") from error


class Setup(msgspec.Struct, frozen=True, rename="camel"):
    """The part of the scheduler's configuration that decides placement. Snapshots hold it as it is."""

    device_config: str | None = None
    """text of device-config.yaml; None = the chart's values"""
    device_config_from: str = CHART_DEFAULTS
    flags: dict[str, str | tuple[str, ...]] | None = msgspec.field(default=None, name="schedulerFlags")
    """flags of the scheduler by first name; None = unknown, so every vendor is switched on"""
    flags_from: str = msgspec.field(default="", name="schedulerFlagsFrom")


@dataclass(frozen=True, slots=True)
class BudgetState:
    """A PodDisruptionBudget at one moment."""

    allowed: int
    """evictions that it allows now"""
    pods: frozenset[str]
    """uids of the pods that it holds for"""


class ClaimObjects(msgspec.Struct, frozen=True, omit_defaults=True):
    """The objects of dynamic resource allocation; none where the scheduler leaves claims to others. Snapshots hold it
    as it is."""

    slices: tuple[Json, ...] = ()
    """of our driver"""
    classes: tuple[Json, ...] = ()
    claims: tuple[Json, ...] = ()
    templates: tuple[Json, ...] = ()
    """for pods that do not exist yet"""


@dataclass(frozen=True, slots=True)
class ClusterState:
    """A cluster at one moment."""

    source: str
    """where it comes from, for people"""
    taken: float
    """unix time in seconds"""
    nodes: tuple[Json, ...] = ()
    pods: tuple[Json, ...] = ()
    quotas: tuple[Json, ...] = ()
    setup: Setup = field(default_factory=Setup)
    unseen: tuple[str, ...] = ()
    """what could not be read, and what that means for the answers"""
    others: Mapping[str, HostRequest] = field(default_factory=dict)
    """by node: what pods that are not in `pods` request of the host; matters only to policies that look at hosts"""
    nodes_seen: bool = True
    """whether nodes could be listed"""
    all_pods_seen: bool = True
    """whether the pods of all namespaces could be listed"""

    budgets: Mapping[str, BudgetState] | None = None
    """by namespace/name; None if they were not read, or not all of them"""
    priority_classes: tuple[Json, ...] = ()
    dra: ClaimObjects = field(default_factory=ClaimObjects)

    def objects(self, resource: Resource) -> tuple[Json, ...]:
        """Those of one of the resources that decide."""
        return {
            NODES: self.nodes,
            PODS: self.pods,
            RESOURCE_QUOTAS: self.quotas,
            RESOURCE_SLICES: self.dra.slices,
            DEVICE_CLASSES: self.dra.classes,
            RESOURCE_CLAIMS: self.dra.claims,
            RESOURCE_CLAIM_TEMPLATES: self.dra.templates,
        }[resource]

    def require_nodes(self) -> None:
        """Raises ListForbidden if nodes could not be listed."""
        if not self.nodes_seen:
            raise ListForbidden(f"you may not list nodes, and without them there is no answer.\n{HOW_TO_READ}")
