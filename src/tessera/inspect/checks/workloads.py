"""Checks that our own workloads run: the scheduler's Deployment, and the agents on all nodes where they are wanted.

A scheduler without ready replicas is judged against what the apiserver does without one. The finding names the images
that its nodes must be able to pull, because a registry without them is the usual cause.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tessera.inspect.checks.findings import Area, Finding
from tessera.inspect.installation import Installation
from tessera.inspect.state import Json
from tessera.kube.client import KubeClient
from tessera.kube.errors import ApiError, is_forbidden
from tessera.kube.resources import DAEMON_SETS

DEPLOYMENT = Area("scheduler")

AGENTS = Area("agents")
SCHEDULER, DEVICE_PLUGIN = "-scheduler", "-device-plugin"
"""ends of the names of Deployment and DaemonSet in both charts"""
RELEASES = ("tessera", "hami")


def check_scheduler(installation: Installation) -> Iterator[Finding]:
    deployment = installation.deployment
    if deployment is None:
        if installation.webhooks:
            yield DEPLOYMENT.unseen("whether it is ready: there is no readable Deployment *-scheduler from the chart")
        return
    where = f"Deployment {installation.namespace}/{installation.name}"
    wanted = int(deployment.get("spec", {}).get("replicas", 1))
    ready = int(deployment.get("status", {}).get("readyReplicas") or 0)
    refuses = _refuses_pods(installation)
    if not wanted:
        yield DEPLOYMENT.broken(
            f"{where} is scaled to 0",
            why="pods that ask for devices are refused, or never scheduled",
            fix=f"kubectl -n {installation.namespace} scale deployment {installation.name} --replicas=2",
        )
    elif not ready:
        images = " and ".join(_images(deployment)) or "its images"
        yield DEPLOYMENT.broken(
            f"{where} has no ready replica, of {wanted}{_reason(deployment)}",
            why="every pod that asks for devices is refused (failurePolicy Fail)"
            if refuses
            else "pods that ask for devices are not completed, and are never scheduled or get no slice",
            fix=f"kubectl -n {installation.namespace} describe pods; its nodes must be able to pull {images}",
        )
    elif ready < wanted:
        yield DEPLOYMENT.warning(
            f"{where} has {ready} ready replica(s), of {wanted}{_reason(deployment)}",
            why="it does not survive the loss of one more" if ready == 1 else "it has fewer than it should",
            fix=f"kubectl -n {installation.namespace} describe pods",
        )
    elif ready == 1 and refuses:
        yield DEPLOYMENT.warning(
            f"{where} has one replica, and failurePolicy is Fail",
            why="while it restarts or its node is gone, every pod that asks for devices is refused",
            fix="set scheduler.replicas to 2",
        )
    else:
        yield DEPLOYMENT.fine(f"{where} has {ready} ready replica(s)")


def _refuses_pods(installation: Installation) -> bool:
    """The apiserver's own default is Fail."""
    webhooks = [webhook for each in installation.webhooks for webhook in each.get("webhooks") or ()]
    return any(webhook.get("failurePolicy", "Fail") == "Fail" for webhook in webhooks)


def _reason(deployment: Json) -> str:
    """Why, if the controller says more than that there are too few."""
    for condition in deployment.get("status", {}).get("conditions") or ():
        known = (condition.get("type"), condition.get("status"))
        if known in (("ReplicaFailure", "True"), ("Progressing", "False")) and condition.get("message"):
            return f" ({condition['message']})"
    return ""


def _images(deployment: Json) -> list[str]:
    containers = deployment.get("spec", {}).get("template", {}).get("spec", {}).get("containers") or ()
    return [each["image"] for each in containers if each.get("image")]


async def check_agents(client: KubeClient, installation: Installation) -> list[Finding]:
    if not installation.namespace:
        return []
    release = installation.name.removesuffix(SCHEDULER)
    for name in dict.fromkeys(f"{each}{DEVICE_PLUGIN}" for each in (release, *RELEASES) if each):
        try:
            found = await client.find(DAEMON_SETS.path(installation.namespace, name), dict[str, Any])
        except ApiError as error:
            if not is_forbidden(error):
                raise
            where = f"DaemonSet {installation.namespace}/{name}"
            return [AGENTS.unseen(f"whether they are ready: {where} cannot be read", fix="grant get on daemonsets")]
        if found is not None:
            return list(check_daemon_set(found))
    return []  # They are another chart's, or none's; what is registered is checked node by node.


def check_daemon_set(daemon_set: Json) -> Iterator[Finding]:
    metadata, spec, status = (daemon_set.get(part) or {} for part in ("metadata", "spec", "status"))
    namespace = metadata.get("namespace", "")
    where = f"DaemonSet {namespace}/{metadata.get('name', '')}"
    wanted, ready = int(status.get("desiredNumberScheduled") or 0), int(status.get("numberReady") or 0)
    if not wanted:
        labels = _listed(spec.get("template", {}).get("spec", {}).get("nodeSelector"), " ")
        yield AGENTS.broken(
            f"{where} runs on no node" + (f": none has the label(s) {labels}" if labels else ""),
            why="no agent registers cards, so no pod that asks for devices can be placed",
            fix=f"kubectl label node NODE {labels}" if labels else "look at its affinity and at the nodes' taints",
        )
    elif ready < wanted:
        make = AGENTS.warning if ready else AGENTS.broken
        labels = _listed(spec.get("selector", {}).get("matchLabels"), ",")
        yield make(
            f"{where} is ready on {ready} of {wanted} node(s)",
            why="a node without its agent gets no new pods that ask for devices; running ones are not affected",
            fix=f"kubectl -n {namespace} get pods -o wide -l '{labels}'; kubectl describe those that are not ready",
        )
    else:
        yield AGENTS.fine(f"{where} is ready on {ready} node(s)")


def _listed(labels: Json | None, separator: str) -> str:
    return separator.join(f"{key}={value}" for key, value in sorted((labels or {}).items()))
