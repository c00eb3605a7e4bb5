"""Is the webhook registered, does it trust the right authority, and does it answer?

Whether it answers is asked of the apiserver itself, with a pod that is created for the sake of the answer only
(`dryRun`): that takes the way of every real pod, through Service, network and TLS.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from tessera.inspect.checks.findings import Finding, broken, fine, unseen, warning
from tessera.inspect.dry_run import Trial
from tessera.inspect.installation import FORBIDDEN, NOT_FOUND, Installation
from tessera.inspect.state import Json
from tessera.kube.client import KubeClient
from tessera.kube.errors import ApiError, KubeError
from tessera.kube.resources import PODS, SECRETS
from tessera.scheduler.certificates.authority import BadCertificate, facts_of
from tessera.vendors.base import Vendor

AREA = "webhook"
DAY = 86_400.0
SOON = 14 * DAY
"""a certificate that ends within this many seconds is worth a warning; own ones are renewed long before"""
SECRET = "tessera-scheduler-tls"

NOT_COMPLETED = "device pods keep the default scheduler and get no slice, or are never scheduled"


def check_registration(installation: Installation, *, now: float) -> Iterator[Finding]:
    if not installation.webhooks_seen:
        yield unseen(
            AREA, "the webhook configurations cannot be read", fix="needs list on mutatingwebhookconfigurations"
        )
        return
    if not installation.webhooks:
        yield broken(
            AREA,
            "no MutatingWebhookConfiguration of Tessera or HAMi (tessera-webhook, hami-webhook) exists",
            why=NOT_COMPLETED,
            fix="install the chart with scheduler.admissionWebhook.enabled, or apply the one of docs/scheduler.md",
        )
        return
    names = [configuration["metadata"]["name"] for configuration in installation.webhooks]
    if len(names) > 1:
        yield warning(
            AREA,
            f"{len(names)} configurations complete device pods: {', '.join(names)}",
            why="two webhooks may give pods different schedulers and defaults",
            fix="delete the one that no scheduler serves: kubectl delete mutatingwebhookconfiguration NAME",
        )
    for configuration in installation.webhooks:
        yield from _configuration(configuration, now)


def _configuration(configuration: Json, now: float) -> Iterator[Finding]:
    name = configuration["metadata"]["name"]
    yield fine(AREA, f"{name} is registered")
    for webhook in configuration.get("webhooks") or ():
        if not _covers_pods(webhook):
            yield broken(
                AREA,
                f"{name}: no rule covers the creation of pods",
                why=NOT_COMPLETED,
                fix="give it a rule with operations [CREATE], apiVersions [v1] and resources [pods]",
            )
        bundle = (webhook.get("clientConfig") or {}).get("caBundle", "")
        yield from _bundle(name, bundle, now)


def _covers_pods(webhook: Json) -> bool:
    return any(
        {"CREATE", "*"} & set(rule.get("operations") or ()) and {"pods", "*", "*/*"} & set(rule.get("resources") or ())
        for rule in webhook.get("rules") or ()
    )


def _bundle(name: str, bundle: str, now: float) -> Iterator[Finding]:
    fix = "restart the scheduler where it manages its certificates; else put its authority into caBundle"
    if not bundle:
        yield warning(
            AREA,
            f"{name}: caBundle is empty",
            why="the apiserver trusts well-known authorities only then; calls fail unless one signed the certificate",
            fix=fix,
        )
        return
    try:
        yield from certificate_findings(f"{name}: authority in caBundle", base64.b64decode(bundle), now, fix=fix)
    except (binascii.Error, ValueError) as error:
        yield broken(AREA, f"{name}: caBundle cannot be read: {error}", why="every call of the webhook fails", fix=fix)


def certificate_findings(what: str, pem: bytes, now: float, *, fix: str) -> Iterator[Finding]:
    """How long a certificate is good for."""
    try:
        facts = facts_of(pem)
    except BadCertificate as error:
        yield broken(AREA, f"{what} cannot be read: {error}", why="every call of the webhook fails", fix=fix)
        return
    until = datetime.fromtimestamp(facts.not_after, UTC).strftime("%Y-%m-%d %H:%M UTC")
    if facts.not_after <= now:
        yield broken(AREA, f"{what} ended on {until}", why="every call of the webhook fails", fix=fix)
    elif facts.not_after <= now + SOON:
        days = int((facts.not_after - now) // DAY)
        yield warning(AREA, f"{what} ends on {until}, in {days} days", why="afterwards every call fails", fix=fix)
    else:
        yield fine(AREA, f"{what} is good until {until}")


async def check_certificate(client: KubeClient, installation: Installation, *, now: float) -> list[Finding]:
    """The serving certificate, where the scheduler keeps it in a Secret that may be read."""
    if not installation.namespace:
        return []
    fix = "restart the scheduler where it manages its certificates; else renew the Secret's tls.crt and tls.key"
    for name in dict.fromkeys((f"{installation.name}-tls", SECRET)):
        try:
            secret = await client.get(SECRETS.path(installation.namespace, name), dict[str, Any])
        except ApiError as error:
            if error.status == FORBIDDEN:
                return [
                    unseen(AREA, f"the serving certificate in Secret {installation.namespace}/{name} cannot be read")
                ]
            if error.status == NOT_FOUND:
                continue
            raise
        pem = base64.b64decode((secret.get("data") or {}).get("tls.crt", ""))
        return list(certificate_findings(f"serving certificate in Secret {name}", pem, now, fix=fix))
    return []


async def check_answers(
    trial: Trial, vendors: Mapping[str, Vendor], *, namespace: str, scheduler: str
) -> list[Finding]:
    """Create a pod for the sake of the answer, and look at what the webhook made of it."""
    resource = _resource(vendors)
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": "tessera-doctor-", "namespace": namespace},
        "spec": {
            "containers": [{"name": "main", "image": "none", "resources": {"limits": {resource: "1"}}}],
            # Nothing would ever run, even if somebody kept it.
            "schedulingGates": [{"name": "tessera.io/doctor"}],
        },
    }
    try:
        answer = await trial.create(PODS.path(namespace), pod)
    except ApiError as error:
        return [_refused(error, namespace)]
    except KubeError as error:
        return [unseen(AREA, f"a trial pod got no answer: {error}")]
    found = answer.get("spec", {}).get("schedulerName", "")
    if found == scheduler:
        return [
            fine(AREA, f"it answers: a trial pod (dry run in namespace {namespace}) was given scheduler {scheduler}")
        ]
    return [
        broken(
            AREA,
            f"a trial pod in namespace {namespace} was left with scheduler {found or '(none)'}, not {scheduler}",
            why=NOT_COMPLETED,
            fix=f"the call fails unnoticed (failurePolicy Ignore), or namespace {namespace} is excluded"
            " (label hami.io/webhook=ignore): see the apiserver's log, and --namespace to try another",
        )
    ]


def _refused(error: ApiError, namespace: str) -> Finding:
    if "failed calling webhook" in error.message:
        return broken(
            AREA,
            f"the apiserver cannot call it: {error.message}",
            why="device pods are refused, or pass uncompleted",
            fix="see that the scheduler's pods run and its Service has endpoints; compare caBundle and certificate",
        )
    if error.status == FORBIDDEN:
        return unseen(
            AREA,
            f"no right to try a pod in namespace {namespace}: {error.message}",
            fix="needs create on pods (dry run)",
        )
    return unseen(AREA, f"a trial pod in namespace {namespace} was refused: {error.message}")


def _resource(vendors: Mapping[str, Vendor]) -> str:
    """NVIDIA's count where there is one: every installation has it."""
    nvidia = vendors.get("NVIDIA")
    names = [nvidia.names.count] if nvidia is not None else []
    names += [vendor.names.count for vendor in vendors.values()]
    return next(name for name in names if name)
