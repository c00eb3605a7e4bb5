"""Reads a live cluster into a `State`: lists, never watches, and never writes.

Nodes and pods must be readable; quotas and the installation's own objects are read where that is allowed, and what was
not seen is said in the state.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import compress
from operator import not_
from typing import Any

from tessera.inspect import sanitize as reducing
from tessera.inspect.installation import FORBIDDEN, Installation, find_installation
from tessera.inspect.scheduler_settings import settings_of
from tessera.inspect.state import Json, NotAllowed, Setup, State
from tessera.kube.client import KubeClient
from tessera.kube.errors import ApiError
from tessera.kube.resources import NODES, PODS, RESOURCE_QUOTAS
from tessera.vendors.registry import build_vendors


async def collect(
    client: KubeClient, *, source: str, now: Callable[[], float], override: Callable[[Setup], Setup] = lambda s: s
) -> State:
    """The cluster as it is now. `override` may replace what the cluster shows of its configuration."""
    return await collect_with(client, await find_installation(client), source=source, now=now, override=override)


async def collect_with(
    client: KubeClient,
    installation: Installation,
    *,
    source: str,
    now: Callable[[], float],
    override: Callable[[Setup], Setup] = lambda s: s,
) -> State:
    """The same where the installation is known already."""
    setup = override(installation.setup)
    settings = settings_of(setup)
    vendors = build_vendors(settings.device_sections, settings.switches)
    kept, managed = reducing.domains(vendors), reducing.resources(vendors)
    allocated = frozenset(vendor.keys.allocated for vendor in vendors.values() if vendor.keys.allocated)
    nodes = await _listed(client, NODES.path(), "nodes")
    pods = await _listed(client, PODS.path(), "pods")
    quotas, unseen = await _quotas(client)
    concerned = [reducing.concerns_devices(pod, managed, allocated) for pod in pods]
    return State(
        source,
        now(),
        tuple(reducing.reduce_node(node, kept) for node in nodes),
        tuple(reducing.reduce_pod(pod, kept) for pod in compress(pods, concerned)),
        tuple(reducing.reduce_quota(quota) for quota in quotas),
        setup,
        (*unseen, *installation.unseen),
        reducing.host_asks(compress(pods, map(not_, concerned))),
    )


def overridden(setup: Setup, *, device_config: tuple[str, str] | None, flags: Any) -> Setup:
    """The setup with what the command line says instead: (text, file) of a device configuration, scheduler flags."""
    if device_config is not None:
        setup = replace(setup, device_config=device_config[0], device_config_from=device_config[1])
    if flags:
        setup = replace(setup, flags={**(setup.flags or {}), **flags}, flags_from="the command line")
    return setup


async def _listed(client: KubeClient, path: str, what: str) -> list[Json]:
    try:
        return (await client.list(path, dict[str, Any])).items
    except ApiError as error:
        if error.status != FORBIDDEN:
            raise
        raise NotAllowed(
            f"you may not list {what} of the whole cluster, which every answer needs: {error.message}\n"
            f"Ask for a ClusterRole with the verb list on {what}, or for a snapshot (tessera snapshot) to read."
        ) from error


async def _quotas(client: KubeClient) -> tuple[list[Json], list[str]]:
    try:
        return (await client.list(RESOURCE_QUOTAS.path(), dict[str, Any])).items, []
    except ApiError as error:
        if error.status != FORBIDDEN:
            raise
        return [], ["quotas (no right to list them): a pod that a quota stops looks as if it fitted"]
