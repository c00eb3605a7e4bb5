"""What all vendors have in common, by tables and for each of them."""

from __future__ import annotations

from typing import Any

import pytest

from tessera.core.model.requests import Constraint
from tessera.vendors import registry
from tessera.vendors.base import NodeProblem, Switches, Vendor
from tessera.vendors.drafts import BadRequest, Resources
from tests.support.vendor_cases import devices, mutated, node

OLD_ILUVATAR = {
    "resourceCountName": "iluvatar.ai/vgpu",
    "resourceMemoryName": "iluvatar.ai/vcuda-memory",
    "resourceCoreName": "iluvatar.ai/vcuda-core",
}
ALL = Switches(ascend=True, iluvatar=True)
VENDORS: dict[str, Vendor] = {
    **registry.build_vendors(None, ALL),
    "Iluvatar": registry.build_vendors({"iluvatar": OLD_ILUVATAR}, ALL)["Iluvatar"],
}
LOCK = "hami.io/mutex.lock"

REGISTERING = {
    "AMD": ("hami.io/node-amd-register", ""),
    "Ascend910B3": ("hami.io/node-register-Ascend910B3", "hami.io/node-handshake-Ascend910B3"),
    "BI-V100": ("hami.io/node-BI-V100-register", "hami.io/node-handshake-BI-V100"),
    "Biren": ("hami.io/node-biren-register", "hami.io/node-handshake-biren"),
    "DCU": ("hami.io/node-dcu-register", "hami.io/node-handshake-dcu"),
    "Enflame": ("enflame.com/gcu-drs-capacity", ""),
    "Metax-SGPU": ("metax-tech.com/node-gpu-devices", ""),
    "NVIDIA": ("hami.io/node-nvidia-register", "hami.io/node-handshake"),
    "Vastai": ("hami.io/node-va-register", "hami.io/node-handshake-va"),
    "XPU": ("hami.io/node-register-xpu", "hami.io/node-handshake-xpu"),
}
"""annotations of nodes: registration and handshake"""
OFFERED = {
    "AWSNeuron": "aws.amazon.com/neuron",
    "GCU": "enflame.com/gcu",
    "Iluvatar": "iluvatar.ai/vcuda-core",
    "MLU": "cambricon.com/mlu.smlu.vcore",
    "Metax-GPU": "metax-tech.com/gpu",
    "Mthreads": "mthreads.com/sgpu-core",
    "kunlun": "kunlunxin.com/xpu",
}
"""capacity from which the cards of a node follow"""


@pytest.mark.parametrize(
    ("key", "names", "factor", "exact", "lock"),
    [
        ("AMD", "amd.com/gpu gpumem gpucores", 1, False, LOCK),
        ("AWSNeuron", "aws.amazon.com/neuron - neuroncore", 1, False, ""),
        ("Ascend910B4-1", "huawei.com/Ascend910B4-1 Ascend910B4-1-memory Ascend910B4-1-core", 1, False, LOCK),
        ("BI-V100", "iluvatar.ai/BI-V100-vgpu BI-V100.vMem BI-V100.vCore", 256, True, LOCK),
        ("Biren", "birentech.com/gpu", 1, False, LOCK),
        ("DCU", "hygon.com/dcunum dcumem dcucores", 1, True, LOCK),
        ("Enflame", "enflame.com/drs-gcu gcu-memory gcu-core", 1, False, ""),
        ("GCU", "enflame.com/gcu", 1, False, ""),
        ("Iluvatar", "iluvatar.ai/vgpu vcuda-memory vcuda-core", 256, True, ""),
        ("MLU", "cambricon.com/vmlu mlu.smlu.vmemory mlu.smlu.vcore", 256, True, "cambricon.com/dsmlu.lock"),
        ("Metax-GPU", "metax-tech.com/gpu", 1, False, ""),
        ("Metax-SGPU", "metax-tech.com/sgpu vmemory vcore", 1024, False, LOCK),
        ("Mthreads", "mthreads.com/vgpu sgpu-memory sgpu-core", 512, False, ""),
        ("NVIDIA", "nvidia.com/gpu gpumem gpucores gpumem-percentage priority", 1, True, LOCK),
        ("Vastai", "vastaitech.com/va", 1, False, LOCK),
        ("XPU", "kunlunxin.com/vxpu vxpu-memory", 1, False, LOCK),
        ("kunlun", "kunlunxin.com/xpu", 1, False, ""),
    ],
)
def test_names_of_resources_and_quotas(key: str, names: str, factor: int, exact: bool, lock: str) -> None:
    vendor = VENDORS[key]
    domain, _, rest = names.partition("/")
    count, memory, cores, *others = [name.strip("- ") and f"{domain}/{name}" for name in f"{rest} - -".split(" ")]
    assert vendor.names.all == tuple(filter(None, (count, memory, cores, *others)))
    assert (vendor.quota_memory, vendor.quota_cores, vendor.quota_factor) == (memory, cores, factor)
    assert (vendor.arrays_exact, vendor.keys.lock) == (exact, lock)


def test_each_vendor_has_its_own_way_to_tell_of_cards() -> None:
    assert {key: (v.keys.register, v.keys.handshake) for key, v in VENDORS.items() if key in REGISTERING} == REGISTERING
    assert not any(VENDORS[key].keys.register for key in OFFERED)


