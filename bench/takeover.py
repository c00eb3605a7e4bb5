"""How long a replica takes to decide after it started, with many pods that wait, on a real etcd and kube-apiserver.

    python -m bench.takeover --pods 100 --pods 10000
    python -m bench.takeover --check

The real `tessera scheduler` starts beside so many device pods that are not bound. Measured is the time from the start
of its take-over, as its log says, to the first filter that it answers with a node; Python's own start is not in it.
Everything is on loopback and ends with this process.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import aiohttp

from bench.measurement import Budget, progress, table
from tessera.kube.access import load_access
from tessera.kube.client import KubeClient
from tessera.kube.resources import NODES, PODS
from tests.e2e.control_plane import ControlPlane
from tests.e2e.processes import Program
from tests.support.builders import node
from tests.support.network import free_ports
from tests.support.product import gpu_pod
from tests.support.stepwise_scheduler import serving_downward_api
from tools.kubernetes import build

Json = dict[str, Any]

BUDGETS_S = {100: 3.0, 10_000: 30.0}
"""by the number of pods that are not bound"""
NODE, NAMESPACE = "n1", "default"
CREATORS = 16
LOOK_S = 0.02
LIMIT_S = 600.0


async def create_pods(api: KubeClient, names: list[str]) -> None:
    left = iter(names)

    async def create_some() -> None:
        for name in left:
            manifest = gpu_pod(name, gpu=1, mem=1000)
            manifest["spec"]["schedulerName"] = "hami-scheduler"
            await api.create(PODS.path(NAMESPACE), manifest)

    await asyncio.gather(*(create_some() for _ in range(CREATORS)))


async def measure(plane: ControlPlane, api: KubeClient, count: int) -> float:
    """Seconds until the first decision."""
    extender, metrics = free_ports(2)
    command = [
        *(sys.executable, "-m", "tessera", "scheduler", "--log-format=json", "--webhook-bind=none"),
        f"--kubeconfig={plane.kubeconfig_of_account('tessera-scheduler')}",
        f"--extender-bind=127.0.0.1:{extender}",
        f"--metrics-bind-address=127.0.0.1:{metrics}",
    ]
    program = Program(f"tessera-{count}", command, folder=plane.logs, environ={"PATH": os.defpath})
    pod: Json = (await api.list(PODS.path(NAMESPACE), dict[str, Any])).items[0]
    program.start()
    try:
        decided_at = await _first_decision(f"http://127.0.0.1:{extender}/filter", {"Pod": pod, "NodeNames": [NODE]})
    finally:
        program.kill()
    events = [json.loads(line) for line in program.log.read_text().splitlines() if line.startswith("{")]
    began = next(event["timestamp"] for event in events if event["message"] == "taking over")
    return decided_at - datetime.fromisoformat(began).timestamp()


async def _first_decision(url: str, body: Json) -> float:
    async with aiohttp.ClientSession() as http, asyncio.timeout(LIMIT_S):
        while True:
            try:
                async with http.post(url, json=body) as answer:
                    if (await answer.json(content_type=None))["NodeNames"] == [NODE]:
                        return time.time()
            except aiohttp.ClientError:
                pass  # It does not listen yet.
            await asyncio.sleep(LOOK_S)


async def run(plane: ControlPlane, counts: list[int]) -> list[Budget]:
    """From the fewest pods to the most: those of one measurement stay for the next."""
    figures: list[Budget] = []
    access = load_access(kubeconfig=str(plane.kubeconfig()), environ={})
    async with KubeClient(access) as api:
        await api.create(NODES.path(), serving_downward_api(node(NODE).gpus(1)).manifest())
        there = 0
        for count in sorted(counts):
            progress(f"creating {count - there} pods")
            await create_pods(api, [f"p{number:05}" for number in range(there, count)])
            there = count
            seconds = await measure(plane, api, count)
            progress(f"{count} pods: {seconds:.1f} s")
            figures.append(Budget(f"take-over, {count} pods, s", seconds, BUDGETS_S.get(count, float("inf"))))
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.takeover", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pods", type=int, action="append", help="how many wait; may be repeated")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a budget is broken")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tessera-takeover-") as folder:
        plane = ControlPlane(Path(folder), build.ensure(tell=progress))
        plane.start()
        try:
            figures = asyncio.run(run(plane, given.pods or list(BUDGETS_S)))
        finally:
            plane.stop()
    print(table(figures))
    return 1 if given.check and not all(figure.kept for figure in figures) else 0


if __name__ == "__main__":
    sys.exit(main())
