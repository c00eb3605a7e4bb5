"""Checks that the scheduler has the permissions that it needs.

The apiserver is asked about the scheduler's service account or, if that is forbidden, about the current user.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tessera.inspect.checks import Area, Finding
from tessera.inspect.installation import Installation
from tessera.inspect.state import Json
from tessera.kube.client import KubeClient
from tessera.kube.errors import ApiError, is_forbidden, is_not_found
from tessera.kube.resources import SELF_SUBJECT_ACCESS_REVIEWS, Resource
from tessera.wire.golang import parse_bool

PERMISSIONS = Area("permissions")
ACCESS_REVIEWS = Resource("authorization.k8s.io", "v1", "subjectaccessreviews", False)


@dataclass(frozen=True, slots=True)
class Permission:
    """One verb on one resource, and what fails without it."""

    verb: str
    resource: str
    without: str
    subresource: str = ""
    group: str = ""

    @property
    def text(self) -> str:
        return f"{self.verb} {self.resource}{'/' + self.subresource if self.subresource else ''}"


NEEDED = (
    *(Permission(verb, "pods", "the ledger cannot be kept up to date") for verb in ("list", "watch")),
    Permission("get", "pods", "a bind whose response was lost is never resolved"),
    Permission("patch", "pods", "pending pods are not retried when they would fit"),
    Permission("create", "pods", "no pod can be bound", "binding"),
    *(Permission(verb, "nodes", "no cards are known") for verb in ("list", "watch")),
    *(Permission(verb, "nodes", "HAMi's plugins cannot be used: handshake and node lock") for verb in ("get", "patch")),
    *(Permission(verb, "resourcequotas", "quotas are not enforced") for verb in ("list", "watch")),
    Permission("create", "events", "no event says why a pod waits"),
)
"""what the scheduler uses and the chart grants"""
FOR_PREEMPTION = (
    Permission("create", "pods", "no pod can be evicted for another one", "eviction"),
    Permission("patch", "pods", "kube-scheduler keeps no CPU and memory free for pods that preempt others", "status"),
    *(
        Permission(verb, "poddisruptionbudgets", "no pod is evicted for another one", group="policy")
        for verb in ("list", "watch")
    ),
)
"""the same, unless --preemption=false"""
RESOURCE_API = "resource.k8s.io"
FOR_CLAIMS = (
    *(
        Permission(
            verb, resource, "no pod can be placed at all: the scheduler waits for these lists", group=RESOURCE_API
        )
        for resource in ("resourceslices", "deviceclasses", "resourceclaims")
        for verb in ("list", "watch")
    ),
    Permission("get", "resourceclaims", "a write whose response was lost is never resolved", group=RESOURCE_API),
    Permission(
        "patch", "resourceclaims", "a new leader cannot make late writes of the old one fail", group=RESOURCE_API
    ),
    Permission("update", "resourceclaims", "no claim can be allocated", "status", RESOURCE_API),
    *(
        Permission(verb, "resourceclaimtemplates", "the webhook does not know whose claims are", group=RESOURCE_API)
        for verb in ("list", "watch")
    ),
)
"""the same, with --dra"""
FOR_CONVERSION = tuple(
    Permission(verb, "resourceclaimtemplates", "requests cannot become ResourceClaims", group=RESOURCE_API)
    for verb in ("create", "patch", "delete")
)
"""the same, with --dra-convert"""


async def check_permissions(client: KubeClient, installation: Installation) -> list[Finding]:
    account, needed = _account(installation), needed_by(installation)
    if account is None:
        return await _check_own(client, needed)
    try:
        missing = await _missing(client, needed, user=account)
    except ApiError as error:
        if not is_forbidden(error) and not is_not_found(error):
            raise
        text = f"you may not check the permissions of {account}; checking yours instead"
        return [PERMISSIONS.unseen(text), *await _check_own(client, needed)]
    return _findings(missing, needed, account) or [
        PERMISSIONS.broken(
            f"{account} may not {each.text}", why=each.without, fix="apply the chart's ClusterRole again"
        )
        for each in missing
    ]


def needed_by(installation: Installation) -> tuple[Permission, ...]:
    """What the installed scheduler needs with its flags."""
    flags = installation.setup.flags or {}

    def switch(name: str) -> bool | None:
        given = flags.get(name, "")
        return parse_bool(given) if isinstance(given, str) else None

    return (
        *NEEDED,
        *(() if switch("preemption") is False else FOR_PREEMPTION),
        *(FOR_CLAIMS if switch("dra") else ()),
        *(FOR_CONVERSION if switch("dra") and switch("dra-convert") else ()),
    )


async def _check_own(client: KubeClient, needed: Sequence[Permission]) -> list[Finding]:
    """Self-access reviews. They are about the scheduler if this runs in its pod."""
    missing = await _missing(client, needed)
    texts = ", ".join(permission.text for permission in missing)
    return _findings(missing, needed, "you") or [
        PERMISSIONS.unseen(
            f"you may not {texts}; whether the scheduler may is unknown",
            fix="run it as the scheduler: kubectl exec deploy/tessera-scheduler -c tessera -- tessera doctor",
        )
    ]


async def _missing(client: KubeClient, needed: Sequence[Permission], *, user: str = "") -> list[Permission]:
    return [permission for permission in needed if not await _is_allowed(client, permission, user=user)]


def _findings(missing: list[Permission], needed: Sequence[Permission], who: str) -> list[Finding]:
    """That nothing is missing, if that is so."""
    text = f"{who} may do everything that the scheduler needs ({len(needed)} permissions)"
    return [] if missing else [PERMISSIONS.fine(text)]


def _account(installation: Installation) -> str | None:
    """The service account of the scheduler's pods."""
    if installation.deployment is None:
        return None
    spec = installation.deployment.get("spec", {}).get("template", {}).get("spec", {})
    return f"system:serviceaccount:{installation.namespace}:{spec.get('serviceAccountName') or 'default'}"


async def _is_allowed(client: KubeClient, permission: Permission, *, user: str) -> bool:
    attributes: Json = {"verb": permission.verb, "resource": permission.resource, "group": permission.group}
    if permission.subresource:
        attributes["subresource"] = permission.subresource
    kind = "SubjectAccessReview" if user else "SelfSubjectAccessReview"
    spec: Json = {"resourceAttributes": attributes} | ({"user": user} if user else {})
    body = {"apiVersion": "authorization.k8s.io/v1", "kind": kind, "spec": spec}
    resource = ACCESS_REVIEWS if user else SELF_SUBJECT_ACCESS_REVIEWS
    answer = await client.create(resource.path(), body, dict[str, Any])
    return bool(answer.get("status", {}).get("allowed"))
