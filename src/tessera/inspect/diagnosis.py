"""Runs all checks of an installation. A check that lacks permissions reports that, and the others still run."""

from __future__ import annotations

from collections.abc import Awaitable

from tessera.inspect.checks import claims, permissions, webhook, workloads
from tessera.inspect.checks.claims import check_claims
from tessera.inspect.checks.findings import Area, Finding, Severity
from tessera.inspect.checks.kube_scheduler import check_kube_scheduler
from tessera.inspect.checks.ledger import check_ledger, check_quotas
from tessera.inspect.checks.nodes import check_nodes
from tessera.inspect.checks.workloads import check_scheduler
from tessera.inspect.collector import NOT_SERVED
from tessera.inspect.installation import Installation
from tessera.inspect.offline_cluster import OfflineCluster
from tessera.kube.client import KubeClient
from tessera.kube.errors import ApiError

CLUSTER = Area("cluster")


def diagnose_objects(cluster: OfflineCluster) -> list[Finding]:
    """The checks that need nodes, pods, quotas and claims only: all that a snapshot allows."""
    return [*check_nodes(cluster), *check_ledger(cluster), *check_quotas(cluster), *check_claims(cluster)]


async def diagnose(
    client: KubeClient, installation: Installation, cluster: OfflineCluster, *, namespace: str
) -> list[Finding]:
    """All checks, on a live cluster. Raises KubeError only if the apiserver cannot be reached.

    If nodes could not be listed, `cluster` has none and its `unseen` says why."""
    now, vendors = cluster.state.taken, cluster.vendors
    present = frozenset(
        card.device.vendor
        for name in cluster.ledger.node_names()
        if (view := cluster.ledger.node(name)) is not None
        for card in view.cards
    )
    found = [*check_scheduler(installation)]
    found += await _run_check(workloads.AGENTS, workloads.check_agents(client, installation))
    found += webhook.check_registration(installation, now=now)
    if installation.webhooks or not installation.webhooks_seen:
        scheduler = cluster.settings.scheduler_name
        answers = webhook.check_dry_run(client, vendors, namespace=namespace, scheduler=scheduler)
        found += await _run_check(webhook.AREA, answers)
    found += await _run_check(webhook.AREA, webhook.check_certificate(client, installation, now=now))
    found += await _run_check(permissions.AREA, permissions.check_permissions(client, installation))
    found += check_kube_scheduler(installation, settings=cluster.settings, vendors=vendors, present=present)
    if cluster.nodes:
        found += diagnose_objects(cluster)
    if NOT_SERVED in cluster.state.unseen:
        found.append(
            claims.AREA.broken(
                "the scheduler runs with --dra, but the cluster does not serve resource.k8s.io/v1",
                why="the scheduler waits for the list of ResourceClaims, and places no pod before it has it",
                fix="leave scheduler.dra.enabled off: dynamic resource allocation needs Kubernetes 1.34",
            )
        )
    found += [CLUSTER.unseen(text) for text in cluster.state.unseen if text != NOT_SERVED]
    return found


def saw_nothing(findings: list[Finding]) -> bool:
    """Whether no check could read anything."""
    return all(finding.severity is Severity.UNSEEN for finding in findings)


def is_broken(findings: list[Finding]) -> bool:
    return any(finding.severity is Severity.BROKEN for finding in findings)


async def _run_check(area: Area, check: Awaitable[list[Finding]]) -> list[Finding]:
    try:
        return await check
    except ApiError as error:
        return [area.unseen(f"the apiserver refused the request: {error}")]
