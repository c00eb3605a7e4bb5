"""Checks that the agents run on all nodes on which their DaemonSet wants them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tessera.inspect.checks.findings import Area, Finding
from tessera.inspect.installation import Installation
from tessera.inspect.state import Json
from tessera.kube.client import KubeClient
from tessera.kube.errors import ApiError, is_forbidden
from tessera.kube.resources import DAEMON_SETS

AREA = Area("agents")
SCHEDULER, DEVICE_PLUGIN = "-scheduler", "-device-plugin"
"""ends of the names of Deployment and DaemonSet in both charts"""
RELEASES = ("tessera", "hami")


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
            return [AREA.unseen(f"whether they are ready: {where} cannot be read", fix="grant get on daemonsets")]
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
        yield AREA.broken(
            f"{where} runs on no node" + (f": none has the label(s) {labels}" if labels else ""),
            why="no agent registers cards, so no pod that asks for devices can be placed",
            fix=f"kubectl label node NODE {labels}" if labels else "look at its affinity and at the nodes' taints",
        )
    elif ready < wanted:
        make = AREA.warning if ready else AREA.broken
        labels = _listed(spec.get("selector", {}).get("matchLabels"), ",")
        yield make(
            f"{where} is ready on {ready} of {wanted} node(s)",
            why="a node without its agent gets no new pods that ask for devices; running ones are not affected",
            fix=f"kubectl -n {namespace} get pods -o wide -l '{labels}'; kubectl describe those that are not ready",
        )
    else:
        yield AREA.fine(f"{where} is ready on {ready} node(s)")


def _listed(labels: Json | None, separator: str) -> str:
    return separator.join(f"{key}={value}" for key, value in sorted((labels or {}).items()))
