"""`kubectl logs` in the sandbox: the line with a container's limits, and which lines a request gets."""

from __future__ import annotations

from typing import Any

import pytest

from tessera_lab.sandbox.api.server import ServerOptions
from tessera_lab.sandbox.control_plane import ControlPlane
from tessera_lab.sandbox.nodes.containers import describe_limits
from tessera_lab.sandbox.nodes.kubelet import EXIT_CODE, RUN_FOR
from tessera_lab.sandbox.nodes.node import SimulatedNode
from tests.contract.client import client
from tests.support.event_loops import in_fake_time, in_real_time

Json = dict[str, Any]

NOW = 1_800_000_000.0
LOG = "/api/v1/namespaces/default/pods/p/log"
STARTED = "simulated container c: no devices\n"


@pytest.mark.parametrize(
    ("env", "text"),
    [
        ({}, "no devices"),
        ({"NVIDIA_VISIBLE_DEVICES": "void"}, "no devices"),
        (
            {"NVIDIA_VISIBLE_DEVICES": "GPU-1", "CUDA_DEVICE_MEMORY_LIMIT_0": "5000m", "CUDA_DEVICE_SM_LIMIT": "20"},
            "devices GPU-1; memory limit 5000 MiB; core limit 20 %",
        ),
        (
            {
                "NVIDIA_VISIBLE_DEVICES": "GPU-1,GPU-2",
                "CUDA_DEVICE_MEMORY_LIMIT_0": "1m",
                "CUDA_DEVICE_MEMORY_LIMIT_1": "2m",
                "CUDA_DEVICE_SM_LIMIT": "0",
            },
            "devices GPU-1,GPU-2; memory limit 1 MiB, 2 MiB; core limit none",
        ),
        ({"NVIDIA_VISIBLE_DEVICES": "MIG-1"}, "devices MIG-1"),
        ({"ASCEND_VISIBLE_DEVICES": "NPU-1"}, "devices NPU-1"),
        (
            {
                "NVIDIA_VISIBLE_DEVICES": "GPU-1",
                "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=5000M",
                "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "20",
            },
            "devices GPU-1; memory limit 0=5000M; core limit 20 %",
        ),
    ],
)
def test_a_container_tells_its_limits(env: dict[str, str], text: str) -> None:
    assert describe_limits(env) == text


def pod(*names: str, **annotations: str) -> Json:
    containers = [{"name": name, "image": "x"} for name in names or ("c",)]
    return {"metadata": {"name": "p", "annotations": annotations}, "spec": {"containers": containers, "nodeName": "n"}}


def plane() -> ControlPlane:
    return ControlPlane(nodes=[SimulatedNode("n")], server=ServerOptions(now=lambda: NOW))


@in_fake_time
async def test_the_lines_of_a_container_are_chosen_by_the_request() -> None:
    async with plane() as running, client(running.server.kubeconfig()) as api:
        await running.create_pod(pod("c", "d", **{RUN_FOR: "1", EXIT_CODE: "7"}))
        await running.wait_for(lambda: running.phase("default", "p") == "Failed")

        async def log(**query: str) -> str:
            answer = await api.get(LOG, **query)
            assert answer.status == 200, answer.body
            return str(answer.body)

        ended = "simulated container c: exit code 7\n"
        assert await log(container="c") == STARTED + ended
        assert await log(container="d") == (STARTED + ended).replace(" c:", " d:")
        assert await log(container="c", tailLines="1") == ended
        assert await log(container="c", tailLines="0") == ""
        stamped = (await log(container="c", timestamps="true")).splitlines()
        assert all(line.startswith("2027-01-15T08:00:00Z simulated") for line in stamped)


@in_real_time
async def test_a_container_that_has_not_started_has_no_log_yet() -> None:
    async with plane() as running, client(running.server.kubeconfig()) as api:
        running.nodes["n"].kubelet.pause()
        await running.create_pod(pod())
        answer = await api.get(LOG)
        assert (answer.status, "waiting to start" in answer.message) == (400, True)
        body = pod()
        body["spec"]["nodeName"] = "not-simulated"
        body["metadata"]["name"] = "q"
        await running.create_pod(body)
        assert (await api.get(LOG.replace("/p/", "/q/"))).body == ""
