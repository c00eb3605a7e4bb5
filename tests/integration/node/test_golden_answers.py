"""Golden cases 12 to 14, 23 and 24: what an answer of Allocate has in it."""

from __future__ import annotations

from json import loads
from pathlib import Path

import pytest

from tests.support.agent import AgentNode, agent_node, bound

PRELOAD = "/etc/ld.so.preload"


async def mounts_of(node: AgentNode, **more: dict[str, str]) -> dict[str, str]:
    """Host paths by container path, for a pod with one slice."""
    await bound(node, "p", [[node.slice(0, memory=3000)]], **more)
    return {mount.container_path: mount.host_path for mount in (await node.allocate(1)).mounts}


@pytest.mark.parametrize(("value", "preloads"), [("true", False), ("0", True), ("yes", True)])
async def test_golden_12_a_container_may_do_without_the_preload(tmp_path: Path, value: str, preloads: bool) -> None:
    async with agent_node(tmp_path) as node:
        mounts = await mounts_of(node, env={"CUDA_DISABLE_CONTROL": value})
        assert (PRELOAD in mounts) is preloads
        assert f"{tmp_path}/hook/vgpu/libvgpu.so" in mounts


async def test_golden_13_a_license_on_the_host_is_two_more_mounts(tmp_path: Path) -> None:
    async with agent_node(tmp_path) as node:
        home = tmp_path / "hook" / "vgpu"
        (home / "license").touch()
        mounts = await mounts_of(node)
        assert len(mounts) == 6
        assert mounts["/tmp/license"] == f"{home}/license"
        assert mounts["/usr/bin/vgpuvalidator"] == f"{home}/vgpuvalidator"


async def test_golden_13_without_one_there_are_the_usual_four(tmp_path: Path) -> None:
    async with agent_node(tmp_path) as node:
        mounts = await mounts_of(node)
        assert set(mounts) == {f"{tmp_path}/hook/vgpu", f"{tmp_path}/hook/vgpu/libvgpu.so", "/tmp/vgpulock", PRELOAD}


async def test_golden_14_settings_of_the_library_reach_the_container(tmp_path: Path) -> None:
    yaml = "nvidia: {deviceMemoryScaling: 1.5, libCudaLogLevel: 1, disableCoreLimit: true}"
    async with agent_node(tmp_path, yaml=yaml) as node:
        await bound(node, "p", [[node.slice(0, memory=3000)]])
        envs = (await node.allocate(1)).envs
        assert envs["CUDA_OVERSUBSCRIBE"] == "true"
        assert envs["LIBCUDA_LOG_LEVEL"] == "1"
        assert envs["GPU_CORE_UTILIZATION_POLICY"] == "disable"


async def test_golden_23_cdi_annotations_name_the_cards_under_the_prefix_and_nothing_else_does(tmp_path: Path) -> None:
    flags = {"device-list-strategy": "cdi-annotations", "cdi-annotation-prefix": "my.org/"}
    async with agent_node(tmp_path, flags=flags) as node:
        await bound(node, "p", [[node.slice(0, memory=3000), node.slice(1, memory=3000)]])
        answer = await node.allocate(2)
        ((key, value),) = answer.annotations.items()
        assert key.startswith("my.org/nvidia-device-plugin_")
        names = [f"k8s.device-plugin.nvidia.com/gpu={node.card(index).uuid}" for index in (0, 1)]
        assert value == ",".join(names)
        assert "NVIDIA_VISIBLE_DEVICES" not in answer.envs
        document = loads((tmp_path / "cdi" / "k8s.device-plugin.nvidia.com-gpu.json").read_text())
        offered = {f"{document['kind']}={device['name']}" for device in document["devices"]}
        assert offered.issuperset(names)


async def test_golden_24_volume_mounts_name_the_cards_by_files(tmp_path: Path) -> None:
    async with agent_node(tmp_path, flags={"device-list-strategy": "volume-mounts"}) as node:
        await bound(node, "p", [[node.slice(0, memory=3000)]])
        answer = await node.allocate(1)
        assert answer.envs["NVIDIA_VISIBLE_DEVICES"] == "/var/run/nvidia-container-devices"
        listed = [mount for mount in answer.mounts if mount.host_path == "/dev/null"]
        assert [each.container_path for each in listed] == [f"/var/run/nvidia-container-devices/{node.card(0).uuid}"]
