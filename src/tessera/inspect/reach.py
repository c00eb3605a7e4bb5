"""Reads what a user may list of a cluster: of all namespaces or, without the rights of an administrator, of one.

`unseen` lists what could not be read, and what that means for the answers.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Generic, NamedTuple, TypeVar

from tessera.inspect.state import HOW_TO_READ, ListForbidden
from tessera.kube.errors import ApiError, is_forbidden, is_not_found
from tessera.kube.resources import (
    DEVICE_CLASSES,
    NODES,
    POD_DISRUPTION_BUDGETS,
    PODS,
    PRIORITY_CLASSES,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_QUOTAS,
    RESOURCE_SLICES,
    Resource,
)

T = TypeVar("T")


class Unseen(NamedTuple):
    """What it means that a resource may not be listed."""

    everywhere: str
    elsewhere: str | None = None
    """what it means that it may be listed in one namespace only; None if that is of no use"""


UNSEEN: dict[Resource, Unseen] = {
    NODES: Unseen("nodes (you may not list them): where a pod fits cannot be judged"),
    PODS: Unseen(
        "pods (you may not list them)",
        "pods outside namespace {} (you may not list them): cards that they hold look free",
    ),
    RESOURCE_QUOTAS: Unseen(
        "quotas (you may not list them): a pod that a quota stops looks as if it fits",
        "quotas outside namespace {} (you may not list them)",
    ),
    POD_DISRUPTION_BUDGETS: Unseen(
        "disruption budgets (you may not list them): pods that would be evicted may be kept by one"
    ),
    PRIORITY_CLASSES: Unseen(
        "PriorityClasses (you may not list them): a manifest has the priority that it says itself, or 0"
    ),
    RESOURCE_SLICES: Unseen("ResourceSlices (you may not list them): no card looks as if it were for claims"),
    DEVICE_CLASSES: Unseen("DeviceClasses (you may not list them): every claim looks as if its class did not exist"),
    RESOURCE_CLAIMS: Unseen(
        "ResourceClaims (you may not list them): cards that they hold look free, and pods seem to wait for them",
        "ResourceClaims outside namespace {} (you may not list them): cards that they hold look free",
    ),
    RESOURCE_CLAIM_TEMPLATES: Unseen(
        "ResourceClaimTemplates (you may not list them): a manifest has to bring its own", ""
    ),
}
CLAIM_RESOURCES = (RESOURCE_SLICES, DEVICE_CLASSES, RESOURCE_CLAIMS, RESOURCE_CLAIM_TEMPLATES)
"""what a scheduler with --dra reads"""
NOT_SERVED = "ResourceClaims: the cluster does not serve resource.k8s.io/v1, which the scheduler's --dra needs"


@asynccontextmanager
async def forbidden_said(what: str, where: str) -> AsyncIterator[None]:
    """Raises ListForbidden for a request that the apiserver forbids."""
    try:
        yield
    except ApiError as error:
        if not is_forbidden(error):
            raise
        raise ListForbidden(
            f"you may not list {what} in {where}, which every answer needs: {error.message}\n{HOW_TO_READ}"
        ) from error


class Reach(Generic[T]):
    """What was read, by resource."""

    def __init__(self, read: Callable[[str], Awaitable[T]], namespace: str | None) -> None:
        """`read` reads the resource at a path; it raises ApiError. `namespace` is the one to make do with; None: there
        is none."""
        self._read = read
        self._namespace = namespace
        self.found: dict[Resource, T] = {}
        self.within: dict[Resource, str | None] = {}
        """the namespace that each was read of; None: of all"""
        self.unseen: list[str] = []

    async def add(self, resource: Resource, *, is_required: bool = False) -> None:
        """Raises ListForbidden if it is required, and may be listed nowhere."""
        everywhere, elsewhere = UNSEEN[resource]
        try:
            await self._add(resource, None)
        except ListForbidden:
            try:
                if elsewhere is None or self._namespace is None:
                    raise
                await self._add(resource, self._namespace)
            except ListForbidden:
                if is_required:
                    raise
                self.unseen.append(everywhere)
            else:
                self.unseen += [elsewhere.format(self._namespace)] if elsewhere else []

    async def add_claims(self, *, is_certain: bool) -> None:
        """What dynamic resource allocation adds. `is_certain`: the scheduler certainly reads claims, so that it matters
        if the cluster does not serve them."""
        said = len(self.unseen)
        try:
            for resource in CLAIM_RESOURCES:
                await self.add(resource)
        except ApiError as error:
            if not is_not_found(error):
                raise
            for resource in CLAIM_RESOURCES:
                self.found.pop(resource, None)
                self.within.pop(resource, None)
            self.unseen[said:] = [NOT_SERVED] if is_certain else []

    async def _add(self, resource: Resource, namespace: str | None) -> None:
        where = "the whole cluster" if namespace is None else f"namespace {namespace}"
        async with forbidden_said(resource.plural, where):
            self.found[resource] = await self._read(resource.path(namespace))
        self.within[resource] = namespace
