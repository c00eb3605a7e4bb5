"""Reads a live cluster into a `ClusterState`. It lists, and never watches or writes.

For a person without the rights of an administrator it makes do with what may be read: without nodes, and with the pods
and quotas of one namespace. `unseen` lists what could not be read, and what that means.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from itertools import compress
from operator import not_
from typing import Any

import msgspec

from tessera.inspect import sanitize
from tessera.inspect.installation import FORBIDDEN, NOT_FOUND, Installation, find_installation
from tessera.inspect.scheduler_settings import build_offline_settings
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
from tessera.kube.errors import ApiError
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
from tessera.wire.keys import DRA_DRIVER
from tessera.wire.objects import PodDisruptionBudget

NAMED = 20
"""nodes that a message lists"""

NODES_UNSEEN = "nodes (you may not list them): where a pod fits cannot be judged"
PODS_UNSEEN = "pods outside namespace {} (you may not list them): cards that they hold look free"
SOME_QUOTAS_UNSEEN = "quotas outside namespace {} (you may not list them)"
QUOTAS_UNSEEN = "quotas (you may not list them): a pod that a quota stops looks as if it fits"


BUDGETS_UNSEEN = "disruption budgets (you may not list them): pods that would be evicted may be kept by one"
PRIORITIES_UNSEEN = "PriorityClasses (you may not list them): a manifest has the priority that it says itself, or 0"
SLICES_UNSEEN = "ResourceSlices (you may not list them): no card looks as if it were for claims"
DEVICE_CLASSES_UNSEEN = "DeviceClasses (you may not list them): every claim looks as if its class did not exist"
CLAIMS_UNSEEN = "ResourceClaims (you may not list them): cards that they hold look free, and pods seem to wait for them"
SOME_CLAIMS_UNSEEN = "ResourceClaims outside namespace {} (you may not list them): cards that they hold look free"
TEMPLATES_UNSEEN = "ResourceClaimTemplates (you may not list them): a manifest has to bring its own"
CLAIM_RESOURCES = {
    RESOURCE_SLICES: SLICES_UNSEEN,
    DEVICE_CLASSES: DEVICE_CLASSES_UNSEEN,
    RESOURCE_CLAIMS: CLAIMS_UNSEEN,
    RESOURCE_CLAIM_TEMPLATES: TEMPLATES_UNSEEN,
}
"""what a scheduler with --dra reads, and what it means if it may not be listed"""
NOT_SERVED = "ResourceClaims: the cluster does not serve resource.k8s.io/v1, which the scheduler's --dra needs"


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
    unseen = []
    try:
        nodes, nodes_seen = await _listed(client, NODES.path(), "nodes"), True
    except ListForbidden:
        if namespace is None:
            raise
        nodes, nodes_seen = [], False
        unseen.append(NODES_UNSEEN)
    pods, all_pods_seen = await _listed_in_reach(client, PODS, "pods", namespace)
    if not all_pods_seen:
        unseen.append(PODS_UNSEEN.format(namespace))
    try:
        quotas, all_quotas_seen = await _listed_in_reach(client, RESOURCE_QUOTAS, "quotas", namespace)
        if not all_quotas_seen:
            unseen.append(SOME_QUOTAS_UNSEEN.format(namespace))
    except ListForbidden:
        quotas = []
        unseen.append(QUOTAS_UNSEEN)
    budgets: dict[str, BudgetState] | None = None
    classes: list[Json] = []
    if for_preemption:
        try:
            budgets = _match(await _listed(client, POD_DISRUPTION_BUDGETS.path(), "disruption budgets"), pods)
        except ListForbidden:
            unseen.append(BUDGETS_UNSEEN)
        try:
            classes = await _listed(client, PRIORITY_CLASSES.path(), "PriorityClasses")
        except ListForbidden:
            unseen.append(PRIORITIES_UNSEEN)
        except ApiError as error:
            if error.status != NOT_FOUND:  # The sandbox has none.
                raise
    dra = ClaimObjects()
    if build_offline_settings(setup).dra:
        dra, missing = await read_claims(client, namespace, is_certain=setup.flags is not None)
        unseen += missing
    state = ClusterState(
        source,
        now(),
        setup=setup,
        unseen=(*unseen, *installation.unseen),
        dra=dra,
        nodes_seen=nodes_seen,
        all_pods_seen=all_pods_seen,
        budgets=budgets,
        priority_classes=tuple(classes),
    )
    return _filled(state, nodes, pods, quotas)


async def read_claims(client: KubeClient, namespace: str | None, *, is_certain: bool) -> tuple[ClaimObjects, list[str]]:
    """What dynamic resource allocation adds, reduced to what decides, and what could not be read. `namespace`: as for
    `collect`. `is_certain`: the scheduler certainly reads claims, so that their absence matters."""
    found: dict[Resource, list[Json]] = {}
    unseen: list[str] = []
    for resource, forbidden in CLAIM_RESOURCES.items():
        try:
            within = namespace if resource.namespaced else None
            found[resource], are_all = await _listed_in_reach(client, resource, resource.plural, within)
            if not are_all and resource is RESOURCE_CLAIMS:
                unseen.append(SOME_CLAIMS_UNSEEN.format(namespace))
        except ListForbidden:
            unseen.append(forbidden)
        except ApiError as error:
            if error.status != NOT_FOUND:
                raise
            return ClaimObjects(), [NOT_SERVED] if is_certain else []
    slices = (sanitize.sanitize_slice(each) for each in found.get(RESOURCE_SLICES, ()))
    return ClaimObjects(
        tuple(each for each in slices if each["spec"].get("driver") == DRA_DRIVER),
        tuple(sanitize.sanitize_class(each) for each in found.get(DEVICE_CLASSES, ())),
        tuple(sanitize.sanitize_claim(each) for each in found.get(RESOURCE_CLAIMS, ())),
        tuple(sanitize.sanitize_template(each) for each in found.get(RESOURCE_CLAIM_TEMPLATES, ())),
    ), unseen


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
            if error.status == NOT_FOUND:
                known = [node["metadata"]["name"] for node in await _listed(client, NODES.path(), "nodes")]
                raise InspectionError(no_such_nodes([name], known)) from error
            if error.status == FORBIDDEN:
                raise ListForbidden(f"you may not read node {name}: {error.message}\n{HOW_TO_READ}") from error
            raise
        pods += await _listed(client, PODS.path(), "pods", field_selector=f"spec.nodeName={name}")
    dra = ClaimObjects()
    if build_offline_settings(setup).dra:
        dra, _ = await read_claims(client, None, is_certain=False)
    return _filled(ClusterState(source, now(), setup=setup, dra=dra), nodes, pods, []), pods


def no_such_nodes(missing: Sequence[str], known: Iterable[str]) -> str:
    """What to say to a person who named nodes that do not exist."""
    names = sorted(known)
    listed = ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")
    what = "no node is" if len(missing) == 1 else "no nodes are"
    return f"{what} called {', '.join(missing)}; the cluster has {listed or 'no nodes'}"


def _filled(state: ClusterState, nodes: list[Json], pods: list[Json], quotas: list[Json]) -> ClusterState:
    """The state with these objects, reduced to what decides."""
    settings = build_offline_settings(state.setup)
    vendors = build_vendors(settings.device_sections, settings.switches)
    kept, managed = sanitize.deciding_domains(vendors), sanitize.managed_resources(vendors)
    allocated = frozenset(vendor.keys.allocated for vendor in vendors.values() if vendor.keys.allocated)
    have_devices = [
        sanitize.concerns_devices(pod, managed, allocated, claims=settings.dra)
        or sanitize.waits_for_misspelt(pod, vendors)
        for pod in pods
    ]
    return replace(
        state,
        nodes=tuple(sanitize.sanitize_node(node, kept) for node in nodes),
        pods=tuple(sanitize.sanitize_pod(pod, kept) for pod in compress(pods, have_devices)),
        quotas=tuple(sanitize.sanitize_quota(quota) for quota in quotas),
        others=sanitize.sum_host_asks(compress(pods, map(not_, have_devices))),
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


async def _listed_in_reach(
    client: KubeClient, resource: Resource, what: str, namespace: str | None
) -> tuple[list[Json], bool]:
    """Those of all namespaces or, if that is forbidden, of this one; and whether they are all."""
    try:
        return await _listed(client, resource.path(), what), True
    except ListForbidden:
        if namespace is None:
            raise
    return await _listed(client, resource.path(namespace), what, where=f"namespace {namespace}"), False


async def _listed(
    client: KubeClient, path: str, what: str, *, where: str = "the whole cluster", field_selector: str = ""
) -> list[Json]:
    try:
        return (await client.list(path, dict[str, Any], field_selector=field_selector)).items
    except ApiError as error:
        if error.status != FORBIDDEN:
            raise
        raise ListForbidden(
            f"you may not list {what} in {where}, which every answer needs: {error.message}\n{HOW_TO_READ}"
        ) from error
