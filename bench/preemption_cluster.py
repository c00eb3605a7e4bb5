"""How long a pod of higher priority waits in a full cluster, with a real kube-apiserver and a stock kube-scheduler.

    python -m bench.preemption_cluster --nodes 1000 --check

Every card of every node is held by a pod of its own. One pod of higher priority is created and timed from its creation
to its binding, then many at once. Nodes are objects; a task plays kubelet and ends each evicted pod when its grace is
over. So what is measured beyond the grace is search, eviction, wake-up and bind. Everything is on loopback.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from datetime import datetime
from typing import Any

from bench.cluster_pods import LOADED, MEASURED, held_pod, pod
from bench.cluster_rounds import CARDS, TESSERA, Bench, bench, several, until
from bench.measurement import progress
from tessera.kube.reflector import Reflector
from tessera.kube.resources import PODS, Resource
from tessera.wire import keys
from tessera_lab.sandbox.api.kinds import Json
from tessera_lab.sandbox.objects import JSON_ACCESSOR, node_of
from tests.e2e.cluster import end_tasks

PRIORITY_CLASSES = Resource("scheduling.k8s.io", "v1", "priorityclasses", False)
GRACE_S = 1
"""of the victims"""
BUDGET_S = 2.0
"""from creation to binding, beyond the grace"""
AT_ONCE = 100
"""pods of higher priority created together"""
CORES = 100
STAGES = REFUSED, NOMINATED, WOKEN, BOUND = "refused", "nominated", "woken", "bound"


def _stages(pod: Json) -> dict[str, bool]:
    status = pod.get("status", {})
    return {
        REFUSED: any(each["type"] == "PodScheduled" for each in status.get("conditions", ())),
        NOMINATED: "nominatedNodeName" in status,
        WOKEN: keys.RETRY in pod["metadata"].get("annotations", {}),
        BOUND: bool(node_of(pod)),
    }


class Kubelets:
    """Ends pods whose grace is over, and notes when measured pods get how far."""

    def __init__(self, found: Bench) -> None:
        self._api = found.api
        self._ending: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.reached: dict[str, dict[str, float]] = {stage: {} for stage in STAGES}
        """by stage and name of a measured pod: when it was first seen there"""
        self.evicted = 0

    def put(self, key: str, obj: Json) -> None:
        metadata = obj["metadata"]
        if metadata["namespace"] == MEASURED:
            now = time.perf_counter()
            for stage, is_reached in _stages(obj).items():
                if is_reached:
                    self.reached[stage].setdefault(metadata["name"], now)
        if metadata.get("deletionTimestamp") and metadata["uid"] not in self._ending:
            self._ending.add(metadata["uid"])
            self.evicted += 1
            task = asyncio.ensure_future(self._end(metadata))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def drop(self, key: str) -> None:
        """Nothing waits for the end of a pod."""

    def synced(self) -> None:
        """Nothing waits for the first list."""

    async def _end(self, metadata: Json) -> None:
        left = datetime.fromisoformat(metadata["deletionTimestamp"]).timestamp() - time.time()
        await asyncio.sleep(max(left, 0.0))
        path = PODS.path(metadata["namespace"], metadata["name"])
        await self._api.delete(path, uid=metadata["uid"], grace_s=0)


def full_node_pods(found: Bench) -> list[Json]:
    """One pod for each card."""
    made = []
    for node in found.nodes:
        for number in range(CARDS):
            one = held_pod(node, number, held=(node.cards[number].memory, CORES))
            one["spec"]["terminationGracePeriodSeconds"] = GRACE_S
            made.append(one)
    return made


def preemptor(name: str, memory: int) -> Json:
    made = pod(name, MEASURED, memory=memory, cores=CORES)
    made["spec"]["priorityClassName"] = "bench-high"
    return made


async def measure(nodes: int, at_once: int) -> dict[str, Any]:
    async with bench(nodes) as found:
        await found.api.create(
            PRIORITY_CLASSES.path(),
            {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "bench-high"},
             "value": 1000},
        )  # fmt: skip
        running = full_node_pods(found)
        progress(f"making {len(running)} running pods")
        await several((found.api.create(PODS.path(LOADED), one) for one in running), what="running pods")
        kubelets = Kubelets(found)
        watch = Reflector(found.api, PODS.path(), dict[str, Any], kubelets, accessor=JSON_ACCESSOR)
        watcher = asyncio.ensure_future(watch.run())
        side, memory = found.sides[TESSERA], found.nodes[0].cards[0].memory
        try:
            await side.start_extender()
            side.kube_scheduler.start()
            await asyncio.sleep(5)  # kube-scheduler reads thousands of pods first.
            first = await _bind(found, kubelets, [preemptor("warm-up", memory)])
            single = [await _bind(found, kubelets, [preemptor(f"one-{number}", memory)]) for number in range(5)]
            began = time.perf_counter()
            many = await _bind(found, kubelets, [preemptor(f"many-{number:03}", memory) for number in range(at_once)])
            stages = {stage: _quartiles(kubelets.reached[stage], began) for stage in STAGES}
        finally:
            side.stop()
            await end_tasks([watcher])
        return {
            "nodes": nodes,
            "first_beyond_grace_s": round(first, 2),
            "beyond_grace_s": [round(each, 2) for each in single],
            "at_once": at_once,
            "at_once_beyond_grace_s": round(many, 2),
            "evicted": kubelets.evicted,
            "bound": len(kubelets.reached[BOUND]),
            "at_once_stages_s": stages,
        }


def _quartiles(reached: dict[str, float], began: float) -> list[float]:
    """When a quarter, half, three quarters and all of the pods created together were at a stage."""
    times = sorted(at - began for name, at in reached.items() if name.startswith("many-"))
    return [round(times[len(times) * part // 4 - 1], 2) for part in range(1, 5)] if len(times) >= 4 else []


async def _bind(found: Bench, kubelets: Kubelets, pods: list[Json]) -> float:
    """Seconds from the creation of the first pod to the binding of the last, without the victims' grace."""
    names = {one["metadata"]["name"] for one in pods}
    began = time.perf_counter()
    await several((found.api.create(PODS.path(MEASURED), one) for one in pods), what="pods")

    async def are_bound() -> bool:
        return names <= kubelets.reached[BOUND].keys()

    await until(are_bound, what=f"{len(names)} pods to be bound")
    return max(kubelets.reached[BOUND][name] for name in names) - began - GRACE_S


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.preemption_cluster", description=__doc__.split("\n")[0])
    parser.add_argument("--nodes", type=int, default=1_000)
    parser.add_argument("--at-once", type=int, default=AT_ONCE)
    parser.add_argument("--check", action="store_true", help=f"exit 1 above {BUDGET_S:g} s or with too many evictions")
    options = parser.parse_args()
    found = asyncio.run(measure(options.nodes, options.at_once))
    print(json.dumps(found))
    kept = max(found["beyond_grace_s"]) <= BUDGET_S and found["evicted"] == found["bound"]
    return 0 if kept or not options.check else 1


if __name__ == "__main__":
    sys.exit(main())
