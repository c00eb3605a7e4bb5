"""Preemption on the sandbox: apiserver, kube-scheduler's loop, kubelets and the real scheduler in one process."""

from __future__ import annotations

from pathlib import Path

from tessera_lab.sandbox.api.kinds import Json
from tests.integration.test_filter_and_bind import node
from tests.support.product import gpu_pod, product


def whole(name: str, *, priority: int = 0) -> Json:
    made = gpu_pod(name, gpu=1, cores=100)
    made["spec"]["priority"] = priority
    made["spec"]["terminationGracePeriodSeconds"] = 0
    return made


async def test_a_pod_of_higher_priority_runs_where_its_victim_was(tmp_path: Path) -> None:
    async with product([node("n1")], tmp_path) as cluster:
        cards = len(cluster.plane.fleet.nodes["n1"].cards)
        low = [f"low{number}" for number in range(cards)]
        for name in low:
            await cluster.plane.create_pod(whole(name))
        await cluster.running_pods(*low)
        await cluster.plane.create_pod(whole("high", priority=1000))
        await cluster.running_pods("high")
        await cluster.at_rest()
        evictions = [seen.path for seen in cluster.writes() if seen.path.endswith("/eviction")]
        assert len(evictions) == 1
        [victim] = [name for name in low if f"/{name}/" in evictions[0]]
        assert not cluster.ledger.nominations.all()
        await cluster.stop_scheduler()
        reasons = {event["reason"] for event in cluster.plane.events("default", victim)}
        assert "Preempted" in reasons
