"""May the scheduler do what it does? Asked of the apiserver, about its service account or about whoever runs this."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tessera.inspect.checks.findings import Finding, Severity, broken, fine, unseen
from tessera.inspect.installation import FORBIDDEN, NOT_FOUND, Installation
from tessera.inspect.state import Json
from tessera.kube.client import KubeClient
from tessera.kube.errors import ApiError
from tessera.kube.resources import SELF_SUBJECT_ACCESS_REVIEWS, Resource

AREA = "rights"
ACCESS_REVIEWS = Resource("authorization.k8s.io", "v1", "subjectaccessreviews", False)


@dataclass(frozen=True, slots=True)
class Right:
    """One verb on one resource, and what fails without it."""

    verb: str
    resource: str
    without: str
    subresource: str = ""

    @property
    def text(self) -> str:
        return f"{self.verb} {self.resource}{'/' + self.subresource if self.subresource else ''}"


NEEDED = (
    *(Right(verb, "pods", "the ledger cannot be kept") for verb in ("list", "watch")),
    Right("get", "pods", "a bind whose answer was lost is never settled"),
    Right("patch", "pods", "pending pods are not woken when room appears"),
    Right("create", "pods", "no pod can be bound", "binding"),
    *(Right(verb, "nodes", "no cards are known") for verb in ("list", "watch")),
    *(Right(verb, "nodes", "HAMi's plugins are not served: handshake and node lock") for verb in ("get", "patch")),
    *(Right(verb, "resourcequotas", "quotas are not kept") for verb in ("list", "watch")),
    Right("create", "events", "nobody is told why a pod waits"),
)
"""what the chart grants, and the scheduler uses"""


async def check_rights(client: KubeClient, installation: Installation) -> list[Finding]:
    account = _account(installation)
    if account is None:
        return await _own(client)
    missing = []
    try:
        for right in NEEDED:
            if not await _may(client, right, user=account):
                missing.append(right)
    except ApiError as error:
        if error.status not in (FORBIDDEN, NOT_FOUND):
            raise
        return [unseen(AREA, f"no right to ask about {account}; asked about you instead"), *await _own(client)]
    return _findings(missing, who=account, severity=Severity.BROKEN)


async def _own(client: KubeClient) -> list[Finding]:
    """Self-access reviews: true of the scheduler where this runs in its pod."""
    missing = [right for right in NEEDED if not await _may(client, right)]
    return _findings(missing, who="you", severity=Severity.UNSEEN)


def _findings(missing: list[Right], *, who: str, severity: Severity) -> list[Finding]:
    if not missing:
        return [fine(AREA, f"{who} may do all that the scheduler does ({len(NEEDED)} verbs)")]
    if severity is Severity.UNSEEN:
        texts = ", ".join(right.text for right in missing)
        return [
            unseen(
                AREA,
                f"you may not {texts}; whether the scheduler may is not known",
                fix="run it as the scheduler: kubectl exec deploy/tessera-scheduler -c tessera -- tessera doctor",
            )
        ]
    return [
        broken(AREA, f"{who} may not {right.text}", why=right.without, fix="apply the chart's ClusterRole again")
        for right in missing
    ]


def _account(installation: Installation) -> str | None:
    """The user behind the scheduler's pods."""
    if installation.deployment is None:
        return None
    spec = installation.deployment.get("spec", {}).get("template", {}).get("spec", {})
    return f"system:serviceaccount:{installation.namespace}:{spec.get('serviceAccountName') or 'default'}"


async def _may(client: KubeClient, right: Right, *, user: str = "") -> bool:
    attributes: Json = {"verb": right.verb, "resource": right.resource, "group": ""}
    if right.subresource:
        attributes["subresource"] = right.subresource
    kind = "SubjectAccessReview" if user else "SelfSubjectAccessReview"
    spec: Json = {"resourceAttributes": attributes} | ({"user": user} if user else {})
    body = {"apiVersion": "authorization.k8s.io/v1", "kind": kind, "spec": spec}
    resource = ACCESS_REVIEWS if user else SELF_SUBJECT_ACCESS_REVIEWS
    answer = await client.create(resource.path(), body, dict[str, Any])
    return bool(answer.get("status", {}).get("allowed"))
