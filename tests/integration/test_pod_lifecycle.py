"""A pod's whole life on the embedded control plane: admitted, filtered, bound, handed over, ended."""

from __future__ import annotations

from pathlib import Path

from tessera_lab.sandbox.nodes.node import SimulatedNode, gpu_cards
from tests.support.product import gpu_pod, product


async def test_a_pod_that_asks_for_a_slice_gets_exactly_that_slice(tmp_path: Path) -> None:
    async with product([SimulatedNode("n1", gpu_cards("n1", 2))], tmp_path) as cluster:
        plane = cluster.plane
        pod = await plane.create_pod(gpu_pod("p", gpu=1, mem=3000, cores=30))
        assert pod["spec"]["schedulerName"] == "hami-scheduler"
        await plane.wait_for(lambda: plane.phase("default", "p") == "Running", what="the pod to run")
        seen = plane.nodes["n1"].containers[pod["metadata"]["uid"], "main"]
        assert seen.env["CUDA_DEVICE_MEMORY_LIMIT_0"] == "3000m"
        assert seen.env["CUDA_DEVICE_SM_LIMIT"] == "30"
        bound = plane.pod("default", "p")
        assert bound is not None
        allocated = bound["metadata"]["annotations"]["hami.io/vgpu-devices-allocated"]
        assert allocated == f"{seen.env['NVIDIA_VISIBLE_DEVICES']},NVIDIA,3000,30:;"
