from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tessera.core.model.devices import MigPlacement, MigSlot
from tessera.core.model.grants import Grant, Placement
from tessera.core.model.requests import ContainerRequest, PodRequest, Request
from tessera.vendors.base import Switches
from tessera.vendors.downward_api import container_env, read_references, slice_annotations
from tessera.vendors.nvidia.downward_api import MAX_DEVICES, NvidiaDownwardApi
from tessera.vendors.registry import build_vendors
from tessera.wire.objects import Container, Pod, PodSpec

VENDORS = build_vendors(None, Switches())
API = NvidiaDownwardApi()

UID = {"name": "TESSERA_POD_UID", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.uid"}}}


def reference(name: str, field: str) -> dict[str, Any]:
    path = f"metadata.annotations['tessera.io/{field}']"
    return {"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}


def env(devices: int = 1, container: int = 0) -> list[dict[str, Any]]:
    return container_env(API, container=container, name="main", devices=devices)


# -- what is injected


def test_a_container_reads_its_slice_from_annotations_of_its_own_pod() -> None:
    assert container_env(API, container=2, name="main", devices=2) == [
        UID,
        reference("NVIDIA_VISIBLE_DEVICES", "c2.visible-devices"),
        reference("CUDA_DEVICE_MEMORY_LIMIT_0", "c2.memory-limit-0"),
        reference("CUDA_DEVICE_MEMORY_LIMIT_1", "c2.memory-limit-1"),
        reference("CUDA_DEVICE_SM_LIMIT", "c2.core-limit"),
        reference("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "c2.mps-memory-limit"),
        reference("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "c2.mps-thread-percentage"),
        {"name": "CUDA_DEVICE_MEMORY_SHARED_CACHE", "value": "/usr/local/vgpu/$(TESSERA_POD_UID)_main.cache"},
    ]


def test_the_region_lies_where_the_agent_mounts_it() -> None:
    last = container_env(API, container=0, name="main", devices=1, hook_path="/opt/hami/")[-1]
    assert last["value"] == "/opt/hami/vgpu/$(TESSERA_POD_UID)_main.cache"


def test_the_uid_stands_before_the_path_that_holds_it() -> None:
    names = [entry["name"] for entry in env()]
    assert names.index("TESSERA_POD_UID") < names.index("CUDA_DEVICE_MEMORY_SHARED_CACHE")


def test_a_monstrous_number_of_devices_needs_no_monstrous_environment() -> None:
    assert len(env(devices=2**31 - 1)) == MAX_DEVICES + 6


# -- what the binding writes


def grant(uuid: str, *, memory: int = 3000, cores: int = 30, **more: Any) -> Grant:
    return Grant(uuid, "NVIDIA", memory, cores, **more)


def test_the_binding_writes_what_the_variables_refer_to() -> None:
    grants = ((), (grant("GPU-a"), grant("GPU-b", memory=4000, cores=50)), (grant("GPU-c", cores=0),))
    assert slice_annotations(Placement("n1", {"NVIDIA": grants}), VENDORS) == {
        "tessera.io/c1.visible-devices": "GPU-a,GPU-b",
        "tessera.io/c1.memory-limit-0": "3000m",
        "tessera.io/c1.memory-limit-1": "4000m",
        "tessera.io/c1.core-limit": "30",
        "tessera.io/c1.mps-memory-limit": "GPU-a=3000M,GPU-b=4000M",
        "tessera.io/c1.mps-thread-percentage": "30",
        "tessera.io/c2.visible-devices": "GPU-c",
        "tessera.io/c2.memory-limit-0": "3000m",
        "tessera.io/c2.core-limit": "0",
        "tessera.io/c2.mps-memory-limit": "GPU-c=3000M",
        "tessera.io/c2.mps-thread-percentage": "100",
    }


def test_limits_are_numbered_as_the_container_numbers_its_cards() -> None:
    chosen = (grant("GPU-b", memory=4000, index=1), grant("GPU-a", memory=3000, index=0))
    written = slice_annotations(Placement("n1", {"NVIDIA": (chosen,)}), VENDORS)
    assert written["tessera.io/c0.visible-devices"] == "GPU-a,GPU-b"
    assert written["tessera.io/c0.memory-limit-0"] == "3000m"
    assert written["tessera.io/c0.memory-limit-1"] == "4000m"


@pytest.mark.parametrize(("cores", "threads"), [(0, "100"), (1, "1"), (30, "30"), (100, "100"), (150, "100")])
def test_mps_always_gets_a_number_of_threads(cores: int, threads: str) -> None:
    written = slice_annotations(Placement("n1", {"NVIDIA": ((grant("GPU-a", cores=cores),),)}), VENDORS)
    assert written["tessera.io/c0.mps-thread-percentage"] == threads


def test_a_mig_instance_that_does_not_exist_yet_is_not_named() -> None:
    mig = grant("GPU-m", mig=MigSlot("1g.10gb", MigPlacement(0, 1)))
    annotations = slice_annotations(Placement("n1", {"NVIDIA": ((mig,), (grant("GPU-a"),))}), VENDORS)
    assert annotations["tessera.io/c1.visible-devices"] == "GPU-a"
    assert not any(key.startswith("tessera.io/c0.") for key in annotations)


def test_grants_of_other_vendors_write_nothing() -> None:
    assert slice_annotations(Placement("n1", {"DCU": ((Grant("DCU-1", "DCU", 1000, 10),),)}), VENDORS) == {}


def test_every_reference_has_its_annotation() -> None:
    grants = tuple(grant(f"GPU-{i}") for i in range(20))
    written = slice_annotations(Placement("n1", {"NVIDIA": (grants,)}), VENDORS)
    paths = {f"metadata.annotations['{key}']" for key in written}
    referred = {entry["valueFrom"]["fieldRef"]["fieldPath"] for entry in env(devices=20) if "valueFrom" in entry}
    assert referred - {"metadata.uid"} == paths


# -- what a stored pod reads


def container(entries: list[dict[str, Any]] | None) -> Container:
    return msgspec.convert({"name": "main", "env": entries}, Container)


def covered(*containers: tuple[list[dict[str, Any]] | None, tuple[Request, ...]], init: int = 0) -> bool:
    api = [container(entries) for entries, _ in containers]
    asks = tuple(ContainerRequest("main", requests=requests) for _, requests in containers)
    pod = Pod(spec=PodSpec(containers=api[init:], init_containers=api[:init] or None))
    return read_references(pod, VENDORS).cover(PodRequest("u", "ns", "p", asks), VENDORS)


ONE = (Request("NVIDIA", 1),)
TWO = (Request("NVIDIA", 2),)


@pytest.mark.parametrize(
    ("entries", "requests", "expected"),
    [
        pytest.param(env(), ONE, True, id="as injected"),
        pytest.param([*env(), {"name": "OTHER", "value": "x"}], ONE, True, id="beside other variables"),
        pytest.param([{"name": "A", "value": "x"}, *env()], ONE, True, id="after other variables"),
        pytest.param(None, ONE, False, id="none"),
        pytest.param(None, (), True, id="none needed"),
        pytest.param(env(devices=1), TWO, False, id="too few"),
        pytest.param(env(container=1), ONE, False, id="another container's"),
        pytest.param([*env(), {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}], ONE, False, id="overridden later"),
        pytest.param([e for e in env() if e["name"] != "CUDA_DEVICE_SM_LIMIT"], ONE, False, id="one missing"),
        pytest.param(
            [{"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": {"secretKeyRef": {"name": "s"}}}],
            ONE,
            False,
            id="a secret",
        ),
        pytest.param([e | {"value": "x"} for e in env()], ONE, False, id="values beside the references"),
        pytest.param(env(), (*ONE, Request("DCU", 1)), False, id="another vendor's devices too"),
    ],
)
def test_a_pod_uses_the_downward_api_only_where_every_slice_is_a_reference(
    entries: list[dict[str, Any]] | None, requests: tuple[Request, ...], expected: bool
) -> None:
    assert covered((entries, requests)) is expected


def test_init_containers_come_first_and_need_their_references_too() -> None:
    assert covered((env(container=0), ONE), (env(container=1), ONE), init=1)
    assert not covered((None, ONE), (env(container=1), ONE), init=1)


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        (env(), True),
        ([reference("ANY", "c7.core-limit")], True),
        ([UID], False),
        ([reference("ANY", "retry")], False),
        ([{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}], False),
        (None, False),
    ],
)
def test_a_pod_that_waits_for_annotations_is_recognised(entries: list[dict[str, Any]] | None, expected: bool) -> None:
    assert read_references(Pod(spec=PodSpec(init_containers=[container(entries)])), VENDORS).has_any is expected


@pytest.mark.parametrize(("value", "expected"), [("true", False), ("1", False), ("false", True), ("yes", True)])
def test_a_container_without_the_enforcing_library_depends_on_allocate(value: str, expected: bool) -> None:
    assert covered(([*env(), {"name": "CUDA_DISABLE_CONTROL", "value": value}], ONE)) is expected
