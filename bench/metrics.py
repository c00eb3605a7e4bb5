"""What a scrape costs at scale: time to write everything, time to write it again, and the longest stall of the loop.

    python -m bench.metrics --nodes 5000 --devices 8 --pods-per-node 16 --json

Fails (exit 1) where one turn of the loop worked longer than the budget. The budget is in processor time: on a busy
machine the wall clock, which is printed beside it, also counts what other programs did meanwhile.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time
from dataclasses import dataclass

import click

from tessera.core.ledger.holdings import PodFacts
from tessera.core.ledger.ledger import Ledger
from tessera.core.model.devices import Device, NodeFacts
from tessera.core.model.grants import Grant, Span
from tessera.core.model.requests import Role
from tessera.scheduler.metrics.exposition import Exposition
from tessera.scheduler.metrics.granted_time import GrantedTime
from tessera.vendors.base import Switches
from tessera.vendors.registry import build_vendors
from tessera.wire.objects import Workload

TURN_BUDGET_MS = 10.0
"""longest processor time between two iterations of the loop; 5 ms is the goal, doubled for slow machines"""
CHANGED = 100
"""nodes that change between two scrapes: some pods per second for some seconds"""
WORKLOADS = 20
"""in each of the namespaces"""


def cluster(*, nodes: int, devices: int, pods_per_node: int) -> Ledger:
    ledger = Ledger(build_vendors(None, Switches()))
    for number in range(nodes):
        name = f"gpu-node-{number:05}"
        cards = tuple(
            Device(
                uuid=_uuid(number, index),
                vendor="NVIDIA",
                index=index,
                slots=10,
                memory=81920,
                model="NVIDIA A100-SXM4-80GB",
            )
            for index in range(devices)
        )
        ledger.observe_node(NodeFacts(name, cards))
        for pod in range(pods_per_node):
            ledger.observe_pod(_pod(number, name, pod, uuid=_uuid(number, pod % devices)))
    return ledger


def _uuid(node: int, index: int) -> str:
    return f"GPU-{node:08x}-{index:04x}-4c53-9a4e-0123456789ab"


def _pod(number: int, node: str, pod: int, *, uuid: str, memory: int = 2048) -> PodFacts:
    return PodFacts(
        uid=f"{number:08x}-{pod:04x}-4000-8000-000000000000",
        namespace=f"team-{number % 50}",
        name=f"training-{number}-{pod}",
        node=node,
        spans=(Span(Role.APP),),
        grants={"NVIDIA": ((Grant(uuid=uuid, vendor="NVIDIA", memory=memory, cores=5),),)},
    )


class Stalls:
    """The longest time in seconds for which a task that is always ready had to wait."""

    def __init__(self) -> None:
        self.wall = 0.0
        self.work = 0.0

    async def watch(self) -> None:
        wall, work = time.perf_counter(), time.thread_time()
        while True:
            await asyncio.sleep(0)
            wall_now, work_now = time.perf_counter(), time.thread_time()
            self.wall = max(self.wall, wall_now - wall)
            self.work = max(self.work, work_now - work)
            wall, work = wall_now, work_now


@dataclass(frozen=True, slots=True)
class Scrape:
    seconds: float
    stalls: Stalls
    length: int


def count_time(ledger: Ledger) -> GrantedTime:
    """The counters of granted time, told of everything that is there."""
    granted = GrantedTime(ledger, time.monotonic)
    for node in ledger.node_names():
        granted.on_cards(node)
    for number, entry in enumerate(ledger.pods()):
        workload = Workload(entry.facts.namespace, "Deployment", f"training-{number % WORKLOADS}")
        granted.on_holder(entry.facts.uid, workload)
    return granted


async def measured(exposition: Exposition, granted: GrantedTime) -> Scrape:
    stalls = Stalls()
    watcher = asyncio.create_task(stalls.watch())
    await asyncio.sleep(0)
    started = time.perf_counter()
    length = len(await exposition.render())
    async for piece in granted.stream():
        length += len(piece)
    took = time.perf_counter() - started
    await asyncio.sleep(0)
    watcher.cancel()
    return Scrape(took, stalls, length)


async def measure(*, nodes: int, devices: int, pods_per_node: int, legacy: bool) -> dict[str, float]:
    ledger = cluster(nodes=nodes, devices=devices, pods_per_node=pods_per_node)
    granted = count_time(ledger)
    # As the service does after its first sync.
    gc.collect()
    gc.freeze()
    exposition = Exposition(ledger, legacy=legacy)
    first = await measured(exposition, granted)
    repeated = await measured(exposition, granted)
    for number in range(0, nodes, max(1, nodes // CHANGED)):
        changed_pod = _pod(number, f"gpu-node-{number:05}", 0, uuid=_uuid(number, 0), memory=4096)
        ledger.observe_pod(changed_pod)
        granted.on_holder(changed_pod.uid, Workload(changed_pod.namespace))
    changed = await measured(exposition, granted)
    scrapes = {"first": first, "repeated": repeated, "changed": changed}
    return {
        **{f"{name}_ms": round(scrape.seconds * 1e3, 1) for name, scrape in scrapes.items()},
        **{f"{name}_stall_ms": round(scrape.stalls.wall * 1e3, 2) for name, scrape in scrapes.items()},
        "longest_stall_ms": round(max(scrape.stalls.wall for scrape in scrapes.values()) * 1e3, 2),
        "longest_turn_cpu_ms": round(max(scrape.stalls.work for scrape in scrapes.values()) * 1e3, 2),
        "text_mb": round(first.length / 1e6, 1),
    }


@click.command(help=__doc__)
@click.option("--nodes", default=5000, show_default=True)
@click.option("--devices", default=8, show_default=True)
@click.option("--pods-per-node", default=0, show_default=True)
@click.option("--legacy", is_flag=True, help="Include the legacy names.")
@click.option("--json", "as_json", is_flag=True)
def main(nodes: int, devices: int, pods_per_node: int, legacy: bool, as_json: bool) -> None:
    found = asyncio.run(measure(nodes=nodes, devices=devices, pods_per_node=pods_per_node, legacy=legacy))
    if as_json:
        click.echo(json.dumps({"nodes": nodes, "devices": devices, "pods_per_node": pods_per_node, **found}))
    else:
        for name, value in found.items():
            click.echo(f"{name:20} {value:>10}")
    if found["longest_turn_cpu_ms"] > TURN_BUDGET_MS:
        click.echo(f"one turn worked {found['longest_turn_cpu_ms']} ms, budget {TURN_BUDGET_MS} ms", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
