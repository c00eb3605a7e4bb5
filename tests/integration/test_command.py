"""`tessera scheduler` in a Deployment of HAMi, of which only the image changed."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import trustme

from tessera_lab.sandbox.control_plane import ControlPlane
from tessera_lab.sandbox.nodes.node import SimulatedNode, gpu_cards
from tests.support.commands import scheduler
from tests.support.hami_deployments import V2_4_0, V2_4_1, V2_4_1_FILE
from tests.support.product import gpu_pod
from tests.support.scheduler_process import calling, trusting, write_pair


@pytest.mark.parametrize("flags", [V2_4_0, V2_4_1], ids=["2.4.0", "2.4.1"])
async def test_a_deployment_of_hami_starts_with_only_its_image_changed(tmp_path: Path, flags: list[str]) -> None:
    authority = trustme.CA()
    files = write_pair(tmp_path, authority)
    if flags is V2_4_1:
        (tmp_path / "device-config.yaml").write_text(V2_4_1_FILE)
        flags = [*flags, f"--device-config-file={tmp_path / 'device-config.yaml'}"]
    values = ("--resource-name=nvidia.com/gpu", "--default-mem=5000", "--default-gpu=1", "--default-cores=0")
    addresses = ("--http_bind=127.0.0.1:0", "--metrics-bind-address=127.0.0.1:0")
    certificate = (f"--cert_file={files.certificate}", f"--key_file={files.key}")
    async with (
        ControlPlane(nodes=[SimulatedNode("n1", gpu_cards("n1", 1))]) as plane,
        scheduler(*flags, *values, *addresses, *certificate, KUBECONFIG=str(plane.kubeconfig)) as command,
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
