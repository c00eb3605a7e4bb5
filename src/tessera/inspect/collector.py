"""Reads a live cluster into a `ClusterState`. It lists, and never watches or writes.

For a person without the rights of an administrator it makes do with what may be read: without nodes, and with the pods
and quotas of one namespace. `unseen` lists what could not be read, and what that means.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import compress
from operator import not_
from typing import Any

from tessera.inspect import sanitize
from tessera.inspect.installation import FORBIDDEN, Installation, find_installation
from tessera.inspect.scheduler_settings import build_offline_settings
from tessera.inspect.state import HOW_TO_READ, ClusterState, Json, ListForbidden, Setup
from tessera.kube.client import KubeClient
from tessera.kube.errors import ApiError
from tessera.kube.resources import NODES, PODS, RESOURCE_QUOTAS, Resource
from tessera.vendors.registry import build_vendors


async def collect(
    client: KubeClient,
    *,
    source: str,
    now: Callable[[], float],
    installation: Installation | None = None,
    override: Callable[[Setup], Setup] | None = None,
    namespace: str | None = None,
) -> ClusterState:
    """The cluster as it is now. `override` may replace the configuration that was found in the cluster.

    `namespace`: where pods must be readable if those of all namespaces are not. None: nodes and all pods must be
    readable. Raises ListForbidden if they are not.
    """
    installation = installation or await find_installation(client)
    setup = override(installation.setup) if override is not None else installation.setup
    settings = build_offline_settings(setup)
    vendors = build_vendors(settings.device_sections, settings.switches)
    kept, managed = sanitize.deciding_domains(vendors), sanitize.managed_resources(vendors)
    allocated = frozenset(vendor.keys.allocated for vendor in vendors.values() if vendor.keys.allocated)
    unseen = []
    try:
        nodes, nodes_seen = await _listed(client, NODES.path(), "nodes"), True
    except ListForbidden:
        if namespace is None:
            raise
        nodes, nodes_seen = [], False
        unseen.append("nodes (you may not list them): where a pod fits cannot be judged")
    pods, all_pods_seen = await _listed_in_reach(client, PODS, "pods", namespace)
    if not all_pods_seen:
        unseen.append(f"pods outside namespace {namespace} (you may not list them): cards that they hold look free")
    try:
        quotas, all_quotas_seen = await _listed_in_reach(client, RESOURCE_QUOTAS, "quotas", namespace)
        if not all_quotas_seen:
            unseen.append(f"quotas outside namespace {namespace} (you may not list them)")
    except ListForbidden:
        quotas = []
        unseen.append("quotas (you may not list them): a pod that a quota stops looks as if it fits")
    have_devices = [sanitize.concerns_devices(pod, managed, allocated) for pod in pods]
    return ClusterState(
        source,
        now(),
        tuple(sanitize.sanitize_node(node, kept) for node in nodes),
        tuple(sanitize.sanitize_pod(pod, kept) for pod in compress(pods, have_devices)),
        tuple(sanitize.sanitize_quota(quota) for quota in quotas),
        setup,
        (*unseen, *installation.unseen),
        sanitize.sum_host_asks(compress(pods, map(not_, have_devices))),
        nodes_seen=nodes_seen,
        all_pods_seen=all_pods_seen,
    )


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


async def _listed(client: KubeClient, path: str, what: str, *, where: str = "the whole cluster") -> list[Json]:
    try:
        return (await client.list(path, dict[str, Any])).items
    except ApiError as error:
        if error.status != FORBIDDEN:
            raise
        raise ListForbidden(
            f"you may not list {what} in {where}, which every answer needs: {error.message}\n{HOW_TO_READ}"
        ) from error
