"""Checks what runs for Tessera: its scheduler, the kube-scheduler that calls the extender, and the agents on the nodes.

A scheduler without ready replicas is judged against what the apiserver does without one. The finding names the images
that its nodes must be able to pull, because a registry without them is the usual cause. Of kube-scheduler only the
chart's ConfigMap can be checked; one that is configured elsewhere is not visible in the API.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tessera.files.documents import DocumentError, read_documents
from tessera.inspect.checks import Area, Finding
from tessera.inspect.installation import Installation
from tessera.inspect.offline_cluster import OfflineCluster
from tessera.inspect.state import Json
from tessera.kube.client import KubeClient
from tessera.kube.errors import ApiError, is_forbidden
from tessera.kube.resources import DAEMON_SETS
from tessera.scheduler.settings import Settings
from tessera.services.value_types import parse_duration

SCHEDULER = Area("scheduler")

AGENTS = Area("agents")
ENDING, DEVICE_PLUGIN = "-scheduler", "-device-plugin"
"""ends of the names of Deployment and DaemonSet in both charts"""
RELEASES = ("tessera", "hami")


def check_scheduler(installation: Installation) -> Iterator[Finding]:
    deployment = installation.deployment
    if deployment is None:
        if installation.webhooks:
            yield SCHEDULER.unseen("whether it is ready: there is no readable Deployment *-scheduler from the chart")
        return
    where = f"Deployment {installation.namespace}/{installation.name}"
    wanted = int(deployment.get("spec", {}).get("replicas", 1))
    ready = int(deployment.get("status", {}).get("readyReplicas") or 0)
    refuses = _refuses_pods(installation)
    if not wanted:
        yield SCHEDULER.broken(
            f"{where} is scaled to 0",
            why="pods that ask for devices are refused, or never scheduled",
            fix=f"kubectl -n {installation.namespace} scale deployment {installation.name} --replicas=2",
        )
    elif not ready:
        images = " and ".join(_images(deployment)) or "its images"
        yield SCHEDULER.broken(
            f"{where} has no ready replica, of {wanted}{_reason(deployment)}",
            why="every pod that asks for devices is refused (failurePolicy Fail)"
            if refuses
            else "pods that ask for devices are not completed, and are never scheduled or get no slice",
            fix=f"kubectl -n {installation.namespace} describe pods; its nodes must be able to pull {images}",
        )
    elif ready < wanted:
        yield SCHEDULER.warning(
            f"{where} has {ready} ready replica(s), of {wanted}{_reason(deployment)}",
            why="it does not survive the loss of one more" if ready == 1 else "it has fewer than it should",
            fix=f"kubectl -n {installation.namespace} describe pods",
        )
    elif ready == 1 and refuses:
        yield SCHEDULER.warning(
            f"{where} has one replica, and failurePolicy is Fail",
            why="while it restarts or its node is gone, every pod that asks for devices is refused",
            fix="set scheduler.replicas to 2",
        )
    else:
        yield SCHEDULER.fine(f"{where} has {ready} ready replica(s)")


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
    release = installation.name.removesuffix(ENDING)
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


KUBE_SCHEDULER = Area("kube-scheduler")
KEYS = ("config.yaml", "config.json")
ALL = 100
DYNAMIC_RESOURCES = "DynamicResources"
"""the plugin of kube-scheduler that allocates claims"""


def check_kube_scheduler(installation: Installation, cluster: OfflineCluster) -> Iterator[Finding]:
    found, settings = installation.scheduler_config, cluster.settings
    config = _config(found) if found is not None else None
    if found is None or config is None:
        yield KUBE_SCHEDULER.unseen(
            "its configuration cannot be checked: there is no readable ConfigMap *-scheduler from the chart",
            fix="compare its configuration with docs/operations.md (extender, percentageOfNodesToScore)",
        )
        return
    where = f"ConfigMap {found['metadata']['namespace']}/{found['metadata']['name']}"
    extenders = [each for each in config.get("extenders") or () if isinstance(each, dict)]
    if not extenders:
        yield KUBE_SCHEDULER.broken(
            f"{where} has no extender", why="Tessera is never asked", fix="add the extender from docs/operations.md"
        )
        return
    yield from _check_profiles(config, where, settings)
    if settings.dra and installation.setup.flags is not None:  # If they are not known, claims are assumed only.
        yield from _check_claims(config, where, settings)
    ledger = cluster.ledger
    present = {card.vendor for name in ledger.node_names() for card in ledger.devices(name).values()}
    resources = [name for key in sorted(present) for name in cluster.vendors[key].names.all]
    for extender in extenders:
        yield from _check_extender(extender, where, settings, resources)


def _check_profiles(config: Json, where: str, settings: Settings) -> Iterator[Finding]:
    share = config.get("percentageOfNodesToScore")
    if share != ALL:
        yield KUBE_SCHEDULER.warning(
            f"{where}: percentageOfNodesToScore is {share if share is not None else 'not set'}, not {ALL}",
            why="in a large cluster the extender sees only a sample of the nodes, and pods wait although a node fits",
            fix="set percentageOfNodesToScore: 100 and restart kube-scheduler",
        )
    else:
        yield KUBE_SCHEDULER.fine(f"{where} passes all nodes to the extender")
    profiles = [profile.get("schedulerName", "") for profile in config.get("profiles") or ()]
    if settings.scheduler_name not in profiles:
        yield KUBE_SCHEDULER.broken(
            f"{where} has no profile {settings.scheduler_name} (it has {', '.join(profiles) or 'none'})",
            why="no scheduler handles the pods that the webhook assigns to it",
            fix=f"add a profile with schedulerName: {settings.scheduler_name}, or change --scheduler-name",
        )


def _check_claims(config: Json, where: str, settings: Settings) -> Iterator[Finding]:
    """Tessera allocates the claims of its pods only if kube-scheduler does not."""
    for profile in config.get("profiles") or ():
        if profile.get("schedulerName") != settings.scheduler_name:
            continue
        disabled = [
            each.get("name")
            for point in ("multiPoint", "filter")
            for each in ((profile.get("plugins") or {}).get(point) or {}).get("disabled") or ()
        ]
        if not {DYNAMIC_RESOURCES, "*"} & set(disabled):
            yield KUBE_SCHEDULER.broken(
                f"{where}: profile {settings.scheduler_name} still has the plugin {DYNAMIC_RESOURCES}",
                why="kube-scheduler looks for devices itself, and finds only tainted ones: pods with claims wait",
                fix=f"set plugins.multiPoint.disabled: [{{name: {DYNAMIC_RESOURCES}}}] in that profile",
            )
    if any(each.get("managedResources") for each in config.get("extenders") or () if isinstance(each, dict)):
        yield KUBE_SCHEDULER.broken(
            f"{where}: the extender has managedResources",
            why="kube-scheduler does not ask Tessera about pods that have only ResourceClaims",
            fix="remove managedResources, and list its resources as ignoredResources of NodeResourcesFit",
        )


def _check_extender(extender: Json, where: str, settings: Settings, resources: Sequence[str]) -> Iterator[Finding]:
    """`resources`: those of the vendors that have cards in this cluster."""
    missing = [
        f"{key}: {value}"
        for key, value in (("filterVerb", "filter"), ("bindVerb", "bind"))
        if extender.get(key) != value
    ]
    if missing:
        yield KUBE_SCHEDULER.broken(
            f"{where}: the extender lacks {', '.join(missing)}",
            why="pods are scheduled without a slice",
            fix="set both verbs as in docs/operations.md",
        )
    if settings.preemption and extender.get("preemptVerb") != "preempt":
        yield KUBE_SCHEDULER.warning(
            f"{where}: the extender lacks preemptVerb: preempt",
            why="kube-scheduler may delete pods for CPU or memory on nodes where the cards do not fit",
            fix="set preemptVerb: preempt",
        )
    if not extender.get("nodeCacheCapable"):
        yield KUBE_SCHEDULER.broken(
            f"{where}: the extender is not nodeCacheCapable",
            why="kube-scheduler sends whole nodes, which Tessera treats as a simulation: nothing is reserved",
            fix="set nodeCacheCapable: true",
        )
    managed = {each.get("name"): each for each in extender.get("managedResources") or ()}
    unmanaged = [name for name in resources if managed and name not in managed]
    if unmanaged:
        yield KUBE_SCHEDULER.broken(
            f"{where}: managedResources lacks {', '.join(unmanaged)}",
            why="pods that request only these never reach the extender",
            fix="add them with ignoredByScheduler: true",
        )
    counted = [name for name in resources if name in managed and not managed[name].get("ignoredByScheduler")]
    if counted:
        yield KUBE_SCHEDULER.broken(
            f"{where}: {', '.join(counted)} without ignoredByScheduler: true",
            why="kube-scheduler counts them too, and rejects nodes that fit",
            fix="set ignoredByScheduler: true on each",
        )
    yield from _check_timeout(extender.get("httpTimeout"), where, settings)


def _check_timeout(text: Any, where: str, settings: Settings) -> Iterator[Finding]:
    try:
        seconds = parse_duration(str(text)) if text is not None else 5.0  # kube-scheduler's own default
    except ValueError:
        return
    if seconds <= settings.turn_s:
        yield KUBE_SCHEDULER.warning(
            f"{where}: httpTimeout is {seconds:g} s, but a bind may wait {settings.turn_s:g} s for its turn",
            why="kube-scheduler gives up on binds that are still running, and starts again",
            fix="set httpTimeout: 30s, or lower the scheduler's --turn-timeout",
        )


def _config(config_map: Json) -> Json | None:
    for key in KEYS:
        text = (config_map.get("data") or {}).get(key)
        if text is not None:
            try:
                found = read_documents(text)
            except DocumentError:
                return None
            return found[0] if len(found) == 1 and isinstance(found[0], dict) else None
    return None
