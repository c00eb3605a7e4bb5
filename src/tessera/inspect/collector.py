"""Reads a live cluster into a `ClusterState`, as far as the user may list it. It never watches or writes.

Objects are read of all namespaces or, without the rights of an administrator, of one. `unseen` lists what could not be
read, and what that means for the answers.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from itertools import compress
from operator import not_
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from tessera.inspect.installation import Installation, build_offline_settings, find_installation
from tessera.inspect.sanitize import Sanitizer, sum_host_asks
from tessera.inspect.state import (
    HOW_TO_READ,
    BudgetState,
    ClaimObjects,
    ClusterState,
    InspectionError,
    Json,
    ListForbidden,
    Setup,
)
from tessera.kube.client import KubeClient
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
from tessera.vendors.registry import build_vendors
from tessera.wire.objects import PodDisruptionBudget

T = TypeVar("T")

NAMED = 20
"""nodes that a message lists"""


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


async def collect(
    client: KubeClient,
    *,
    source: str,
    now: Callable[[], float],
    installation: Installation | None = None,
    override: Callable[[Setup], Setup] | None = None,
    namespace: str | None = None,
    for_preemption: bool = False,
) -> ClusterState:
    """The cluster as it is now. `override` may replace the configuration that was found in the cluster.

    `namespace`: where pods must be readable if those of all namespaces are not. None: nodes and all pods must be
    readable. Raises ListForbidden if they are not. `for_preemption`: disruption budgets and PriorityClasses as well.
    """
    installation = installation or await find_installation(client)
    setup = override(installation.setup) if override is not None else installation.setup
    reach = Reach(partial(_list, client), namespace)
    await reach.add(NODES, is_required=namespace is None)
    await reach.add(PODS, is_required=True)
    await reach.add(RESOURCE_QUOTAS)
    if for_preemption:
        await reach.add(POD_DISRUPTION_BUDGETS)
        try:
            await reach.add(PRIORITY_CLASSES)
        except ApiError as error:
            if not is_not_found(error):  # The sandbox has none.
                raise
    if build_offline_settings(setup).dra:
        await reach.add_claims(is_certain=setup.flags is not None)
    found = reach.found
    budgets = found.get(POD_DISRUPTION_BUDGETS)
    state = ClusterState(
        source,
        now(),
        setup=setup,
        unseen=(*reach.unseen, *installation.unseen),
        nodes_seen=NODES in found,
        all_pods_seen=reach.within[PODS] is None,
        budgets=None if budgets is None else _match(budgets, found[PODS]),
        priority_classes=tuple(found.get(PRIORITY_CLASSES, ())),
    )
    return _filled(state, found)


async def collect_nodes(
    client: KubeClient, names: Collection[str], *, source: str, now: Callable[[], float], setup: Setup
) -> tuple[ClusterState, list[Json]]:
    """Only these nodes and the pods on them, and these pods as the API shows them. Raises InspectionError if a node
    does not exist, and ListForbidden."""
    nodes: list[Json] = []
    pods: list[Json] = []
    for name in sorted(names):
        try:
            nodes.append(await client.get(NODES.path(name=name), dict[str, Any]))
        except ApiError as error:
            if is_not_found(error):
                known = [node["metadata"]["name"] for node in await _list(client, NODES.path())]
                raise InspectionError(no_such_nodes([name], known)) from error
            if is_forbidden(error):
                raise ListForbidden(f"you may not read node {name}: {error.message}\n{HOW_TO_READ}") from error
            raise
        async with forbidden_said(PODS.plural, f"node {name}"):
            pods += await _list(client, PODS.path(), field_selector=f"spec.nodeName={name}")
    reach = Reach(partial(_list, client), None)
    if build_offline_settings(setup).dra:
        await reach.add_claims(is_certain=False)
    return _filled(ClusterState(source, now(), setup=setup), {**reach.found, NODES: nodes, PODS: pods}), pods


def no_such_nodes(missing: Sequence[str], known: Iterable[str]) -> str:
    """What to say to a person who named nodes that do not exist."""
    names = sorted(known)
    listed = ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")
    what = "no node is" if len(missing) == 1 else "no nodes are"
    return f"{what} called {', '.join(missing)}; the cluster has {listed or 'no nodes'}"


def _filled(state: ClusterState, found: Mapping[Resource, Sequence[Json]]) -> ClusterState:
    """The state with these objects, reduced to what decides."""
    settings = build_offline_settings(state.setup)
    sanitizer = Sanitizer(build_vendors(settings.device_sections, settings.switches), claims=settings.dra)
    pods = found[PODS]
    have_devices = [sanitizer.concerns_devices(pod) or sanitizer.waits_for_misspelt(pod) for pod in pods]
    reduced = {
        resource: sanitizer.sanitize_all(
            resource, compress(pods, have_devices) if resource is PODS else found.get(resource, ())
        )
        for resource in (NODES, PODS, RESOURCE_QUOTAS, *CLAIM_RESOURCES)
    }
    return replace(
        state,
        nodes=reduced[NODES],
        pods=reduced[PODS],
        quotas=reduced[RESOURCE_QUOTAS],
        dra=ClaimObjects(*(reduced[resource] for resource in CLAIM_RESOURCES)),
        others=sum_host_asks(compress(pods, map(not_, have_devices))),
    )


def _match(budgets: list[Json], pods: list[Json]) -> dict[str, BudgetState]:
    """By namespace and name, with the pods that each holds for: their labels are not kept."""
    found = {}
    for document in budgets:
        budget = msgspec.convert(document, PodDisruptionBudget)
        namespace, selector = budget.metadata.namespace, budget.spec.selector
        of_namespace = (pod["metadata"] for pod in pods if pod["metadata"].get("namespace") == namespace)
        uids = (
            one["uid"]
            for one in of_namespace
            if selector is not None and selector.matches(one.get("labels") or {}) and "uid" in one
        )
        found[f"{namespace}/{budget.metadata.name}"] = BudgetState(budget.status.disruptions_allowed, frozenset(uids))
    return found


async def _list(client: KubeClient, path: str, *, field_selector: str = "") -> list[Json]:
    return (await client.list(path, dict[str, Any], field_selector=field_selector)).items
