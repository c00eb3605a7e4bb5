"""Reads a live cluster into a `ClusterState`, as far as the user may list it. It never watches or writes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import compress
from operator import not_
from typing import Any

import msgspec

from tessera.inspect.installation import Installation, find_installation
from tessera.inspect.reach import CLAIM_RESOURCES, Reach, forbidden_said
from tessera.inspect.sanitize import Sanitizer, sum_host_asks
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
from tessera.kube.errors import ApiError, is_forbidden, is_not_found
from tessera.kube.resources import (
    NODES,
    POD_DISRUPTION_BUDGETS,
    PODS,
    PRIORITY_CLASSES,
    RESOURCE_QUOTAS,
    Resource,
)
from tessera.vendors.registry import build_vendors
from tessera.wire.objects import PodDisruptionBudget

NAMED = 20
"""nodes that a message lists"""


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
