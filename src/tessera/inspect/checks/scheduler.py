"""Checks that the scheduler's Deployment has ready replicas, against what the apiserver does without one.

It names the images that its nodes must be able to pull, because a registry without them is the usual cause.
"""

from __future__ import annotations

from collections.abc import Iterator

from tessera.inspect.checks.findings import Area, Finding
from tessera.inspect.installation import Installation
from tessera.inspect.state import Json

AREA = Area("scheduler")


def check_scheduler(installation: Installation) -> Iterator[Finding]:
    deployment = installation.deployment
    if deployment is None:
        if installation.webhooks:
            yield AREA.unseen("whether it is ready: there is no readable Deployment *-scheduler from the chart")
        return
    where = f"Deployment {installation.namespace}/{installation.name}"
    wanted = int(deployment.get("spec", {}).get("replicas", 1))
    ready = int(deployment.get("status", {}).get("readyReplicas") or 0)
    refuses = _refuses_pods(installation)
    if not wanted:
        yield AREA.broken(
            f"{where} is scaled to 0",
            why="pods that ask for devices are refused, or never scheduled",
            fix=f"kubectl -n {installation.namespace} scale deployment {installation.name} --replicas=2",
        )
    elif not ready:
        images = " and ".join(_images(deployment)) or "its images"
        yield AREA.broken(
            f"{where} has no ready replica, of {wanted}{_reason(deployment)}",
            why="every pod that asks for devices is refused (failurePolicy Fail)"
            if refuses
            else "pods that ask for devices are not completed, and are never scheduled or get no slice",
            fix=f"kubectl -n {installation.namespace} describe pods; its nodes must be able to pull {images}",
        )
    elif ready < wanted:
        yield AREA.warning(
            f"{where} has {ready} ready replica(s), of {wanted}{_reason(deployment)}",
            why="it does not survive the loss of one more" if ready == 1 else "it has fewer than it should",
            fix=f"kubectl -n {installation.namespace} describe pods",
        )
    elif ready == 1 and refuses:
        yield AREA.warning(
            f"{where} has one replica, and failurePolicy is Fail",
            why="while it restarts or its node is gone, every pod that asks for devices is refused",
            fix="set scheduler.replicas to 2",
        )
    else:
        yield AREA.fine(f"{where} has {ready} ready replica(s)")


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
