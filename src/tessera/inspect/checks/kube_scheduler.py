"""Is the kube-scheduler beside the extender told what it must know?

Only the chart's ConfigMap can be looked at; a kube-scheduler that is configured elsewhere is not visible from the API.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from tessera.inspect.checks.findings import Finding, broken, fine, unseen, warning
from tessera.inspect.installation import Installation
from tessera.inspect.state import Json
from tessera.scheduler.settings import Settings
from tessera.services.durations import parse_duration
from tessera.vendors.base import Vendor

AREA = "kube-scheduler"
KEYS = ("config.yaml", "config.json")
ALL = 100


def check_kube_scheduler(
    installation: Installation, *, settings: Settings, vendors: Mapping[str, Vendor], present: frozenset[str]
) -> Iterator[Finding]:
    """`present` are the vendors that have cards in this cluster."""
    found = installation.scheduler_config
    config = _config(found) if found is not None else None
    if found is None or config is None:
        yield unseen(
            AREA,
            "its configuration cannot be seen: no readable ConfigMap *-scheduler of the chart",
            fix="compare the file of your kube-scheduler with docs/scheduler.md (extender, percentageOfNodesToScore)",
        )
        return
    where = f"ConfigMap {found['metadata']['namespace']}/{found['metadata']['name']}"
    extenders = [each for each in config.get("extenders") or () if isinstance(each, dict)]
    if not extenders:
        yield broken(
            AREA, f"{where} has no extender", why="Tessera is never asked", fix="add the extender of docs/scheduler.md"
        )
        return
    yield from _whole(config, where, settings)
    for extender in extenders:
        yield from _extender(extender, where, settings, vendors, present)


def _whole(config: Json, where: str, settings: Settings) -> Iterator[Finding]:
    share = config.get("percentageOfNodesToScore")
    if share != ALL:
        yield warning(
            AREA,
            f"{where}: percentageOfNodesToScore is {share if share is not None else 'not set'}, not {ALL}",
            why="in a large cluster the extender is shown a sample of the nodes, and pods wait beside nodes that fit",
            fix="set percentageOfNodesToScore: 100 and restart kube-scheduler",
        )
    else:
        yield fine(AREA, f"{where} shows the extender all nodes")
    profiles = [profile.get("schedulerName", "") for profile in config.get("profiles") or ()]
    if settings.scheduler_name not in profiles:
        yield broken(
            AREA,
            f"{where} has no profile {settings.scheduler_name} (it has {', '.join(profiles) or 'none'})",
            why="nobody schedules the pods that the webhook gives this scheduler",
            fix=f"add a profile with schedulerName: {settings.scheduler_name}, or change --scheduler-name",
        )


def _extender(
    extender: Json, where: str, settings: Settings, vendors: Mapping[str, Vendor], present: frozenset[str]
) -> Iterator[Finding]:
    missing = [
        f"{key}: {value}"
        for key, value in (("filterVerb", "filter"), ("bindVerb", "bind"))
        if extender.get(key) != value
    ]
    if missing:
        yield broken(
            AREA,
            f"{where}: the extender has not {', '.join(missing)}",
            why="pods are scheduled without a slice",
            fix="set both verbs as in docs/scheduler.md",
        )
    if not extender.get("nodeCacheCapable"):
        yield broken(
            AREA,
            f"{where}: the extender is not nodeCacheCapable",
            why="whole nodes are sent, which Tessera takes for a simulation: nothing is reserved",
            fix="set nodeCacheCapable: true",
        )
    managed = {each.get("name"): each for each in extender.get("managedResources") or ()}
    wanted = [name for key in sorted(present) for name in vendors[key].names.all]
    unmanaged = [name for name in wanted if managed and name not in managed]
    if unmanaged:
        yield broken(
            AREA,
            f"{where}: managedResources lacks {', '.join(unmanaged)}",
            why="pods that ask only for these never reach the extender",
            fix="add them with ignoredByScheduler: true",
        )
    counted = [name for name in wanted if name in managed and not managed[name].get("ignoredByScheduler")]
    if counted:
        yield broken(
            AREA,
            f"{where}: {', '.join(counted)} without ignoredByScheduler: true",
            why="kube-scheduler counts them as well, and finds nodes too small that fit",
            fix="set ignoredByScheduler: true on each",
        )
    yield from _timeout(extender.get("httpTimeout"), where, settings)


def _timeout(text: Any, where: str, settings: Settings) -> Iterator[Finding]:
    try:
        seconds = parse_duration(str(text)) if text is not None else 5.0  # kube-scheduler's own default
    except ValueError:
        return
    if seconds <= settings.turn_seconds:
        yield warning(
            AREA,
            f"{where}: httpTimeout is {seconds:g} s, and a bind may wait {settings.turn_seconds:g} s for its turn",
            why="kube-scheduler gives up on binds that are under way, and starts again",
            fix="set httpTimeout: 30s, or a lower --turn-timeout of the scheduler",
        )


def _config(config_map: Json) -> Json | None:
    for key in KEYS:
        text = (config_map.get("data") or {}).get(key)
        if text is not None:
            try:
                found = yaml.safe_load(text)
            except yaml.YAMLError:
                return None
            return found if isinstance(found, dict) else None
    return None
