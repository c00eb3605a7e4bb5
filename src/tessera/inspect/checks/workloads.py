"""Checks that the scheduler and the agents run, and that the webhook's failure policy fits the replicas that are ready.

Everything else follows from these, so they come first.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tessera.inspect.checks.findings import Area, Finding
from tessera.inspect.installation import FORBIDDEN, NOT_FOUND, WEBHOOK, Installation
from tessera.inspect.state import Json
from tessera.kube.client import KubeClient
from tessera.kube.errors import ApiError
from tessera.kube.resources import DAEMON_SETS

AREA = Area("workloads")
POLICY = Area("webhook")
SCHEDULER, DEVICE_PLUGIN = "-scheduler", "-device-plugin"
"""ends of the names of Deployment and DaemonSet in both charts"""
RELEASES = ("tessera", "hami")
SAFE_REPLICAS = 2
"""that keep the webhook there while one of them is replaced"""


async def check_workloads(client: KubeClient, installation: Installation) -> list[Finding]:
    found: list[Finding] = []
    if installation.deployment is not None:
        found += check_deployment(installation.deployment)
    if not installation.namespace:
        return found
    release = installation.name.removesuffix(SCHEDULER)
    for name in dict.fromkeys(f"{each}{DEVICE_PLUGIN}" for each in (release, *RELEASES) if each):
        try:
            path = DAEMON_SETS.path(installation.namespace, name)
            return [*found, *check_daemon_set(await client.get(path, dict[str, Any]))]
        except ApiError as error:
            if error.status == FORBIDDEN:
                fix = "grant get on daemonsets"
                return [*found, AREA.unseen(f"DaemonSet {installation.namespace}/{name} cannot be read", fix=fix)]
            if error.status != NOT_FOUND:
                raise
    return found


def check_deployment(deployment: Json) -> Iterator[Finding]:
    where, wanted, ready = _place(deployment), _wanted(deployment), ready_replicas(deployment)
    text = f"Deployment {where}: {ready} of {wanted} replica(s) ready"
    fix = f"kubectl describe pods {_selector(deployment)}; kubectl logs {_selector(deployment)} --all-containers"
    if not wanted:
        yield AREA.broken(
            f"Deployment {where} is scaled to 0",
            why="no device pod is admitted or placed",
            fix=f"kubectl scale deployment {_flags(deployment)} --replicas={SAFE_REPLICAS}",
        )
    elif not ready:
        why = "no device pod is admitted or placed; running pods are not affected"
        yield AREA.broken(text + _reason(deployment), why=why, fix=fix)
    elif ready < wanted:
        why = "the replicas that are left do all the work; with none left no device pod is admitted or placed"
        yield AREA.warning(text + _reason(deployment), why=why, fix=fix)
    else:
        yield AREA.fine(text)


def check_daemon_set(daemon_set: Json) -> Iterator[Finding]:
    where, status = _place(daemon_set), daemon_set.get("status") or {}
    wanted, ready = status.get("desiredNumberScheduled") or 0, status.get("numberReady") or 0
    text = f"DaemonSet {where}: ready on {ready} of {wanted} node(s)"
    if not wanted:
        labels = (daemon_set.get("spec", {}).get("template", {}).get("spec") or {}).get("nodeSelector") or {}
        chosen = " ".join(f"{key}={value}" for key, value in sorted(labels.items()))
        yield AREA.broken(
            f"DaemonSet {where} runs on no node" + (f": none has the label(s) {chosen}" if chosen else ""),
            why="no agent registers cards, so no device pod can be placed",
            fix=f"kubectl label node NODE {chosen}" if chosen else "check its affinity and the nodes' taints",
        )
    elif ready < wanted:
        make = AREA.warning if ready else AREA.broken
        yield make(
            text,
            why="a node without its agent gets no new device pods; running ones are not affected",
            fix=f"kubectl get pods {_selector(daemon_set)} -o wide; then kubectl describe those that are not ready",
        )
    else:
        yield AREA.fine(text)


def check_failure_policy(installation: Installation) -> Iterator[Finding]:
    """What becomes of device pods while no replica answers, seen against the number of replicas that can answer."""
    if installation.deployment is None:
        return
    ready, scheduler = ready_replicas(installation.deployment), _place(installation.deployment)
    for configuration in installation.webhooks:
        for webhook in configuration.get("webhooks") or ():
            # The others concern pods that need nothing of Tessera.
            if webhook.get("name") == WEBHOOK:
                name = configuration["metadata"]["name"]
                yield from _check_policy(name, webhook, ready=ready, scheduler=scheduler)


def _check_policy(name: str, webhook: Json, *, ready: int, scheduler: str) -> Iterator[Finding]:
    policy = webhook.get("failurePolicy") or "Fail"
    text = f"{name}: failurePolicy is {policy}, and {ready} replica(s) of {scheduler} can answer"
    more = (
        f"run {SAFE_REPLICAS} replicas: scheduler.replicas={SAFE_REPLICAS} and scheduler.leaderElect=true in the chart"
    )
    if policy == "Fail" and not webhook.get("matchConditions"):
        make = POLICY.warning if ready else POLICY.broken
        yield make(
            f"{text}; it has no matchConditions",
            why="while no replica answers, no pod of any kind can be created in the namespaces that it covers",
            fix="set scheduler.admissionWebhook.failurePolicy=Ignore; from Kubernetes 1.28 on the chart limits the"
            " webhook to device pods instead",
        )
    elif policy == "Fail" and not ready:
        yield POLICY.broken(
            text, why="every new device pod is refused until a replica is ready", fix="see the scheduler's Deployment"
        )
    elif policy == "Fail" and ready < SAFE_REPLICAS:
        yield POLICY.warning(text, why="while it restarts or moves, every new device pod is refused", fix=more)
    elif policy == "Fail":
        yield POLICY.fine(text)
    elif not ready:
        yield POLICY.broken(
            text,
            why="new device pods keep the default scheduler: they get no slice, or are never scheduled",
            fix="see the scheduler's Deployment; create the device pods of the meantime again",
        )
    elif webhook.get("matchConditions"):
        yield POLICY.warning(
            text,
            why="a device pod that is created while none answers keeps the default scheduler and gets no slice",
            fix="set scheduler.admissionWebhook.failurePolicy=Fail: its conditions let through pods without devices",
        )
    elif ready < SAFE_REPLICAS:
        yield POLICY.warning(
            text, why="a device pod that is created while it restarts or moves gets no slice", fix=more
        )
    else:
        yield POLICY.fine(text)


def ready_replicas(deployment: Json) -> int:
    return int((deployment.get("status") or {}).get("readyReplicas") or 0)


def _wanted(deployment: Json) -> int:
    replicas = (deployment.get("spec") or {}).get("replicas")
    return 1 if replicas is None else int(replicas)


def _place(workload: Json) -> str:
    return f"{workload['metadata'].get('namespace', '')}/{workload['metadata']['name']}"


def _flags(workload: Json) -> str:
    return f"-n {workload['metadata'].get('namespace', '')} {workload['metadata']['name']}"


def _selector(workload: Json) -> str:
    labels = ((workload.get("spec") or {}).get("selector") or {}).get("matchLabels") or {}
    chosen = ",".join(f"{key}={value}" for key, value in sorted(labels.items()))
    return f"-n {workload['metadata'].get('namespace', '')}" + (f" -l {chosen}" if chosen else "")


def _reason(deployment: Json) -> str:
    """Why, if the controller says more than that there are too few."""
    for condition in (deployment.get("status") or {}).get("conditions") or ():
        kind, status = condition.get("type"), condition.get("status")
        if (kind, status) in (("ReplicaFailure", "True"), ("Progressing", "False")) and condition.get("message"):
            return f" ({condition['message']})"
    return ""
