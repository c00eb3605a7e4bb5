"""All checks of an installation, and their findings for people: the worst first, each with why it matters and a fix.

A check that lacks permissions reports that, and the others still run.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from inspect import isawaitable

from tessera.inspect.checks import Area, Finding, Severity, worst_first
from tessera.inspect.checks.control_plane import (
    AGENTS,
    KUBE_SCHEDULER,
    SCHEDULER,
    check_agents,
    check_kube_scheduler,
    check_scheduler,
)
from tessera.inspect.checks.ledger import CLAIMS, LEDGER, QUOTAS, check_claims, check_ledger, check_quotas
from tessera.inspect.checks.nodes import NODES, check_nodes
from tessera.inspect.checks.permissions import PERMISSIONS, check_permissions
from tessera.inspect.checks.webhook import WEBHOOK, check_certificate, check_dry_run, check_registration
from tessera.inspect.collector import NOT_SERVED
from tessera.inspect.installation import Installation
from tessera.inspect.offline_cluster import OfflineCluster
from tessera.inspect.render.lines import Style, StyledLine, count_of
from tessera.kube.client import KubeClient
from tessera.kube.errors import ApiError

CLUSTER = Area("cluster")


@dataclass(frozen=True, slots=True)
class Checked:
    """A live cluster, and what was found in it."""

    client: KubeClient
    installation: Installation
    cluster: OfflineCluster
    namespace: str
    """where the webhook is tested"""


Findings = Iterable[Finding]

OF_OBJECTS: tuple[tuple[Area, Callable[[OfflineCluster], Findings]], ...] = (
    (NODES, check_nodes),
    (LEDGER, check_ledger),
    (QUOTAS, check_quotas),
    (CLAIMS, check_claims),
)
"""the checks that need nodes, pods, quotas and claims only: all that a snapshot allows"""

OF_INSTALLATION: tuple[tuple[Area, Callable[[Checked], Findings | Awaitable[Findings]]], ...] = (
    (SCHEDULER, lambda it: check_scheduler(it.installation)),
    (AGENTS, lambda it: check_agents(it.client, it.installation)),
    (WEBHOOK, lambda it: check_registration(it.installation, now=it.cluster.state.taken)),
    (WEBHOOK, lambda it: check_dry_run(it.client, it.installation, it.cluster, namespace=it.namespace)),
    (WEBHOOK, lambda it: check_certificate(it.client, it.installation, now=it.cluster.state.taken)),
    (PERMISSIONS, lambda it: check_permissions(it.client, it.installation)),
    (KUBE_SCHEDULER, lambda it: check_kube_scheduler(it.installation, it.cluster)),
)
"""the checks that ask the apiserver, before the others"""


def diagnose_objects(cluster: OfflineCluster) -> list[Finding]:
    return [finding for _, check in OF_OBJECTS for finding in check(cluster)]


async def diagnose(
    client: KubeClient, installation: Installation, cluster: OfflineCluster, *, namespace: str
) -> list[Finding]:
    """All checks, on a live cluster. Raises KubeError only if the apiserver cannot be reached.

    If nodes could not be listed, `cluster` has none and its `unseen` says why."""
    checked = Checked(client, installation, cluster, namespace)
    found: list[Finding] = []
    for area, check in OF_INSTALLATION:
        try:
            answer = check(checked)
            found += await answer if isawaitable(answer) else answer
        except ApiError as error:
            found.append(area.unseen(f"the apiserver refused the request: {error}"))
    if cluster.nodes:
        found += diagnose_objects(cluster)
    if NOT_SERVED in cluster.state.unseen:
        found.append(
            CLAIMS.broken(
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


LOOKS = {
    Severity.BROKEN: ("broken ", Style.BAD),
    Severity.WARNING: ("warning", Style.WARN),
    Severity.UNSEEN: ("unseen ", Style.DIM),
    Severity.FINE: ("fine   ", Style.GOOD),
}
PAD = " " * 9


def diagnosis_lines(findings: Sequence[Finding]) -> Iterator[StyledLine]:
    for finding in worst_first(findings):
        word, style = LOOKS[finding.severity]
        yield StyledLine(f"{word}  {finding.area}: {finding.what}", style)
        if finding.why:
            yield StyledLine(f"{PAD}why it matters: {finding.why}")
        if finding.fix:
            yield StyledLine(f"{PAD}fix: {finding.fix}")
    yield StyledLine()
    yield _summary(findings)


def _summary(findings: Sequence[Finding]) -> StyledLine:
    numbers = {severity: sum(f.severity is severity for f in findings) for severity in Severity}
    text = ", ".join(
        (
            f"{numbers[Severity.BROKEN]} broken",
            count_of(numbers[Severity.WARNING], "warning"),
            f"{numbers[Severity.UNSEEN]} not checked",
            f"{numbers[Severity.FINE]} fine",
        )
    )
    worst = Style.BAD if numbers[Severity.BROKEN] else Style.WARN if numbers[Severity.WARNING] else Style.GOOD
    return StyledLine(text, worst)
