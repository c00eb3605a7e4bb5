from __future__ import annotations

import pytest
from google.protobuf.json_format import MessageToDict

from tessera.node.fleet import Replica
from tessera.node.kubelet import service
from tessera.node.modes.base import ContainerResponse, DeviceNode, HostMount
from tessera.node.settings import AgentSettings
from tessera.wire.node_config import NodeSettings


def test_an_answer_arrives_whole() -> None:
    answer = ContainerResponse(
        env={"NVIDIA_VISIBLE_DEVICES": "GPU-a", "CUDA_DEVICE_MEMORY_LIMIT_0": "3000m"},
        mounts=(
            HostMount("/usr/local/vgpu", "/host/vgpu", read_only=False),
            HostMount("/etc/ld.so.preload", "/host/preload"),
        ),
        devices=(DeviceNode("/dev/nvidia0", "/dev/nvidia0"),),
        annotations={"cdi.k8s.io/x": "a=b"},
        cdi_devices=("k8s.device-plugin.nvidia.com/gpu=a",),
    )
    assert MessageToDict(
        service.allocate_response([answer, ContainerResponse()]), preserving_proto_field_name=True
    ) == {
        "container_responses": [
            {
                "envs": {"NVIDIA_VISIBLE_DEVICES": "GPU-a", "CUDA_DEVICE_MEMORY_LIMIT_0": "3000m"},
                "mounts": [
                    {"container_path": "/usr/local/vgpu", "host_path": "/host/vgpu"},
                    {"container_path": "/etc/ld.so.preload", "host_path": "/host/preload", "read_only": True},
                ],
                "devices": [{"container_path": "/dev/nvidia0", "host_path": "/dev/nvidia0", "permissions": "rw"}],
                "annotations": {"cdi.k8s.io/x": "a=b"},
                "cdi_devices": [{"name": "k8s.device-plugin.nvidia.com/gpu=a"}],
            },
            {},
        ]
    }


def test_a_list_tells_numa_node_0_from_none() -> None:
    listed = service.device_list([Replica("a", True, None), Replica("b", False, 0), Replica("c", True, 1)])
    assert [(each.ID, each.health, [node.ID for node in each.topology.nodes]) for each in listed.devices] == [
        ("a", "Healthy", []),
        ("b", "Unhealthy", [0]),
        ("c", "Healthy", [1]),
    ]
    assert [each.HasField("topology") for each in listed.devices] == [False, True, True]


@pytest.mark.parametrize("preferred", [True, False])
def test_registration_and_options_say_the_same(preferred: bool) -> None:
    settings = AgentSettings(node_name="node-a", node=NodeSettings(preferred_allocation=preferred))
    request = service.registration_request(settings, endpoint="nvidia-gpu.sock")
    assert (request.version, request.endpoint, request.resource_name) == (
        "v1beta1",
        "nvidia-gpu.sock",
        "nvidia.com/gpu",
    )
    assert request.options == service.plugin_options(settings)
    assert request.options.get_preferred_allocation_available is preferred
    assert request.options.pre_start_required is False


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("no room", "no room"),
        ("GPU-\u00e9", "GPU-\u00e9"),
        ("lone \ud800", "lone ?"),
        ("x" * 1024, "x" * 1024),
        ("x" * 1025, "x" * 1021 + "..."),
    ],
    ids=["plain", "not ASCII", "not even Unicode", "just fits", "too long"],
)
def test_a_status_text_is_fit_for_a_header(text: str, told: str) -> None:
    assert service.status_text(text) == told
