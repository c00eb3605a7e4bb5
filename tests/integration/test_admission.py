"""Admission as clients of the API server see it: the webhook is really called, over TLS."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tessera.kube.errors import ApiError
from tessera.kube.resources import RESOURCE_QUOTAS
from tessera.scheduler.settings import PrivilegedMode
from tessera_lab.sandbox.nodes.node import SimulatedNode, gpu_cards
from tests.support.product import Json, container, gpu_pod, pod, product

DENIED = 'admission webhook "vgpu.hami.io" denied the request: '
TENANTS_OWN = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}, {"name": "MODEL", "value": "large"}]


def node() -> SimulatedNode:
    return SimulatedNode("n1", gpu_cards("n1", 2))


async def test_a_pod_with_devices_gets_the_scheduler_and_references_to_its_own_slice(tmp_path: Path) -> None:
    asking = gpu_pod("p", gpu=2, mem=3000)
    asking["spec"]["containers"][0]["env"] = TENANTS_OWN
    async with product([node()], tmp_path, scheduling=False) as cluster:
        answer = await cluster.post_pod(asking)
    assert answer.status == 201
    assert answer.body["spec"]["schedulerName"] == "hami-scheduler"
    env = {entry["name"]: entry for entry in answer.body["spec"]["containers"][0]["env"]}
    assert env["MODEL"]["value"] == "large"
    for name, key in (
        ("NVIDIA_VISIBLE_DEVICES", "tessera.io/c0.visible-devices"),
        ("CUDA_DEVICE_MEMORY_LIMIT_0", "tessera.io/c0.memory-limit-0"),
        ("CUDA_DEVICE_MEMORY_LIMIT_1", "tessera.io/c0.memory-limit-1"),
        ("CUDA_DEVICE_SM_LIMIT", "tessera.io/c0.core-limit"),
        ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "tessera.io/c0.mps-memory-limit"),
        ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "tessera.io/c0.mps-thread-percentage"),
    ):
        assert env[name]["valueFrom"]["fieldRef"]["fieldPath"] == f"metadata.annotations['{key}']"
    assert answer.warnings == [
        "container main: NVIDIA_VISIBLE_DEVICES: set by the granted slice; the pod's own values are replaced"
    ]


@pytest.mark.parametrize(
    ("asked", "warning"),
    [
        ({"gpu": 1}, "container main: gets whole cards"),
        ({"gpu": 1, "mem": 1000, "percent": 50}, "nvidia.com/gpumem decides, nvidia.com/gpumem-percentage"),
    ],
)
async def test_what_surprises_people_is_said_in_a_warning(tmp_path: Path, asked: Json, warning: str) -> None:
    async with product([node()], tmp_path, scheduling=False) as cluster:
        answer = await cluster.post_pod(gpu_pod("p", **asked))
    assert answer.status == 201
    assert [text for text in answer.warnings if warning in text]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"gpu": 1, "mem": "2Gi"}, "2048"),
        ({"gpu": 1, "mem": "1500m"}, "nvidia.com/gpumem"),
        ({"gpu": 1, "mem": "-1"}, "nvidia.com/gpumem"),
        ({"gpu": 1, "percent": 101}, "nvidia.com/gpumem-percentage"),
        ({"gpu": "10000000000", "mem": 1}, "nvidia.com/gpu"),
    ],
)
async def test_a_request_that_cannot_be_honoured_is_refused_with_what_to_write(
    tmp_path: Path, asked: dict[str, Any], said: str
) -> None:
    async with product([node()], tmp_path) as cluster:
        answer = await cluster.post_pod(pod("p", container("main", **asked)))
        assert answer.status == 403
        assert answer.message.startswith(DENIED)
        assert said in answer.message
        assert cluster.plane.pod("default", "p") is None


@pytest.mark.parametrize(
    "key",
    [
        "hami.io/vgpu-node",
        "hami.io/bind-phase",
        "hami.io/vgpu-devices-allocated",
        "hami.io/vgpu-devices-to-allocate",
        "tessera.io/c0.visible-devices",
        "tessera.io/retry",
    ],
)
async def test_annotations_that_only_the_scheduler_writes_are_refused(tmp_path: Path, key: str) -> None:
    async with product([node()], tmp_path) as cluster:
        for asking in (gpu_pod("p", gpu=1, mem=100), gpu_pod("q")):
            asking["metadata"]["annotations"] = {key: "GPU-1,NVIDIA,1,1:;"}
            answer = await cluster.post_pod(asking)
            assert (answer.status, answer.message) == (
                403,
                f"{DENIED}pod {asking['metadata']['name']} has annotation {key}: only the scheduler may write this",
            )


async def test_a_pod_beyond_its_namespaces_quota_is_refused_with_the_shortfall(tmp_path: Path) -> None:
    quota = {"metadata": {"name": "gpus"}, "spec": {"hard": {"limits.nvidia.com/gpumem": "4000"}}}
    async with product([node()], tmp_path) as cluster:
        await cluster.plane.client.create(RESOURCE_QUOTAS.path("default"), quota)
        await cluster.at_rest()
        answer = await cluster.post_pod(gpu_pod("p", gpu=1, mem=5000))
        assert answer.status == 403
        assert answer.message == (
            f"{DENIED}exceeding resource quota: pod p asks for 5000 MiB of nvidia.com/gpumem, but"
            " limits.nvidia.com/gpumem of namespace default leaves 4000 MiB: 1000 MiB too much"
        )
        assert (await cluster.post_pod(gpu_pod("p", gpu=1, mem=4000))).status == 201
        await cluster.running_pods("p")


async def test_a_pod_that_asks_for_nothing_passes_unchanged_and_is_none_of_our_business(tmp_path: Path) -> None:
    async with product([node()], tmp_path) as cluster:
        answer = await cluster.post_pod(gpu_pod("p"))
        assert answer.body["spec"]["schedulerName"] == "default-scheduler"
        assert "env" not in answer.body["spec"]["containers"][0]
        assert answer.warnings == []
        await cluster.running_pods("p")
        bound = cluster.plane.pod("default", "p")
        assert bound is not None
        assert not [key for key in bound["metadata"].get("annotations", {}) if "hami" in key or "tessera" in key]
        await cluster.at_rest()
        assert cluster.writes() == []


async def test_a_pod_of_another_scheduler_passes_with_a_warning(tmp_path: Path) -> None:
    asking = gpu_pod("p", gpu=1, mem=100)
    asking["spec"]["schedulerName"] = "volcano"
    async with product([node()], tmp_path) as cluster:
        answer = await cluster.post_pod(asking)
    assert answer.body["spec"]["schedulerName"] == "volcano"
    assert "env" not in answer.body["spec"]["containers"][0]
    assert answer.warnings == [
        "nvidia.com/gpu, nvidia.com/gpumem: this pod gets no slices, because its scheduler is volcano"
    ]


def privileged() -> Json:
    asking = gpu_pod("p", gpu=1, mem=100)
    asking["spec"]["containers"][0]["securityContext"] = {"privileged": True}
    return asking


async def test_a_privileged_container_is_left_alone_and_told_so(tmp_path: Path) -> None:
    async with product([node()], tmp_path, scheduling=False) as cluster:
        answer = await cluster.post_pod(privileged())
    assert answer.body["spec"]["schedulerName"] == "default-scheduler"
    assert answer.warnings == [
        "container main is privileged: it is not changed and gets no slice of nvidia.com/gpu, nvidia.com/gpumem"
    ]


async def test_a_privileged_container_is_refused_where_the_administrator_says_so(tmp_path: Path) -> None:
    async with product([node()], tmp_path, privileged=PrivilegedMode.DENY) as cluster:
        answer = await cluster.post_pod(privileged())
    assert (answer.status, answer.message) == (403, f"{DENIED}container main is privileged")


async def test_without_the_webhook_no_pod_slips_in_unseen(tmp_path: Path) -> None:
    async with product([node()], tmp_path) as cluster:
        await cluster.kill_scheduler()
        with pytest.raises(ApiError, match="failed calling webhook") as refused:
            await cluster.plane.create_pod(gpu_pod("p", gpu=1, mem=100))
        assert refused.value.status == 500
        await cluster.start_scheduler()
        await cluster.plane.create_pod(gpu_pod("p", gpu=1, mem=100))
        await cluster.running_pods("p")
