"""The variables of slices, and those that a tenant must not set, however they arrive."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tessera.core.ledger.ledger import Ledger
from tessera.scheduler.admission.pod_admission import admit
from tessera.scheduler.settings import Settings
from tessera.vendors.ascend import Ascend
from tessera.vendors.base import Switches
from tessera.vendors.registry import build_vendors
from tests.support.admission import (
    GPU,
    PLAIN,
    VISIBLE,
    Document,
    admitted,
    container,
    patched,
    pod,
    refusal,
    surprises,
    variables,
    vendors,
    verdict,
)

NO_INJECTION: dict[str, Any] = {"injects_downward_api": False}


# -- identity


def test_every_container_with_a_slice_reads_it_from_its_own_pod() -> None:
    sidecar = container("side", gpu="1", mem="1000") | {"restartPolicy": "Always"}
    stored = admitted(pod(PLAIN, container(gpu="2", mem="3k"), init=(sidecar,)))
    (first,), (plain, last) = stored["spec"]["initContainers"], stored["spec"]["containers"]
    assert variables(first)[VISIBLE] == "metadata.annotations['tessera.io/c0.visible-devices']"
    assert plain == PLAIN
    assert list(variables(last)) == [
        "TESSERA_POD_UID",
        VISIBLE,
        "CUDA_DEVICE_MEMORY_LIMIT_0",
        "CUDA_DEVICE_MEMORY_LIMIT_1",
        "CUDA_DEVICE_SM_LIMIT",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
        "CUDA_DEVICE_MEMORY_SHARED_CACHE",
    ]
    assert variables(last)[VISIBLE] == "metadata.annotations['tessera.io/c2.visible-devices']"
    assert variables(last)["CUDA_DEVICE_MEMORY_SHARED_CACHE"] == "/usr/local/vgpu/$(TESSERA_POD_UID)_main.cache"


OWN = {"name": "OWN", "value": "$(NVIDIA_VISIBLE_DEVICES)"}


@pytest.mark.parametrize(
    "entry",
    [
        {"name": VISIBLE, "value": "all"},
        {"name": VISIBLE, "valueFrom": {"configMapKeyRef": {"name": "m", "key": "k"}}},
        {"name": "CUDA_DEVICE_MEMORY_LIMIT_0", "value": "0"},
        {"name": "CUDA_DEVICE_MEMORY_LIMIT", "value": "0"},
        {"name": "CUDA_DEVICE_MEMORY_LIMIT_7", "value": "80g"},
        {"name": "CUDA_DEVICE_SM_LIMIT_0", "value": "100"},
        {"name": "CUDA_DEVICE_SM_LIMIT", "value": "100"},
        {"name": "CUDA_DEVICE_MEMORY_SHARED_CACHE", "value": "/tmp/mine"},
        {"name": "TESSERA_POD_UID", "value": "other"},
    ],
)
def test_what_a_tenant_set_instead_does_not_count(entry: Document) -> None:
    clean = admitted(pod(GPU | {"env": [OWN]}))
    for env in ([OWN, entry], [entry, OWN], [entry, OWN, entry]):
        document = pod(GPU | {"env": env})
        assert admitted(document) == clean
        assert surprises(document) == (
            f"container main: {', '.join([entry['name']] * env.count(entry))}: "
            "set by the granted slice; the pod's own values are replaced",
        )


def test_the_webhook_does_not_warn_of_its_own_variables() -> None:
    stored = admitted(pod(GPU))
    moved = pod(container("injected"), *stored["spec"]["containers"])
    assert surprises(moved) == ()
    path = variables(admitted(moved)["spec"]["containers"][1])[VISIBLE]
    assert path == "metadata.annotations['tessera.io/c1.visible-devices']"


@pytest.mark.parametrize(
    "entry",
    [
        {"name": "CUDA_DISABLE_CONTROL", "value": "true"},
        {"name": "CUDA_DISABLE_CONTROL", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "CUDA_REDIRECT", "value": "/tmp/mine.so"},
        {"name": "GPU_CORE_UTILIZATION_POLICY", "value": "disable"},
        {"name": "GPU_CORE_UTILIZATION_POLICY", "value": "$(ELSEWHERE)"},
        {"name": "GPU_CORE_UTILIZATION_POLICY", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
    ],
)
def test_limits_on_a_shared_card_cannot_be_switched_off(entry: Document) -> None:
    document = pod(GPU | {"env": [entry]})
    assert admitted(document) == admitted(pod(GPU))
    assert surprises(document) == (
        f"container main: {entry['name']} removed: the limits on a shared card are not optional",
    )
    allowed = admitted(document, allow_disable_control=True)
    assert allowed["spec"]["containers"][0]["env"][-1] == entry
    alone = admitted(pod(container(gpu="1", env=[entry])))
    assert alone["spec"]["containers"][0]["env"][-1] == entry


@pytest.mark.parametrize("value", ["force", "default"])
def test_stricter_limits_are_a_tenants_own_choice(value: str) -> None:
    entry = {"name": "GPU_CORE_UTILIZATION_POLICY", "value": value}
    assert admitted(pod(GPU | {"env": [entry]}))["spec"]["containers"][0]["env"][-1] == entry


def test_an_administrators_policy_is_not_a_tenants() -> None:
    stored = admitted(pod(GPU), nvidia={"gpu_core_policy": "disable"})
    assert stored["spec"]["containers"][0]["env"][-1] == {"name": "GPU_CORE_UTILIZATION_POLICY", "value": "disable"}


@pytest.mark.parametrize("mode", ["mig", "hami-core,mig"])
def test_a_pod_that_accepts_mig_waits_for_allocate_to_name_its_instance(mode: str) -> None:
    env = [{"name": VISIBLE, "value": "all"}, OWN]
    stored = admitted(pod(GPU | {"env": env}, annotations={"nvidia.com/vgpu-mode": mode}))
    assert stored["spec"]["containers"][0]["env"] == [OWN]
    stored = admitted(pod(GPU, annotations={"nvidia.com/vgpu-mode": "hami-core"}))
    assert VISIBLE in variables(stored["spec"]["containers"][0])


def test_slices_of_other_vendors_are_left_to_allocate() -> None:
    document = pod(container(dcu="1", env=[OWN]))
    assert admitted(document)["spec"]["containers"][0]["env"] == [OWN]


def test_without_injection_allocate_alone_sets_what_is_protected() -> None:
    env = [{"name": "CUDA_DISABLE_CONTROL", "value": "true"}, {"name": VISIBLE, "value": "all"}, OWN]
    document = pod(GPU | {"env": env, "envFrom": [{"prefix": "NVIDIA_"}]})
    assert admitted(document, **NO_INJECTION)["spec"]["containers"][0]["env"] == [OWN]


def test_the_region_lies_under_the_configured_path() -> None:
    stored = admitted(pod(GPU), hook_path="/opt/hami")
    path = variables(stored["spec"]["containers"][0])["CUDA_DEVICE_MEMORY_SHARED_CACHE"]
    assert path == "/opt/hami/vgpu/$(TESSERA_POD_UID)_main.cache"


# -- protected variables, however they arrive

CONFIG_MAP: Document = {"configMapRef": {"name": "m"}}
PREFIXED: Document = {"prefix": "APP_", "secretRef": {"name": "s"}}
SHIELDS = ["CUDA_DISABLE_CONTROL", "CUDA_REDIRECT", "GPU_CORE_UTILIZATION_POLICY"]


@pytest.mark.parametrize("scheduler", ["default-scheduler", "hami-scheduler", "volcano"])
@pytest.mark.parametrize(
    ("limits", "env", "value"),
    [
        ({}, [], "none"),
        ({"nvidia.com/gpu": "0"}, [{"name": VISIBLE, "value": "all"}], "none"),
        ({}, [{"name": VISIBLE, "value": "void"}], "void"),
        ({"nvidia.com/mig-1g.10gb": "1"}, [], None),
        ({"nvidia.com/mig-1g.10gb": "1"}, [{"name": VISIBLE, "value": "all"}], None),
    ],
)
def test_cards_are_hidden_whatever_the_scheduler(
    scheduler: str, limits: Document, env: list[Document], value: str | None
) -> None:
    document = pod(container(limits=limits, env=env), schedulerName=scheduler)
    stored = admitted(document, nvidia={"overwrite_env": True})
    assert variables(stored["spec"]["containers"][0]).get(VISIBLE) == value


def test_chips_are_hidden_from_containers_that_ask_for_none() -> None:
    chips = build_vendors(None, Switches(ascend=True))["Ascend910B3"]
    assert isinstance(chips, Ascend)
    hiding = {"Ascend910B3": Ascend(msgspec.structs.replace(chips.chip, overwrite_env=True))}
    asked = container(limits={"huawei.com/Ascend910B3": "1"}, env=[{"name": "ASCEND_VISIBLE_DEVICES", "value": "0"}])
    document = pod(PLAIN, asked)
    answer = admit(document, namespace="a", vendors=hiding, settings=Settings(), ledger=Ledger(vendors()))
    plain, chip = patched(document, answer.patch)["spec"]["containers"]
    assert variables(plain) == {"ASCEND_VISIBLE_DEVICES": ""}
    assert variables(chip) == {}


@pytest.mark.parametrize(
    "entry",
    [
        {"name": VISIBLE, "value": "all"},
        {"name": VISIBLE, "valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['mine']"}}},
        {
            "name": VISIBLE,
            "valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['tessera.io/c1.visible-devices']"}},
        },
    ],
)
@pytest.mark.parametrize("scheduler", ["default-scheduler", "volcano"])
def test_a_container_without_a_slice_cannot_name_cards(entry: Document, scheduler: str) -> None:
    document = pod(container("plain", env=[entry, OWN]), GPU, schedulerName=scheduler)
    plain = admitted(document)["spec"]["containers"][0]
    assert plain["env"] == [OWN, {"name": VISIBLE, "value": "none"}]
    assert f"container plain: {VISIBLE} removed: only a granted slice sets it" in verdict(document).warnings


def test_a_container_of_another_scheduler_cannot_name_its_cards_itself() -> None:
    env = [{"name": VISIBLE, "value": "all"}, {"name": "CUDA_DEVICE_MEMORY_LIMIT_0", "value": "9g"}, OWN]
    stored = admitted(pod(GPU | {"env": env}, schedulerName="volcano"))
    assert stored["spec"]["containers"][0]["env"] == [OWN]


@pytest.mark.parametrize("source", [CONFIG_MAP, {"prefix": "CUDA_"}, {"prefix": "CUDA_DEVICE_SM_LIMIT_"}])
def test_what_a_config_map_may_bring_is_overridden(source: Document) -> None:
    asked = container(gpu="2", mem="3k") | {"envFrom": [PREFIXED, source]}
    found = variables(admitted(pod(asked))["spec"]["containers"][0])
    assert {name: found[name] for name in SHIELDS} == {
        "CUDA_DISABLE_CONTROL": "false",
        "CUDA_REDIRECT": "/usr/local/vgpu/libvgpu.so",
        "GPU_CORE_UTILIZATION_POLICY": "default",
    }
    for index in range(2):
        assert found[f"CUDA_DEVICE_SM_LIMIT_{index}"] == found["CUDA_DEVICE_SM_LIMIT"]


def test_only_an_env_from_that_may_bring_protected_variables_is_overridden() -> None:
    assert (
        admitted(pod(GPU | {"envFrom": [PREFIXED]}))["spec"]["containers"][0]["env"]
        == (admitted(pod(GPU))["spec"]["containers"][0]["env"])
    )
    alone = admitted(pod(container(gpu="1") | {"envFrom": [CONFIG_MAP]}))["spec"]["containers"][0]
    assert not {*SHIELDS} & {*variables(alone)}
    loose = admitted(pod(GPU | {"envFrom": [CONFIG_MAP]}), allow_disable_control=True)
    assert not {*SHIELDS} & {*variables(loose["spec"]["containers"][0])}


def test_an_override_keeps_what_administrator_and_tenant_chose() -> None:
    strict = container(gpu="1", mem="1", env=[{"name": "GPU_CORE_UTILIZATION_POLICY", "value": "force"}])
    stored = admitted(pod(strict | {"envFrom": [CONFIG_MAP]}))
    assert variables(stored["spec"]["containers"][0])["GPU_CORE_UTILIZATION_POLICY"] == "force"
    for nvidia in ({"gpu_core_policy": "disable"}, {"disable_core_limit": True}):
        stored = admitted(pod(GPU | {"envFrom": [CONFIG_MAP]}), nvidia=nvidia)
        assert variables(stored["spec"]["containers"][0])["GPU_CORE_UTILIZATION_POLICY"] == "disable"
    stored = admitted(pod(GPU | {"envFrom": [CONFIG_MAP]}), hook_path="/opt/hami/")
    assert variables(stored["spec"]["containers"][0])["CUDA_REDIRECT"] == "/opt/hami/vgpu/libvgpu.so"


@pytest.mark.parametrize(
    "document",
    [
        pod(GPU | {"envFrom": [CONFIG_MAP]}, annotations={"nvidia.com/vgpu-mode": "mig"}),
        pod(GPU, container("static", limits={"nvidia.com/mig-1g.10gb": "1"}) | {"envFrom": [CONFIG_MAP]}),
        pod(container(limits={"huawei.com/Ascend910B3": "1"}) | {"envFrom": [{"prefix": "ASCEND_"}]}),
    ],
    ids=["created instance", "existing instance", "another vendor"],
)
def test_an_env_from_is_refused_where_only_allocate_can_name_the_devices(document: Document) -> None:
    assert "give envFrom a prefix, or list the variables under env" in refusal(document)


@pytest.mark.parametrize("broken", [None, {}, "x", [None], [{"prefix": 1}]])
def test_an_env_from_that_cannot_be_read_is_answered(broken: Any) -> None:
    assert verdict(pod(GPU | {"envFrom": broken})).allowed
