"""What bindings write, as HAMi v2.10 does: the annotations of every vendor, and where each container stands in them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.builders import (
    A100_40GB,
    ALLOCATED,
    MIG_ALLOCATIONS,
    Cluster,
    NodeBuilder,
    PodBuilder,
    cluster,
    gpu_pod,
    node,
    pod,
)

ASCEND = "Ascend910B3"
NEURON = "aws.amazon.com/"


def written(world: Cluster, one: PodBuilder) -> dict[str, str]:
    admitted = one.admitted()
    assert isinstance(admitted, PodBuilder), admitted
    return world.written(admitted, world.chosen(admitted).placement)


def registered(key: str, *cards: dict[str, Any]) -> NodeBuilder:
    alike = {"count": 10, "devcore": 100, "health": True}
    return node().annotate((key, json.dumps([{**alike, "index": i, **card} for i, card in enumerate(cards)])))


def test_every_binding_says_where_and_when() -> None:
    annotations = written(cluster(node().gpus(1)), gpu_pod(mem=1000))
    assert annotations["hami.io/vgpu-node"] == "n1"
    assert annotations["hami.io/vgpu-time"] == annotations["hami.io/bind-time"] == "1700000000"
    assert annotations["hami.io/bind-phase"] == "allocating"


def test_nvidia_writes_two_cards_of_one_container() -> None:
    annotations = written(cluster(node().gpu("U0").gpu("U1")), gpu_pod(gpu=2, mem=3000))
    assert annotations["hami.io/vgpu-devices-to-allocate"] == "U1,NVIDIA,3000,0:U0,NVIDIA,3000,0:;"
    assert annotations["hami.io/vgpu-devices-allocated"] == "U1,NVIDIA,3000,0:U0,NVIDIA,3000,0:;"
    assert MIG_ALLOCATIONS not in annotations


def test_nvidia_writes_the_places_of_mig_instances() -> None:
    card = node().gpu("GPU-m", memory=40960, mode="mig", slots=7, profiles=A100_40GB)
    annotations = written(cluster(card), gpu_pod(gpu=2, mem=8000))
    assert annotations[ALLOCATED] == "GPU-m,NVIDIA,9856,29:GPU-m,NVIDIA,9856,29:;"
    instance = {"gpuUUID": "GPU-m", "profile": "2g.10gb"}
    assert json.loads(annotations[MIG_ALLOCATIONS]) == [
        {"containerIndex": 0, "deviceIndex": 0, **instance, "placement": {"start": 0, "size": 2}},
        {"containerIndex": 0, "deviceIndex": 1, **instance, "placement": {"start": 2, "size": 2}},
    ]


def test_cambricon_writes_the_profile_of_the_slice() -> None:
    memory, cores = "cambricon.com/mlu.smlu.vmemory", "cambricon.com/mlu.smlu.vcore"
    world = cluster(node().capacity(**{memory: 200, cores: 200}))
    asking = pod().container(limits={"cambricon.com/vmlu": 1, memory: 4, cores: 10})
    annotations = written(world, asking)
    assert annotations["hami.io/cambricon-mlu-devices-allocated"] == "n1-cambricon-mlu-1,MLU,1024,10:;"
    assert annotations["CAMBRICON_DSMLU_PROFILE"] == "1_10_4"


def test_metax_writes_slices_in_its_own_form_too() -> None:
    card = {"uuid": "MX-0", "totalDevCount": 4, "totalCompute": 100, "totalVRam": 65536, "healthy": True}
    world = cluster(node().annotate(("metax-tech.com/node-gpu-devices", json.dumps([card]))))
    limits = {"metax-tech.com/sgpu": 1, "metax-tech.com/vcore": 60, "metax-tech.com/vmemory": 4}
    annotations = written(world, pod().container(limits=limits))
    assert annotations["hami.io/metax-sgpu-devices-allocated"] == "MX-0,Metax-SGPU,4096,60:;"
    assert annotations["metax-tech.com/gpu-devices-allocated"] == '[[{"uuid":"MX-0","compute":60,"vRam":4096}]]'


@pytest.mark.parametrize(
    ("memory", "entry", "own"),
    [
        ({f"huawei.com/{ASCEND}-memory": 2000}, "16384,0", '"temp":"vir05_1c_16g","memory":16384'),
        ({}, "65536,0", '"memory":65536'),
    ],
)
def test_ascend_writes_the_template_of_a_part_of_a_chip(memory: dict[str, int], entry: str, own: str) -> None:
    chip = {"devmem": 65536, "type": ASCEND}
    world = cluster(registered(f"hami.io/node-register-{ASCEND}", {"id": "U0", **chip}, {"id": "U1", **chip}))
    annotations = written(world, pod().container(limits={f"huawei.com/{ASCEND}": 1, **memory}))
    assert annotations[f"hami.io/{ASCEND}-devices-allocated"] == f"U1,{ASCEND},{entry}:;"
    assert annotations[f"huawei.com/{ASCEND}"] == f'[{{"UUID":"U1",{own}}}]'


def test_neuron_writes_the_ids_of_cores() -> None:
    world = cluster(node().capacity(**{f"{NEURON}neuron": 2, f"{NEURON}neuroncore": 4}))
    annotations = written(world, pod().container(limits={f"{NEURON}neuroncore": 1}))
    assert annotations["AWS_NEURON_IDS"] == "2"
    assert annotations["hami.io/aws-neuron-devices-allocated"] == "n1-AWSNeuron-1,AWSNeuron,0,1:;"


def test_vastai_writes_dies_by_number_alone() -> None:
    dies = ({"id": f"U{i}", "custominfo": {"DeviceStrategy": "die", "AIC": f"{i // 2}"}} for i in range(4))
    world = cluster(registered("hami.io/node-va-register", *dies))
    annotations = written(world, pod().container(limits={"vastaitech.com/va": 2}))
    assert annotations["hami.io/Vastai-devices-allocated"] == "U3,Vastai,0,0:U2,Vastai,0,0:;"


@pytest.mark.parametrize(
    ("one", "text"),
    [
        (pod().init().container(gpu=1, mem=10), ";G1,NVIDIA,10,0:;"),
        (pod().container().container(gpu=1, mem=10), ";G1,NVIDIA,10,0:;"),
        (
            pod().container(gpu=1, mem=10).container().container(gpu=1, mem=20),
            "G1,NVIDIA,10,0:;;G0,NVIDIA,20,0:;",
        ),
        (pod().sidecar(gpu=1, mem=10).init().container(), "G1,NVIDIA,10,0:;;;"),
    ],
)
def test_every_container_has_its_entry_even_without_a_card(one: PodBuilder, text: str) -> None:
    world = cluster(node().gpu("G0").gpu("G1"))
    annotations = world.written(one, world.chosen(one).placement)
    assert annotations[ALLOCATED] == text
    roles = [span.role for span in world.start(one).facts().spans]
    assert roles == [ask.role for ask in one.request().containers]
