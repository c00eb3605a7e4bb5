"""Our .proto files against recorded traffic of a real kubelet, and the modules made of them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.message import Message

from tessera.wire.kubelet import device_plugin_pb2 as device_plugin
from tessera.wire.kubelet import methods
from tessera.wire.kubelet import pod_resources_pb2 as pod_resources

ROOT = Path(__file__).parents[3]
SAMPLES = ROOT / "tests" / "samples" / "kubelet"
CALLS = [json.loads(line) for line in (SAMPLES / "deviceplugin-calls.jsonl").read_text().splitlines()]

REQUESTS: dict[str, type[Message]] = {
    "Register": device_plugin.RegisterRequest,
    "Register(reply)": device_plugin.Empty,
    "GetDevicePluginOptions": device_plugin.Empty,
    "GetPreferredAllocation": device_plugin.PreferredAllocationRequest,
    "ListAndWatch": device_plugin.Empty,
    "Allocate": device_plugin.AllocateRequest,
    "PreStartContainer": device_plugin.PreStartContainerRequest,
}
ANSWERS: dict[str, type[Message]] = {
    "Register": device_plugin.RegisterRequest,
    "ListAndWatch": device_plugin.ListAndWatchResponse,
    "Allocate": device_plugin.AllocateResponse,
}


@pytest.mark.parametrize("call", CALLS, ids=lambda call: f"{call['dir']} {call['method']}")
def test_every_recorded_message_has_its_fields_here_and_survives_the_wire(call: dict[str, Any]) -> None:
    kinds = REQUESTS if call["dir"] == "kubelet->plugin" else ANSWERS
    kind = kinds[call["method"]]
    message = ParseDict(call["msg"], kind())
    again = kind.FromString(message.SerializeToString())
    assert MessageToDict(again, preserving_proto_field_name=True) == call["msg"]


def test_recorded_holdings_are_read() -> None:
    recorded = json.loads((SAMPLES / "podresources.json").read_text())
    answer = ParseDict(recorded["List"], pod_resources.ListPodResourcesResponse())
    (pod,) = answer.pod_resources
    assert (pod.namespace, pod.name) == ("default", "realgpu")
    held = [[each.device_ids[:] for each in container.devices] for container in pod.containers]
    assert held == [[["gpu-9"], ["gpu-8"]], [["gpu-7"]]]
    ParseDict(recorded["GetAllocatableResources"], pod_resources.AllocatableResourcesResponse())


def test_fields_that_a_newer_kubelet_adds_are_skipped() -> None:
    # Field 3 (cpu_ids) and field 99, both unknown here, in front of the name.
    data = b"\x1a\x02\x01\x02" + b"\x9a\x06\x01x" + pod_resources.ContainerResources(name="c1").SerializeToString()
    assert pod_resources.ContainerResources.FromString(data).name == "c1"


# From kubelet's interface: what no recorded JSON shows is which number a field has on the wire.
@pytest.mark.parametrize(
    ("message", "numbers"),
    [
        (device_plugin.RegisterRequest, {"version": 1, "endpoint": 2, "resource_name": 3, "options": 4}),
        (device_plugin.DevicePluginOptions, {"pre_start_required": 1, "get_preferred_allocation_available": 2}),
        (device_plugin.ListAndWatchResponse, {"devices": 1}),
        (device_plugin.Device, {"ID": 1, "health": 2, "topology": 3}),
        (device_plugin.TopologyInfo, {"nodes": 1}),
        (device_plugin.NUMANode, {"ID": 1}),
        (device_plugin.PreferredAllocationRequest, {"container_requests": 1}),
        (
            device_plugin.ContainerPreferredAllocationRequest,
            {"available_deviceIDs": 1, "must_include_deviceIDs": 2, "allocation_size": 3},
        ),
        (device_plugin.PreferredAllocationResponse, {"container_responses": 1}),
        (device_plugin.ContainerPreferredAllocationResponse, {"deviceIDs": 1}),
        (device_plugin.AllocateRequest, {"container_requests": 1}),
        (device_plugin.ContainerAllocateRequest, {"devices_ids": 1}),
        (device_plugin.AllocateResponse, {"container_responses": 1}),
        (
            device_plugin.ContainerAllocateResponse,
            {"envs": 1, "mounts": 2, "devices": 3, "annotations": 4, "cdi_devices": 5},
        ),
        (device_plugin.Mount, {"container_path": 1, "host_path": 2, "read_only": 3}),
        (device_plugin.DeviceSpec, {"container_path": 1, "host_path": 2, "permissions": 3}),
        (device_plugin.CDIDevice, {"name": 1}),
        (device_plugin.PreStartContainerRequest, {"devices_ids": 1}),
        (pod_resources.ListPodResourcesResponse, {"pod_resources": 1}),
        (pod_resources.PodResources, {"name": 1, "namespace": 2, "containers": 3}),
        (pod_resources.ContainerResources, {"name": 1, "devices": 2}),
        (pod_resources.ContainerDevices, {"resource_name": 1, "device_ids": 2, "topology": 3}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_fields_have_kubelets_numbers(message: type[Message], numbers: dict[str, int]) -> None:
    assert {field.name: field.number for field in message.DESCRIPTOR.fields} == numbers


def test_every_call_is_one_of_the_services() -> None:
    calls: list[methods.Method[Any, Any]] = [
        methods.REGISTER,
        methods.OPTIONS,
        methods.LIST_AND_WATCH,
        methods.PREFERRED_ALLOCATION,
        methods.ALLOCATE,
        methods.PRE_START,
        methods.LIST,
    ]
    files = (device_plugin.DESCRIPTOR, pod_resources.DESCRIPTOR)
    services = {service.full_name: service for file in files for service in file.services_by_name.values()}
    for call in calls:
        found = services[call.service].methods_by_name[call.name]
        assert (found.input_type, found.output_type) == (call.request.DESCRIPTOR, call.response.DESCRIPTOR)
        assert found.server_streaming is call.streams
        assert call.path == f"/{found.containing_service.full_name}/{found.name}"


def test_the_modules_are_those_that_make_proto_makes(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "tools" / "protos.py"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    made = {path.relative_to(tmp_path): path.read_text() for path in tmp_path.rglob("*_pb2.py*")}
    assert len(made) == 2 * len(list((ROOT / "src/tessera/wire/kubelet").glob("*.proto"))) == 8
    assert made == {path: (ROOT / "src" / path).read_text() for path in made}
