"""Checks that the webhook is registered, that its certificates are valid, and that it answers.

The last check creates a pod with `dryRun`, so that the apiserver calls the webhook as it does for every real pod:
through the Service, the network and TLS.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from tessera.inspect.checks import Area, Finding
from tessera.inspect.installation import WEBHOOK_NAME, Installation
from tessera.inspect.offline_cluster import OfflineCluster
from tessera.inspect.state import Json
from tessera.kube.client import KubeClient
from tessera.kube.errors import ApiError, KubeError, is_forbidden
from tessera.kube.resources import PODS, SECRETS
from tessera.scheduler.certificates.authority import BadCertificate, facts_of
from tessera.vendors.base import Vendor

WEBHOOK = Area("webhook")
DAY = 86_400.0
SOON = 14 * DAY
"""seconds before its end from which a certificate gets a warning; Tessera renews its own long before"""
SECRET = "tessera-scheduler-tls"

NOT_MUTATED = "device pods keep the default scheduler: they get no slice, or are never scheduled"
EVERY_CALL = "every call to the webhook fails"


def check_registration(installation: Installation, *, now: float) -> Iterator[Finding]:
    if not installation.webhooks_seen:
        yield WEBHOOK.unseen(
            "the webhook configurations cannot be read", fix="grant list on mutatingwebhookconfigurations"
        )
        return
    if not installation.webhooks:
        yield WEBHOOK.broken(
            "there is no MutatingWebhookConfiguration of Tessera or HAMi (tessera-webhook, hami-webhook)",
            why=NOT_MUTATED,
            fix="install the chart with scheduler.admissionWebhook.enabled, or apply the one in docs/operations.md",
        )
        return
    names = [configuration["metadata"]["name"] for configuration in installation.webhooks]
    if len(names) > 1:
        yield WEBHOOK.warning(
            f"{len(names)} configurations mutate device pods: {', '.join(names)}",
            why="two webhooks may set different schedulers and defaults",
            fix="delete the one without a running scheduler: kubectl delete mutatingwebhookconfiguration NAME",
        )
    for configuration in installation.webhooks:
        # Its webhooks differ in the pods that they cover, and share what is wrong with them.
        yield from dict.fromkeys(_configuration(configuration, now))
        if installation.deployment is not None:
            yield from _check_failure_policy(configuration)


def _configuration(configuration: Json, now: float) -> Iterator[Finding]:
    name = configuration["metadata"]["name"]
    yield WEBHOOK.fine(f"{name} is registered")
    for webhook in configuration.get("webhooks") or ():
        if not _covers_pods(webhook):
            yield WEBHOOK.broken(
                f"{name}: no rule covers the creation of pods",
                why=NOT_MUTATED,
                fix="add a rule with operations [CREATE], apiVersions [v1] and resources [pods]",
            )
        bundle = (webhook.get("clientConfig") or {}).get("caBundle", "")
        yield from _bundle(name, bundle, now)


def _check_failure_policy(configuration: Json) -> Iterator[Finding]:
    """What the apiserver does while no replica answers, seen against the pods that it calls the webhook for."""
    name = configuration["metadata"]["name"]
    # The others in the configuration concern pods that ask for nothing.
    webhook = next((each for each in configuration.get("webhooks") or () if each.get("name") == WEBHOOK_NAME), None)
    if webhook is None:
        return
    is_strict, is_limited = webhook.get("failurePolicy", "Fail") == "Fail", bool(webhook.get("matchConditions"))
    if is_strict and not is_limited:
        yield WEBHOOK.warning(
            f"{name}: failurePolicy is Fail, but no matchConditions limit it to pods that ask for devices",
            why="while no replica of the scheduler answers, no pod of any kind can be created",
            fix="set scheduler.admissionWebhook.failurePolicy to Ignore, or install the chart on Kubernetes 1.28 or"
            " later, where it sets conditions",
        )
    elif is_limited and not is_strict:
        yield WEBHOOK.warning(
            f"{name}: failurePolicy is {webhook['failurePolicy']}",
            why=f"while no replica of the scheduler answers, {NOT_MUTATED}",
            fix="set scheduler.admissionWebhook.failurePolicy to Fail: its conditions let all other pods through",
        )


def _covers_pods(webhook: Json) -> bool:
    return any(
        {"CREATE", "*"} & set(rule.get("operations") or ()) and {"pods", "*", "*/*"} & set(rule.get("resources") or ())
        for rule in webhook.get("rules") or ()
    )


def _bundle(name: str, bundle: str, now: float) -> Iterator[Finding]:
    fix = "restart the scheduler if it manages its certificates; otherwise put its CA into caBundle"
    if not bundle:
        yield WEBHOOK.warning(
            f"{name}: caBundle is empty",
            why="the apiserver then trusts only well-known CAs; calls fail unless one of them signed the certificate",
            fix=fix,
        )
        return
    try:
        yield from certificate_findings(f"{name}: the CA in caBundle", base64.b64decode(bundle), now, fix=fix)
    except (binascii.Error, ValueError) as error:
        yield WEBHOOK.broken(f"{name}: caBundle cannot be read: {error}", why=EVERY_CALL, fix=fix)


def certificate_findings(what: str, pem: bytes, now: float, *, fix: str) -> Iterator[Finding]:
    """How long a certificate is valid."""
    try:
        facts = facts_of(pem)
    except BadCertificate as error:
        yield WEBHOOK.broken(f"{what} cannot be read: {error}", why=EVERY_CALL, fix=fix)
        return
    until = datetime.fromtimestamp(facts.not_after, UTC).strftime("%Y-%m-%d %H:%M UTC")
    if facts.not_after <= now:
        yield WEBHOOK.broken(f"{what} expired on {until}", why=EVERY_CALL, fix=fix)
    elif facts.not_after <= now + SOON:
        days = int((facts.not_after - now) // DAY)
        yield WEBHOOK.warning(
            f"{what} expires on {until}, in {days} days", why="after that every call to the webhook fails", fix=fix
        )
    else:
        yield WEBHOOK.fine(f"{what} is valid until {until}")


async def check_certificate(client: KubeClient, installation: Installation, *, now: float) -> list[Finding]:
    """The serving certificate, if it is in a Secret that the user may read."""
    if not installation.namespace:
        return []
    fix = "restart the scheduler if it manages its certificates; otherwise renew tls.crt and tls.key in the Secret"
    for name in dict.fromkeys((f"{installation.name}-tls", SECRET)):
        try:
            secret = await client.find(SECRETS.path(installation.namespace, name), dict[str, Any])
        except ApiError as error:
            if not is_forbidden(error):
                raise
            return [WEBHOOK.unseen(f"the serving certificate in Secret {installation.namespace}/{name} cannot be read")]
        if secret is None:
            continue
        pem = base64.b64decode((secret.get("data") or {}).get("tls.crt", ""))
        return list(certificate_findings(f"the serving certificate in Secret {name}", pem, now, fix=fix))
    return []


async def check_dry_run(
    client: KubeClient, installation: Installation, cluster: OfflineCluster, *, namespace: str
) -> list[Finding]:
    """Creates a pod with `dryRun` and looks at what the webhook made of it, unless there certainly is none."""
    if installation.webhooks_seen and not installation.webhooks:
        return []
    resource, scheduler = _resource(cluster.vendors), cluster.settings.scheduler_name
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": "tessera-doctor-", "namespace": namespace},
        "spec": {
            "containers": [{"name": "main", "image": "none", "resources": {"limits": {resource: "1"}}}],
            # So that it could never run, even if it were stored by mistake.
            "schedulingGates": [{"name": "tessera.io/doctor"}],
        },
    }
    try:
        answer = await client.create_dry_run(PODS.path(namespace), pod, dict[str, Any])
    except ApiError as error:
        return [_refused(error, namespace)]
    except KubeError as error:
        return [WEBHOOK.unseen(f"creating a test pod got no response: {error}")]
    found = answer.get("spec", {}).get("schedulerName", "")
    if found == scheduler:
        return [
            WEBHOOK.fine(f"it answers: a test pod (dry run in namespace {namespace}) got schedulerName {scheduler}")
        ]
    return [
        WEBHOOK.broken(
            f"a test pod in namespace {namespace} got schedulerName {found or '(none)'}, not {scheduler}",
            why=NOT_MUTATED,
            fix=f"the call fails silently (failurePolicy Ignore), or namespace {namespace} is excluded"
            " (label hami.io/webhook=ignore): read the apiserver's log, or try another --namespace",
        )
    ]


def _refused(error: ApiError, namespace: str) -> Finding:
    if "failed calling webhook" in error.message:
        return WEBHOOK.broken(
            f"the apiserver cannot call it: {error.message}",
            why="device pods are refused, or created without the webhook's changes",
            fix="check that the scheduler runs, that its Service has endpoints, and that caBundle fits the certificate",
        )
    if is_forbidden(error):
        return WEBHOOK.unseen(
            f"you may not create a test pod in namespace {namespace}: {error.message}",
            fix="grant create on pods (it is only a dry run)",
        )
    return WEBHOOK.unseen(f"a test pod in namespace {namespace} was refused: {error.message}")


def _resource(vendors: Mapping[str, Vendor]) -> str:
    """The resource of the test pod: NVIDIA's if possible, because every installation has it."""
    nvidia = vendors.get("NVIDIA")
    names = [nvidia.names.count] if nvidia is not None else []
    names += [vendor.names.count for vendor in vendors.values()]
    return next(name for name in names if name)
