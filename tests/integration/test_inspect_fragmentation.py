"""The inspect commands beside a scheduler with the policy `fragmentation`: both see the same pods and nodes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from tessera.core.ledger.ledger import Ledger
from tessera.inspect.collector import collect
from tessera.inspect.explanation import explain
from tessera.inspect.manifests import Manifest
from tessera.inspect.offline_cluster import OfflineCluster
from tessera.inspect.simulation import simulate
from tessera.inspect.snapshots import decode_snapshot, encode_snapshot
from tessera.inspect.state import ClusterState
from tessera.kube.access import load_access
from tessera.kube.client import KubeClient
from tessera.kube.resources import PODS
from tessera.wire import keys
from tessera_lab.sandbox.nodes.node import SimulatedNode, gpu_cards
from tests.support.product import Product, container, gpu_pod, pod, product

Json = dict[str, Any]

FLAGS = {"node-scheduler-policy": "fragmentation", "gpu-scheduler-policy": "fragmentation"}
"""of the scheduler, which no Deployment shows here"""


async def state_of(cluster: Product) -> ClusterState:
    access = load_access(kubeconfig=str(cluster.plane.kubeconfig), environ={})
    async with KubeClient(access, user_agent="tessera-inspecting") as client:
        return await collect(
            client,
            source="sandbox",
            now=time.time,
            override=lambda setup: msgspec.structs.replace(setup, flags={**(setup.flags or {}), **FLAGS}),
        )


def hosts(ledger: Ledger) -> dict[str, tuple[int, int]]:
    """Free CPU and memory beside the cards."""
    arrays = ledger.arrays
    rows = {name: arrays.row(name) for name in ledger.node_names()}
    return {name: (int(arrays.free_cpu[row]), int(arrays.free_memory[row])) for name, row in rows.items()}


def using_host(manifest: Json, cpu: str, memory: str = "1Gi") -> Json:
    manifest["spec"]["containers"][0]["resources"]["requests"] = {"cpu": cpu, "memory": memory}
    return manifest


LEARNED: list[Json] = [
    using_host(gpu_pod(f"first-{number:02}", gpu=1, percent=15, cores=15, annotations=annotations), "1")
    for number in range(32)
    for annotations in [{"nvidia.com/use-gputype": "L4"} if number < 8 else None]
]
"""as many as it takes for the first forecast: small parts of cards, some of which must be of one model"""

NEXT: list[Json] = [
    using_host(gpu_pod("next-1-third", gpu=1, percent=30, cores=30), "3"),
    using_host(gpu_pod("next-2-most", gpu=1, percent=70, cores=70), "12"),
    using_host(pod("next-3-plain", container("main"), nodeName="b-2"), "40"),
    using_host(gpu_pod("next-4-tenth", gpu=1, percent=10, cores=10), "500m"),
    using_host(gpu_pod("next-5-pair", gpu=2, percent=40, cores=100), "8"),
    using_host(gpu_pod("next-6-picky", gpu=1, percent=8, cores=8, annotations={"nvidia.com/use-gputype": "L4"}), "1"),
    using_host(
        gpu_pod("next-7-spread", gpu=1, percent=5, annotations={"hami.io/node-scheduler-policy": "spread"}), "1"
    ),
    using_host(gpu_pod("next-8-half", gpu=1, percent=50, cores=50), "6"),
]
"""sorted by name: who was bound within one second is counted in this order"""


async def end(cluster: Product, names: Sequence[str]) -> None:
    """These pods succeed and stay in the API."""
    for name in names:
        await cluster.plane.client.patch(PODS.path("default", name, "status"), {"status": {"phase": "Succeeded"}})
    await cluster.at_rest()


def turnover(cluster: Product, name: str) -> float:
    """That the pod was decided by."""
    found = cluster.plane.pod("default", name)
    assert found is not None
    return float(found["metadata"]["annotations"][keys.TURNOVER])


async def test_under_fragmentation_explain_names_the_node_that_filter_chooses(tmp_path: Path) -> None:
    many = [SimulatedNode(f"a-{number}", gpu_cards(f"a-{number}", 4), cpu="32") for number in range(3)]
    many += [
        SimulatedNode(f"b-{number}", gpu_cards(f"b-{number}", 2, model="NVIDIA L4"), cpu="64") for number in (1, 2)
    ]
    async with product(many, tmp_path, node_policy="fragmentation", device_policy="fragmentation") as cluster:
        for manifest in LEARNED:
            await cluster.plane.create_pod(manifest)
        await cluster.running_pods(*(manifest["metadata"]["name"] for manifest in LEARNED))
        await cluster.at_rest()
        await end(cluster, [manifest["metadata"]["name"] for manifest in LEARNED[:12]])
        for manifest in NEXT:
            name = manifest["metadata"]["name"]
            state = await state_of(cluster)
            assert hosts(OfflineCluster(state).ledger) == hosts(cluster.ledger)
            await cluster.plane.create_pod(manifest)
            if name.endswith("plain"):
                await cluster.until(lambda: hosts(cluster.ledger)["b-2"][0] <= 24_000, what="the plain pod on b-2")
                continue
            predicted = simulate(OfflineCluster(state), Manifest("default", name, manifest, 1))
            stored = decode_snapshot(encode_snapshot(state), file="s.json")
            assert simulate(OfflineCluster(stored), Manifest("default", name, manifest, 1)) == predicted
            assert predicted.why is not None, name
            assert predicted.expected is None or predicted.expected.learned_from == len(LEARNED)
            await cluster.running_pods(name)
            await cluster.at_rest()
            found = explain(OfflineCluster(await state_of(cluster)), f"default/{name}")
            assert (found.node, found.slices) == (predicted.placed[0].node, predicted.placed[0].slices), name
            assert predicted.why.best[0].node == found.node, name
            assert turnover(cluster, name) > 0.0, name


async def test_a_scheduler_that_restarts_knows_that_pods_end(tmp_path: Path) -> None:
    """Also where the API has forgotten all that ended: each binding says what was known of them."""
    nodes = [SimulatedNode(f"a-{number}", gpu_cards(f"a-{number}", 4)) for number in range(2)]
    async with product(nodes, tmp_path, node_policy="fragmentation", device_policy="fragmentation") as cluster:
        first = [gpu_pod(f"first-{number}", gpu=1, percent=40, cores=40) for number in range(6)]
        names = [manifest["metadata"]["name"] for manifest in first]
        for manifest in first:
            await cluster.plane.create_pod(manifest)
        await cluster.running_pods(*names)
        for name in names[:3]:
            await cluster.plane.delete_pod("default", name)
        await cluster.plane.wait_for(lambda: not any(cluster.plane.pod("default", name) for name in names[:3]))
        await cluster.at_rest()
        for name in ("next-1", "next-2"):
            await cluster.plane.create_pod(gpu_pod(name, gpu=1, percent=40, cores=40))
            await cluster.running_pods(name)
            await cluster.at_rest()
            assert turnover(cluster, name) > 0.0
            await cluster.restart_scheduler()
        assert turnover(cluster, "next-1") == turnover(cluster, "next-2")
