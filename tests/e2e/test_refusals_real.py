"""Pods that cannot be placed: what users are told, and how soon they are bound once there is capacity."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
import yaml

from tessera.kube.resources import DEPLOYMENTS, RESOURCE_QUOTAS
from tessera_lab.sandbox.api.kinds import Json
from tessera_lab.sandbox.nodes.kubelet import RUN_FOR
from tessera_lab.sandbox.nodes.node import SimulatedNode, gpu_cards
from tessera_lab.sandbox.objects import has_ended, node_of
from tests.e2e.cluster import Cluster, cluster
from tests.e2e.conftest import Tell
from tests.e2e.control_plane import ControlPlane
from tests.e2e.replica import until
from tests.support.product import container, gpu_pod, pod

SOON_S = 120.0
"""on a machine that is busy; kube-scheduler by itself would take five minutes or more"""
ROUNDS = 6


def node(name: str = "n1", count: int = 1) -> SimulatedNode:
    return SimulatedNode(name, gpu_cards(name, count))


# -- what people are told


async def test_a_pod_that_fits_nowhere_says_why_in_condition_events_and_kubectl(plane: ControlPlane) -> None:
    async with cluster(plane, [node("n1", 2), node("n2"), SimulatedNode("n3")]) as found:
        await found.create(gpu_pod("big", gpu=2, mem=90000))
        said = await found.refused("big")
        assert said.startswith(
            "0/3 nodes are available: 1 2/2 CardInsufficientMemory, 1 NodeInsufficientDevice, 1 node unregistered."
        )
        card = found.fleet.nodes["n1"].cards[1]
        texts = [
            f"needs 2 cards on one node with 90000 MiB each; nearest is n1, where the next has 81920 of 81920 MiB free"
            f" ({card.uuid}); 1 of 3 nodes: not enough free memory on the card; 1 of 3 nodes: the node has fewer cards"
            " than requested; 1 of 3 nodes: no device plugin has registered cards on the node",
        ]

        async def are_told() -> bool:
            events = [(event["reason"], event["message"]) for event in await found.events("big")]
            by_us = sorted(text for reason, text in events if reason == "FilteringFailed")
            return by_us == texts and any(reason == "FailedScheduling" and said == text for reason, text in events)

        await until(are_told, what="events")
        described = await asyncio.to_thread(
            plane.kubectl, f"--namespace={found.namespace}", "describe", "pod", "big", user="tenant"
        )
        for text in (said, *texts):
            assert text in described


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"gpu": 1, "mem": "2Gi"}, "2048"),
        ({"gpu": 1, "mem": "1500m"}, "nvidia.com/gpumem"),
        ({"gpu": 1, "percent": 101}, "nvidia.com/gpumem-percentage"),
    ],
)
async def test_kubectl_shows_what_to_write_instead(plane: ControlPlane, tmp_path: Path, asked: Json, said: str) -> None:
    manifest = {"apiVersion": "v1", "kind": "Pod", **pod("p", container("main", **asked))}
    async with cluster(plane, [node()], scheduling=False) as found:
        del manifest["metadata"]["namespace"]
        file = tmp_path / "pod.yaml"
        file.write_text(yaml.safe_dump(manifest))
        applied = await asyncio.to_thread(
            plane.try_kubectl, f"--namespace={found.namespace}", "apply", "-f", str(file), user="tenant"
        )
        assert applied.returncode == 1
        assert 'admission webhook "vgpu.hami.io" denied the request' in applied.stderr
        assert said in applied.stderr


async def test_a_deployment_shows_why_its_pods_are_refused(plane: ControlPlane) -> None:
    """A refused pod is never created: kubectl shows the reason on the object that should have created it."""
    template = {"metadata": {"labels": {"app": "a"}}, "spec": {"containers": [container("main", gpu=1, mem="2Gi")]}}
    spec = {"replicas": 1, "selector": {"matchLabels": {"app": "a"}}, "template": template}
    async with cluster(plane, [node()], scheduling=False) as found:
        body = {"metadata": {"name": "serve"}, "spec": spec}
        answer = await found.tenant.post(DEPLOYMENTS.path(found.namespace), body)
        assert answer.status == 201, answer.body

        async def is_told() -> bool:
            described = await asyncio.to_thread(
                plane.kubectl, f"--namespace={found.namespace}", "describe", "replicasets", user="tenant"
            )
            return "FailedCreate" in described and "denied the request" in described and "2048" in described

        await until(is_told, what="the reason")
        assert found.pods == []


# -- when there is room


async def soon(found: Cluster, *names: str) -> float:
    """These pods run soon; after how many seconds."""
    began = time.monotonic()
    await found.running(*names, within_s=SOON_S)
    return time.monotonic() - began


async def test_a_waiting_pod_is_bound_soon_after_another_is_deleted(plane: ControlPlane, tell: Tell) -> None:
    """Several times: kube-scheduler and our watch hear of a deletion in any order."""
    took: list[float] = []
    async with cluster(plane, [node()]) as found:
        await found.run(gpu_pod("p0", gpu=1))
        for number in range(ROUNDS):
            await found.create(gpu_pod(f"p{number + 1}", gpu=1))
            assert "1 1/1 CardInsufficientMemory" in await found.refused(f"p{number + 1}")
            await found.delete(f"p{number}")
            took.append(await soon(found, f"p{number + 1}"))
        await found.at_rest()
    tell(f"from a deletion to the waiting pod's start: at most {max(took):.2f} s in {ROUNDS} rounds")


async def test_a_backlog_is_worked_off_as_room_appears(plane: ControlPlane) -> None:
    names = [f"p{number}" for number in range(8)]
    async with cluster(plane, [node("n1", 2)]) as found:
        ending = {RUN_FOR: "0.2"}
        await found.create(*(gpu_pod(name, gpu=1, annotations=ending) for name in names))
        await found.wait_for(lambda: all(map(has_ended, found.pods)), what="the whole backlog")
        await found.at_rest()


async def test_a_waiting_pod_is_bound_soon_after_a_node_joins_or_registers_more(plane: ControlPlane) -> None:
    async with cluster(plane, [node()]) as found:
        await found.run(gpu_pod("p", gpu=1))
        await found.create(gpu_pod("q", gpu=1))
        await found.refused("q")
        await found.fleet.add(node("n2"))
        await soon(found, "q")
        assert node_of(found.pod("q")) == "n2"
        await found.create(gpu_pod("r", gpu=1))
        await found.refused("r")
        await found.fleet.nodes["n1"].set_cards(gpu_cards("n1", 2))
        await soon(found, "r")
        await found.at_rest()


@pytest.mark.parametrize("restarted", [False, True], ids=["", "after a restart"])
async def test_a_waiting_pod_is_bound_soon_after_its_quota_was_raised(plane: ControlPlane, restarted: bool) -> None:
    """kube-scheduler knows nothing of these quotas, and would not ask again by itself."""
    quota = {"metadata": {"name": "gpus"}, "spec": {"hard": {"limits.nvidia.com/gpumem": "1000"}}}
    async with cluster(plane, [node()], scheduling=False) as found:
        await found.api.create(RESOURCE_QUOTAS.path(found.namespace), quota)
        # Together beyond the quota, each one within it: admission lets both in.
        await found.create(*(gpu_pod(name, gpu=1, mem=600) for name in ("p", "q")))
        found.replica.kube_scheduler.start()
        await found.wait_for(lambda: any(map(node_of, found.pods)), what="one of them to be bound")
        (waiting,) = [each["metadata"]["name"] for each in found.pods if not node_of(each)]
        assert "ResourceQuotaNotFit" in await found.refused(waiting)
        if restarted:
            await found.replica.restart_tessera()
        more = {"spec": {"hard": {"limits.nvidia.com/gpumem": "1200"}}}
        await found.api.patch(RESOURCE_QUOTAS.path(found.namespace, "gpus"), more)
        await soon(found, waiting)
        await found.at_rest()
