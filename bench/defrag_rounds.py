"""Rounds of `tessera defrag run` in a cluster, without its apiserver: the objects are there, and nothing is written.

What a round does on them is all measured: to build the scheduler's view of the cluster, to see who waits, and to plan.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime
from time import process_time
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

from tessera.core.ledger import Ledger
from tessera.inspect.offline_cluster import OfflineCluster
from tessera.inspect.state import ClusterState
from tessera.kube.client import KubeClient
from tessera.maintenance.defragmenter.controller import MAX_PLANS, Defragmenter, Outcome, RoundOptions
from tests.support.builders import PodBuilder, gpu_pod, node

NOW = 1_700_000_000.0
OPTIONS = RoundOptions(patience_s=120.0, max_moves=5, step_timeout_s=600.0, dry_run=True)
"""the defaults of the command"""


class _EmptyApi:
    """An apiserver that has no places to be held."""

    async def list(self, path: str, kind: type[object]) -> SimpleNamespace:
        return SimpleNamespace(items=[])


def read_cluster(ledger: Ledger, waiting: list[PodBuilder]) -> ClusterState:
    """The API objects of a ledger's nodes and pods, and of pods that wait."""
    since = datetime.fromtimestamp(NOW - 1000, tz=UTC).isoformat()
    refused = {"type": "PodScheduled", "status": "False", "lastTransitionTime": since}
    pods = [*_running(ledger), *(pod.manifest() | {"status": {"conditions": [refused]}} for pod in waiting)]
    for pod in pods:
        pod["spec"]["schedulerName"] = "hami-scheduler"
    return ClusterState("the benchmark", NOW, nodes=tuple(_nodes(ledger)), pods=tuple(pods))


def _nodes(ledger: Ledger) -> Iterator[dict[str, Any]]:
    for name in ledger.node_names():
        built = node(name)
        for device in ledger.devices(name).values():
            built = built.gpu(device.uuid, memory=device.memory, slots=device.slots, model=device.model)
        yield built.manifest()


def _running(ledger: Ledger) -> Iterator[dict[str, Any]]:
    for entry in ledger.pods():
        [[[grant]]] = entry.facts.grants.values()
        built = gpu_pod(entry.facts.name, mem=grant.memory, cores=grant.cores).of("Job", entry.facts.name)
        yield built.on(entry.facts.node, f"{grant.uuid},NVIDIA,{grant.memory},{grant.cores}:;").manifest()


def one_gains(devices: int) -> list[PodBuilder]:
    return [gpu_pod("waiting", gpu=devices, cores=100)]


def none_gains(devices: int) -> list[PodBuilder]:
    """As many kinds as a round plans for: no node has so many cards."""
    return [gpu_pod(f"waiting-{number}", gpu=devices + 1 + number, cores=100) for number in range(MAX_PLANS)]


class Round(NamedTuple):
    outcome: Outcome
    reading_s: float
    """to build the scheduler's view of the cluster"""
    planning_s: float


def make_round(state: ClusterState) -> Round:
    """In seconds of processor time."""
    reading = 0.0

    async def look() -> OfflineCluster:
        nonlocal reading
        began = process_time()
        found = OfflineCluster(state)
        reading += process_time() - began
        return found

    api, began = cast("KubeClient", _EmptyApi()), process_time()
    outcome = asyncio.run(Defragmenter(api, look, None, OPTIONS, lambda: NOW).make_round())
    return Round(outcome, reading, process_time() - began - reading)
