"""Reads a live cluster into a `ClusterState`. It lists, and never watches or writes.

Nodes and pods must be readable. Quotas and the installation's own objects are read if that is allowed; `unseen` lists
what could not be read.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import compress
from operator import not_
from typing import Any

from tessera.inspect import sanitize
from tessera.inspect.installation import FORBIDDEN, Installation, find_installation
from tessera.inspect.scheduler_settings import build_offline_settings
from tessera.inspect.state import ClusterState, Json, ListForbidden, Setup
from tessera.kube.client import KubeClient
from tessera.kube.errors import ApiError
from tessera.kube.resources import NODES, PODS, RESOURCE_QUOTAS
from tessera.vendors.registry import build_vendors


async def collect(
    client: KubeClient,
    *,
    source: str,
    now: Callable[[], float],
    installation: Installation | None = None,
    override: Callable[[Setup], Setup] | None = None,
) -> ClusterState:
    """The cluster as it is now. `override` may replace the configuration that was found in the cluster."""
    installation = installation or await find_installation(client)
    setup = override(installation.setup) if override is not None else installation.setup
    settings = build_offline_settings(setup)
    vendors = build_vendors(settings.device_sections, settings.switches)
    kept, managed = sanitize.deciding_domains(vendors), sanitize.managed_resources(vendors)
    allocated = frozenset(vendor.keys.allocated for vendor in vendors.values() if vendor.keys.allocated)
    nodes = await _listed(client, NODES.path(), "nodes")
    pods = await _listed(client, PODS.path(), "pods")
    unseen = list(installation.unseen)
    try:
        quotas = await _listed(client, RESOURCE_QUOTAS.path(), "quotas")
    except ListForbidden:
        quotas = []
        unseen.insert(0, "quotas (you may not list them): a pod that a quota stops looks as if it fits")
    have_devices = [sanitize.concerns_devices(pod, managed, allocated) for pod in pods]
    return ClusterState(
        source,
        now(),
        tuple(sanitize.sanitize_node(node, kept) for node in nodes),
        tuple(sanitize.sanitize_pod(pod, kept) for pod in compress(pods, have_devices)),
        tuple(sanitize.sanitize_quota(quota) for quota in quotas),
        setup,
        tuple(unseen),
        sanitize.sum_host_asks(compress(pods, map(not_, have_devices))),
    )


async def _listed(client: KubeClient, path: str, what: str) -> list[Json]:
    try:
        return (await client.list(path, dict[str, Any])).items
    except ApiError as error:
        if error.status != FORBIDDEN:
            raise
        raise ListForbidden(
            f"you may not list {what} in the whole cluster, which every answer needs: {error.message}\n"
            f"Ask for a ClusterRole with the verb list on {what}, or for a snapshot (tessera snapshot) to read."
        ) from error
