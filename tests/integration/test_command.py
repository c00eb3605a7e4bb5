"""`tessera scheduler` in a Deployment of HAMi, of which only the image changed."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import trustme

from tessera_lab.sandbox.control_plane import ControlPlane
from tessera_lab.sandbox.nodes.node import SimulatedNode, gpu_cards
from tests.support.commands import scheduler
from tests.support.product import gpu_pod
from tests.support.scheduler_process import calling, trusting, write_pair

V2_4_0 = (
    "--resource-name=nvidia.com/gpu",
    "--resource-mem=nvidia.com/gpumem",
    "--resource-cores=nvidia.com/gpucores",
    "--resource-mem-percentage=nvidia.com/gpumem-percentage",
    "--resource-priority=nvidia.com/priority",
    "--scheduler-name=hami-scheduler",
    "--default-mem=5000",
    "--default-gpu=1",
    "--default-cores=0",
    "--overwrite-env=false",
    "--iluvatar-memory=iluvatar.ai/vcuda-memory",
    "--iluvatar-cores=iluvatar.ai/vcuda-core",
    "--cambricon-mlu-name=cambricon.com/vmlu",
    "--cambricon-mlu-memory=cambricon.com/mlu.smlu.vmemory",
    "--cambricon-mlu-cores=cambricon.com/mlu.smlu.vcore",
    "--ascend-name=huawei.com/Ascend910",
    "--ascend-memory=huawei.com/Ascend910-memory",
    "--ascend310p-name=huawei.com/Ascend310P",
    "--ascend310p-memory=huawei.com/Ascend310P-memory",
    "--node-scheduler-policy=binpack",
    "--gpu-scheduler-policy=spread",
    "--debug",
    "-v=4",
)
"""the arguments of a v2.4.0 Deployment, without addresses and files"""
V2_4_1 = (
    "--scheduler-name=hami-scheduler",
    "--default-mem=5000",
    "--default-gpu=1",
    "--default-cores=0",
    "--dcu-name=hygon.com/dcunum",
    "--dcu-memory=hygon.com/dcumem",
    "--dcu-cores=hygon.com/dcucores",
    "--iluvatar-name=iluvatar.ai/vgpu",
    "--iluvatar-memory=iluvatar.ai/vcuda-memory",
    "--iluvatar-cores=iluvatar.ai/vcuda-core",
    "--mthreads-name=mthreads.com/vgpu",
    "--mthreads-memory=mthreads.com/sgpu-memory",
    "--mthreads-cores=mthreads.com/sgpu-core",
    "--metax-name=metax-tech.com/gpu",
    "--enable-ascend=true",
    "--debug",
    "-v=4",
)
DEVICE_CONFIG = """
nvidia:
  resourceCountName: nvidia.com/gpu
  resourceMemoryName: nvidia.com/gpumem
  resourceMemoryPercentageName: nvidia.com/gpumem-percentage
  resourceCoreName: nvidia.com/gpucores
  resourcePriorityName: nvidia.com/priority
  overwriteEnv: false
  defaultMemory: 0
  defaultCores: 0
  defaultGPUNum: 1
"""


@pytest.mark.parametrize(("version", "flags"), [("2.4.0", V2_4_0), ("2.4.1", V2_4_1)])
async def test_a_deployment_of_hami_starts_with_only_its_image_changed(
    tmp_path: Path, version: str, flags: tuple[str, ...]
) -> None:
    authority = trustme.CA()
    files = write_pair(tmp_path, authority)
    if version == "2.4.1":
        (tmp_path / "device-config.yaml").write_text(DEVICE_CONFIG)
        flags = (*flags, f"--device-config-file={tmp_path / 'device-config.yaml'}")
    addresses = ("--http_bind=127.0.0.1:0", "--metrics-bind-address=127.0.0.1:0")
    certificate = (f"--cert_file={files.certificate}", f"--key_file={files.key}")
    async with (
        ControlPlane(nodes=[SimulatedNode("n1", gpu_cards("n1", 1))]) as plane,
        scheduler(*flags, *addresses, *certificate, KUBECONFIG=str(plane.kubeconfig)) as command,
    ):
        address = await command.address("single")
        async with calling(address, trusting(authority)) as caller:
            assert (await caller.get("/readyz"))[0] == 200
            pod = await plane.create_pod(gpu_pod("p", gpu=1))
            assert (await caller.filter(pod, ["n1"]))["NodeNames"] == ["n1"]
            assert await caller.bind(pod, "n1") == {"Error": ""}
        command.send(signal.SIGTERM)
        assert await command.end() == 0
        bound = plane.pod("default", "p")
    assert bound is not None
    # The default of the flags, which wins over that of the file.
    assert ",NVIDIA,5000,0:" in bound["metadata"]["annotations"]["hami.io/vgpu-devices-allocated"]
