"""Checks the configuration of the kube-scheduler that calls the extender.

Only the chart's ConfigMap can be checked; a kube-scheduler that is configured elsewhere is not visible in the API.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tessera.files.documents import DocumentError, read_documents
from tessera.inspect.checks.findings import Area, Finding
from tessera.inspect.installation import Installation
from tessera.inspect.state import Json
from tessera.scheduler.settings import Settings
from tessera.services.value_types import parse_duration
from tessera.vendors.base import Vendor

AREA = Area("kube-scheduler")
KEYS = ("config.yaml", "config.json")
ALL = 100
DYNAMIC_RESOURCES = "DynamicResources"
"""the plugin of kube-scheduler that allocates claims"""


def check_kube_scheduler(
    installation: Installation, *, settings: Settings, vendors: Mapping[str, Vendor], present: frozenset[str]
) -> Iterator[Finding]:
    """`present`: the vendors that have cards in this cluster."""
    found = installation.scheduler_config
    config = _config(found) if found is not None else None
    if found is None or config is None:
        yield AREA.unseen(
            "its configuration cannot be checked: there is no readable ConfigMap *-scheduler from the chart",
            fix="compare its configuration with docs/operations.md (extender, percentageOfNodesToScore)",
        )
        return
    where = f"ConfigMap {found['metadata']['namespace']}/{found['metadata']['name']}"
    extenders = [each for each in config.get("extenders") or () if isinstance(each, dict)]
    if not extenders:
        yield AREA.broken(
            f"{where} has no extender", why="Tessera is never asked", fix="add the extender from docs/operations.md"
        )
        return
    yield from _check_profiles(config, where, settings)
    if settings.dra and installation.setup.flags is not None:  # If they are not known, claims are assumed only.
        yield from _check_claims(config, where, settings)
    for extender in extenders:
        yield from _check_extender(extender, where, settings, vendors, present)


def _check_profiles(config: Json, where: str, settings: Settings) -> Iterator[Finding]:
    share = config.get("percentageOfNodesToScore")
    if share != ALL:
        yield AREA.warning(
            f"{where}: percentageOfNodesToScore is {share if share is not None else 'not set'}, not {ALL}",
            why="in a large cluster the extender sees only a sample of the nodes, and pods wait although a node fits",
            fix="set percentageOfNodesToScore: 100 and restart kube-scheduler",
        )
    else:
        yield AREA.fine(f"{where} passes all nodes to the extender")
    profiles = [profile.get("schedulerName", "") for profile in config.get("profiles") or ()]
    if settings.scheduler_name not in profiles:
        yield AREA.broken(
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
            yield AREA.broken(
                f"{where}: profile {settings.scheduler_name} still has the plugin {DYNAMIC_RESOURCES}",
                why="kube-scheduler looks for devices itself, and finds only tainted ones: pods with claims wait",
                fix=f"set plugins.multiPoint.disabled: [{{name: {DYNAMIC_RESOURCES}}}] in that profile",
            )
    if any(each.get("managedResources") for each in config.get("extenders") or () if isinstance(each, dict)):
        yield AREA.broken(
            f"{where}: the extender has managedResources",
            why="kube-scheduler does not ask Tessera about pods that have only ResourceClaims",
            fix="remove managedResources, and list its resources as ignoredResources of NodeResourcesFit",
        )


def _check_extender(
    extender: Json, where: str, settings: Settings, vendors: Mapping[str, Vendor], present: frozenset[str]
) -> Iterator[Finding]:
    missing = [
        f"{key}: {value}"
        for key, value in (("filterVerb", "filter"), ("bindVerb", "bind"))
        if extender.get(key) != value
    ]
    if missing:
        yield AREA.broken(
            f"{where}: the extender lacks {', '.join(missing)}",
            why="pods are scheduled without a slice",
            fix="set both verbs as in docs/operations.md",
        )
    if settings.preemption and extender.get("preemptVerb") != "preempt":
        yield AREA.warning(
            f"{where}: the extender lacks preemptVerb: preempt",
            why="kube-scheduler may delete pods for CPU or memory on nodes where the cards do not fit",
            fix="set preemptVerb: preempt",
        )
    if not extender.get("nodeCacheCapable"):
        yield AREA.broken(
            f"{where}: the extender is not nodeCacheCapable",
            why="kube-scheduler sends whole nodes, which Tessera treats as a simulation: nothing is reserved",
            fix="set nodeCacheCapable: true",
        )
    managed = {each.get("name"): each for each in extender.get("managedResources") or ()}
    wanted = [name for key in sorted(present) for name in vendors[key].names.all]
    unmanaged = [name for name in wanted if managed and name not in managed]
    if unmanaged:
        yield AREA.broken(
            f"{where}: managedResources lacks {', '.join(unmanaged)}",
            why="pods that request only these never reach the extender",
            fix="add them with ignoredByScheduler: true",
        )
    counted = [name for name in wanted if name in managed and not managed[name].get("ignoredByScheduler")]
    if counted:
        yield AREA.broken(
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
        yield AREA.warning(
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
