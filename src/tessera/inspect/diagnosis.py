"""All checks of an installation, one after the other. A check that may not look says so; it never ends the others."""

from __future__ import annotations

from collections.abc import Awaitable

from tessera.inspect.checks import webhook
from tessera.inspect.checks.findings import Finding, Severity, unseen
from tessera.inspect.checks.kube_scheduler import check_kube_scheduler
from tessera.inspect.checks.ledger import check_accounting
from tessera.inspect.checks.nodes import check_nodes
from tessera.inspect.checks.permissions import check_rights
from tessera.inspect.dry_run import Trial
from tessera.inspect.installation import Installation
from tessera.inspect.offline_cluster import OfflineCluster
from tessera.kube.client import KubeClient
from tessera.kube.errors import ApiError


def diagnose_objects(world: OfflineCluster) -> list[Finding]:
    """What nodes and pods alone show; all that a snapshot can tell."""
    return [*check_nodes(world), *check_accounting(world)]


async def diagnose(
    client: KubeClient, trial: Trial, installation: Installation, world: OfflineCluster, *, namespace: str
) -> list[Finding]:
    """Everything, on a live cluster. Raises KubeError only where the apiserver cannot be talked to.

    A world without nodes is one that could not be read; its `unseen` says so."""
    now, vendors = world.state.taken, world.vendors
    present = frozenset(
        card.device.vendor
        for name in world.ledger.node_names()
        if (view := world.ledger.node(name)) is not None
        for card in view.cards
    )
    found = list(webhook.check_registration(installation, now=now))
    if installation.webhooks or not installation.webhooks_seen:
        scheduler = world.settings.scheduler_name
        answers = webhook.check_answers(trial, vendors, namespace=namespace, scheduler=scheduler)
        found += await _asked("webhook", answers)
    found += await _asked("webhook", webhook.check_certificate(client, installation, now=now))
    found += await _asked("rights", check_rights(client, installation))
    found += check_kube_scheduler(installation, settings=world.settings, vendors=vendors, present=present)
    if world.nodes:
        found += diagnose_objects(world)
    found += [unseen("cluster", text) for text in world.state.unseen]
    return found


def saw_nothing(findings: list[Finding]) -> bool:
    """Whether no check could look at anything."""
    return all(finding.severity is Severity.UNSEEN for finding in findings)


def is_broken(findings: list[Finding]) -> bool:
    return any(finding.severity is Severity.BROKEN for finding in findings)


async def _asked(area: str, check: Awaitable[list[Finding]]) -> list[Finding]:
    try:
        return await check
    except ApiError as error:
        return [unseen(area, f"the apiserver refused to say: {error}")]