@pytest.mark.parametrize(
    ("key", "use", "avoid"),
    [
        ("AMD", "amd.com/use-gpu-uuid", "amd.com/nouse-gpu-uuid"),
        ("AWSNeuron", "aws.amazon.com/use-neuron-uuid", "aws.amazon.com/nouse-neuron-uuid"),
        ("Ascend910C", "hami.io/use-Ascend910C-uuid", "hami.io/no-use-Ascend910C-uuid"),
        ("BI-V100", "hami.io/use-BI-V100-uuid", "hami.io/no-use-BI-V100-uuid"),
        ("Biren", "birentech.com/use-gpuuuid", "birentech.com/nouse-gpuuuid"),
        ("DCU", "hygon.com/use-gpuuuid", "hygon.com/nouse-gpuuuid"),
        ("Enflame", "enflame.com/use-gpuuuid", "enflame.com/nouse-gpuuuid"),
        ("Iluvatar", "iluvatar.ai/use-gpuuuid", "iluvatar.ai/nouse-gpuuuid"),
        ("MLU", "cambricon.com/use-gpuuuid", "cambricon.com/nouse-gpuuuid"),
        ("Metax-SGPU", "metax-tech.com/use-gpuuuid", "metax-tech.com/nouse-gpuuuid"),
        ("Mthreads", "mthreads.ai/use-gpuuuid", "mthreads.ai/nouse-gpuuuid"),
        ("NVIDIA", "nvidia.com/use-gpuuuid", "nvidia.com/nouse-gpuuuid"),
        ("Vastai", "vastaitech.com/use-gpuuuid", "vastaitech.com/nouse-gpuuuid"),
    ],
)
def test_a_pod_says_which_cards_it_accepts(key: str, use: str, avoid: str) -> None:
    wishes = {use: " b ,a,", avoid: "c", "other": "x"}
    assert VENDORS[key].constraint(wishes) == Constraint(use_uuids=("a", "b"), avoid_uuids=("c",))


def test_a_missing_section_leaves_vendors_that_no_pod_can_name() -> None:
    named = {name: 1 for vendor in VENDORS.values() for name in vendor.names.all}
    for vendor in registry.build_vendors({}, ALL).values():
        assert vendor.names.all == ()
        assert vendor.request(Resources(limits={"": 1, **named})) is None
        assert mutated(vendor, {"": 1, **named})[0] is False
        assert devices(vendor, node(capacity={"": 1, **named})) == ()


# -- cards that an agent registers


@pytest.mark.parametrize("key", REGISTERING)
@pytest.mark.parametrize("text", [None, "", "  ", "null", "[]"])
def test_a_node_that_registers_nothing_has_no_cards(key: str, text: str | None) -> None:
    annotations = {} if text is None or (key, text) == ("Enflame", "[]") else {REGISTERING[key][0]: text}
    assert devices(VENDORS[key], node(annotations=annotations, capacity={"amd.com/gpu": 1})) == ()


@pytest.mark.parametrize("key", REGISTERING)
@pytest.mark.parametrize(
    "text", ["[{", "nonsense", "[" * 100_000, "[1]", '[{"id":""}]', '[{"id":"x"},{"id":"x"}]', '[{"model":"x"}]']
)
def test_a_registration_that_cannot_be_read_is_a_problem_of_the_node(key: str, text: str) -> None:
    register = REGISTERING[key][0]
    problem = VENDORS[key].devices(node(annotations={register: text}, capacity={"amd.com/gpu": 1}))
    assert isinstance(problem, NodeProblem)
    assert problem.text.startswith(f"{register}: ")
    assert len(problem.text) < 500


# -- cards that follow from the node's capacity


@pytest.mark.parametrize(("key", "name"), OFFERED.items())
def test_a_node_without_capacity_has_no_cards(key: str, name: str) -> None:
    for capacity in ({}, {name: "0"}, {"cpu": "64"}):
        assert devices(VENDORS[key], node(capacity=capacity)) == ()


@pytest.mark.parametrize(("key", "name"), OFFERED.items())
@pytest.mark.parametrize("value", ["-4", "1.5", "lots", "1500m", 2**31 - 1, 2**62])
def test_a_capacity_that_cannot_be_true_is_a_problem_of_the_node(key: str, name: str, value: Any) -> None:
    problem = VENDORS[key].devices(node(capacity={name: value}))
    assert isinstance(problem, NodeProblem)
    assert name in problem.text


# -- requests


@pytest.mark.parametrize("key", sorted(VENDORS.keys() - {"AWSNeuron", "Enflame"}))
@pytest.mark.parametrize("value", [-1, "0.5", "1500m", 2**31, "2Gi", "many", "１", "9" * 30])
def test_a_number_of_cards_that_cannot_be_honoured_is_refused_with_advice(key: str, value: Any) -> None:
    vendor = VENDORS[key]
    answer = vendor.request(Resources(limits={vendor.names.count: value}))
    assert isinstance(answer, BadRequest)
    assert answer.resource == vendor.names.count
    assert "write a" in answer.text
