"""`tessera scheduler` as users start it: errors at start, required settings, and printed output."""

from __future__ import annotations

import signal
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import trustme
import yaml
from click.testing import CliRunner

from tessera.cli import main
from tessera_lab.sandbox.api.server import ApiServer
from tessera_lab.sandbox.control_plane import ControlPlane
from tessera_lab.sandbox.nodes.node import SimulatedNode, gpu_cards
from tests.support.commands import OWN_PORTS, ended, scheduler
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


@dataclass(frozen=True)
class OfflineClient:
    """An API server that only the command under test uses."""

    kubeconfig: Path
    server: ApiServer


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[OfflineClient]:
    async with ApiServer() as server:
        kubeconfig = tmp_path / "kubeconfig"
        server.write_kubeconfig(kubeconfig)
        yield OfflineClient(kubeconfig, server)
        assert len(server.journal) == 0


async def test_a_bad_configuration_is_one_message_and_nothing_is_started(api: OfflineClient, tmp_path: Path) -> None:
    broken = tmp_path / "device-config.yaml"
    broken.write_text("nvidia:\n  resourceCountNam: x\n")
    code, command = await ended(
        f"--kubeconfig={api.kubeconfig}", f"--device-config-file={broken}", "--kube-qps=fast", *OWN_PORTS
    )
    assert (code, command.output, command.events) == (2, "", [])
    first, *problems = command.words
    assert first == "Error: the configuration cannot be used"
    assert [problem.partition(":")[0].strip() for problem in problems] == ["--kube-qps", str(broken)]


async def test_a_certificate_that_is_missing_is_named_and_nothing_is_opened(api: OfflineClient, tmp_path: Path) -> None:
    code, command = await ended(
        f"--kubeconfig={api.kubeconfig}",
        "--http_bind=127.0.0.1:0",
        "--metrics-bind-address=127.0.0.1:0",
        f"--cert_file={tmp_path / 'tls.crt'}",
        f"--key_file={tmp_path / 'tls.key'}",
    )
    [started, fault] = command.events
    assert (code, started["message"], fault["message"]) == (2, "starting", "cannot serve TLS")
    assert fault["error"] == f"cannot read {tmp_path / 'tls.crt'}: No such file or directory"


async def test_a_port_that_is_taken_is_named_and_ends_the_start(api: OfflineClient) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, command = await ended(
            f"--kubeconfig={api.kubeconfig}",
            "--extender-bind=127.0.0.1:0",
            f"--metrics-bind-address=127.0.0.1:{port}",
        )
    assert code == 1
    fault = command.events[-1]
    assert (fault["level"], fault["message"]) == ("error", "cannot listen")
    assert str(port) in fault["error"]
    assert "address already in use" in fault["error"]


async def test_without_access_to_an_apiserver_nothing_is_started() -> None:
    code, command = await ended(*OWN_PORTS)
    [started, fault] = command.events
    assert (code, started["message"], fault["message"]) == (2, "starting", "no access to the apiserver")
    assert fault["error"].startswith("no access to an apiserver is configured; name a kubeconfig")


async def test_the_effective_configuration_is_printed_and_can_be_used_as_a_file(tmp_path: Path) -> None:
    code, printed = await ended("--print-config", *V2_4_0)
    assert (code, printed.words, printed.events) == (0, [], [])
    found = yaml.safe_load(printed.output)
    assert found["nvidia"]["defaultMemory"] == 5000
    assert found["scheduler"]["enable-ascend"] is True
    del found["scheduler"]
    file = tmp_path / "device-config.yaml"
    file.write_text(yaml.safe_dump(found))
    again = CliRunner().invoke(main, ["scheduler", "--print-config", "--device-config-file", str(file)])
    assert again.exit_code == 0, again.output
    assert yaml.safe_load(again.stdout) | {"scheduler": None} == found | {"scheduler": None}


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
