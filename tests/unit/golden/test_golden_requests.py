"""What pods of every vendor ask for once the webhook has completed them, as HAMi v2.10 has it.

HAMi writes 101 per cent for "not given" and keeps a percentage beside an amount of memory; here a percentage is only
there where it decides, so those columns read 0.
"""

from __future__ import annotations

from typing import Any

import pytest

from tessera.core.model.requests import Request
from tessera.vendors.drafts import Denied
from tests.support.builders import PodBuilder, pod

B3, P310 = "huawei.com/Ascend910B3", "huawei.com/Ascend310P"
MLU = "cambricon.com/"
BI = "iluvatar.ai/BI-V100"
SGPU = "metax-tech.com/"
NEURON = "aws.amazon.com/neuroncore"

Asked = tuple[int, int, int, int]
"""cards, MiB, per cent, cores"""


def asking(limits: dict[str, Any]) -> PodBuilder:
    admitted = pod().container(limits=limits).admitted()
    assert isinstance(admitted, PodBuilder), admitted
    return admitted


def numbers(request: Request) -> Asked:
    return request.count, request.memory, request.percent, request.cores


@pytest.mark.parametrize(
    ("vendor", "limits", "asked"),
    [
        ("NVIDIA", {"nvidia.com/gpu": 1}, (1, 0, 100, 100)),
        ("NVIDIA", {"nvidia.com/gpu": 2, "nvidia.com/gpumem": 3000}, (2, 3000, 0, 0)),
        ("NVIDIA", {"nvidia.com/gpumem": 3000}, (1, 3000, 0, 0)),
        (
            "NVIDIA",
            {"nvidia.com/gpu": 1, "nvidia.com/gpumem-percentage": 50, "nvidia.com/gpucores": 30},
            (1, 0, 50, 30),
        ),
        ("MLU", {f"{MLU}vmlu": 1, f"{MLU}mlu.smlu.vmemory": 4, f"{MLU}mlu.smlu.vcore": 10}, (1, 1024, 0, 10)),
        ("MLU", {f"{MLU}vmlu": 1}, (1, 0, 100, 100)),
        ("BI-V100", {f"{BI}-vgpu": 1, f"{BI}.vMem": 10, f"{BI}.vCore": 50}, (1, 2560, 0, 50)),
        ("BI-V100", {f"{BI}-vgpu": 2}, (2, 0, 100, 200)),
        ("Metax-GPU", {f"{SGPU}gpu": 2}, (2, 0, 100, 100)),
        ("Metax-SGPU", {f"{SGPU}sgpu": 1, f"{SGPU}vcore": 60, f"{SGPU}vmemory": 4}, (1, 4096, 0, 60)),
        ("Metax-SGPU", {f"{SGPU}sgpu": 1, f"{SGPU}vcore": 60, f"{SGPU}vmemory": "4Gi"}, (1, 4096, 0, 60)),
        ("Metax-SGPU", {f"{SGPU}sgpu": 1, f"{SGPU}vmemory": "4Gi"}, (1, 4096, 0, 100)),
        ("Ascend910B3", {B3: 1, f"{B3}-memory": 2000}, (1, 16384, 0, 0)),
        ("Ascend910B3", {B3: 1}, (1, 65536, 0, 0)),
        ("Ascend310P", {P310: 1, f"{P310}-memory": 13000}, (1, 21527, 0, 0)),
        ("GCU", {"enflame.com/gcu": 1}, (1, 100, 100, 100)),
        ("kunlun", {"kunlunxin.com/xpu": 2}, (2, 0, 100, 0)),
        ("XPU", {"kunlunxin.com/vxpu": 1, "kunlunxin.com/vxpu-memory": 30000}, (1, 49152, 0, 50)),
        ("XPU", {"kunlunxin.com/vxpu": 1}, (1, 98304, 100, 100)),
        ("AWSNeuron", {NEURON: 1}, (1, 0, 0, 1)),
        ("AWSNeuron", {NEURON: 4}, (2, 0, 0, 2)),
        ("Vastai", {"vastaitech.com/va": 1}, (1, 0, 100, 0)),
        ("Biren", {"birentech.com/gpu": 1}, (1, 0, 100, 0)),
    ],
)
def test_a_completed_pod_asks_of_one_vendor(vendor: str, limits: dict[str, Any], asked: Asked) -> None:
    (container,) = asking(limits).request().containers
    (request,) = container.requests
    assert (request.vendor, numbers(request)) == (vendor, asked)


@pytest.mark.parametrize(
    ("limits", "limit", "value"),
    [
        ({"nvidia.com/gpu": 1}, "nvidia.com/gpucores", "100"),
        ({"nvidia.com/gpumem": 3000}, "nvidia.com/gpu", "1"),
        ({f"{BI}-vgpu": 2}, f"{BI}.vCore", "200"),
        ({B3: 1, f"{B3}-memory": 2000}, f"{B3}-memory", "16384"),
        ({P310: 1, f"{P310}-memory": 13000}, f"{P310}-memory", "21527"),
        ({"kunlunxin.com/vxpu": 1, "kunlunxin.com/vxpu-memory": 30000}, "kunlunxin.com/vxpu-memory", "49152"),
    ],
)
def test_the_webhook_writes_what_was_missing(limits: dict[str, Any], limit: str, value: str) -> None:
    assert asking(limits).containers[0]["resources"]["limits"][limit] == value


@pytest.mark.parametrize(
    ("limits", "text"),
    [
        ({B3: 2, f"{B3}-memory": 2000}, "vNPU not supported for multiple devices"),
        ({B3: 1, f"{B3}-memory": 70000}, f"{B3}-memory 70000 is invalid"),
        ({NEURON: 3}, f"{NEURON} must be 1 or a multiple of 2, got 3"),
    ],
)
def test_the_webhook_refuses_what_no_card_can_be_cut_to(limits: dict[str, Any], text: str) -> None:
    assert pod().container(limits=limits).admitted() == Denied(text)


@pytest.mark.parametrize("memory", ["2Gi", "1500m"])
def test_memory_that_is_no_number_of_mib_is_refused_with_advice(memory: str) -> None:
    fault = asking({"nvidia.com/gpu": 1, "nvidia.com/gpumem": memory}).fault()
    assert fault.container == "c0"
    assert fault.text.startswith(f"nvidia.com/gpumem: {memory} cannot be used: write a")
