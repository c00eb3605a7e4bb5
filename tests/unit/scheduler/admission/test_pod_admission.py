from __future__ import annotations

from typing import Any

import pytest

from tessera.core.ledger.ledger import Ledger
from tessera.core.model.grants import Use
from tessera.scheduler.admission.pod_admission import admit, reserved_keys
from tessera.scheduler.settings import PrivilegedMode, Settings
from tessera.vendors.node_reader import node_facts
from tests.support.admission import (
    GPU,
    PLAIN,
    VISIBLE,
    Document,
    admitted,
    container,
    pod,
    refusal,
    sample,
    surprises,
    vendors,
    verdict,
)
from tests.support.builders import A100_40GB, node

DENY: dict[str, Any] = {"privileged": PrivilegedMode.DENY}
NO_INJECTION: dict[str, Any] = {"injects_downward_api": False}


def limits(made: Document) -> dict[str, Any]:
    found: dict[str, Any] = made["resources"]["limits"]
    return found


# -- documents that are no pods


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        "pod",
        {"spec": None},
        {"spec": {"containers": {}}},
        {"spec": {"containers": [None]}},
        {"spec": {"containers": [{"env": ["x"]}]}},
        {"spec": {"containers": [{"resources": {"limits": {"nvidia.com/gpu": None}}}]}},
        {"metadata": {"annotations": {"a": 1}}, "spec": {"containers": [{}]}},
    ],
)
def test_a_document_that_is_no_pod_is_an_error_of_the_caller(document: Any) -> None:
    answer = verdict(document)
    assert (answer.allowed, answer.code) == (False, 400)
    assert answer.message.startswith("not a valid Pod: ")


def test_a_bottomless_document_is_answered() -> None:
    deep: Any = {}
    for _ in range(5000):
        deep = {"a": deep}
    document = pod(GPU | {"env": [{"name": VISIBLE, "valueFrom": deep}]})
    answer = admit(document, namespace="a", vendors=vendors(), settings=Settings(), ledger=Ledger(vendors()))
    assert answer.code in (200, 400)


@pytest.mark.parametrize("spec", [{}, {"containers": []}, {"containers": None, "initContainers": [GPU]}])
def test_a_pod_without_containers_is_refused(spec: Document) -> None:
    assert refusal({"spec": spec}) == "pod has no containers"


# -- whose pod it is


@pytest.mark.parametrize(
    ("scheduler", "how", "ours"),
    [
        ("", {}, True),
        ("hami-scheduler", {}, True),
        ("default-scheduler", {}, True),
        ("default-scheduler", {"force_overwrite_default_scheduler": False}, False),
        (
            "default-scheduler",
            {"force_overwrite_default_scheduler": False, "scheduler_name": "default-scheduler"},
            True,
        ),
        ("volcano", {}, False),
        ("hami-scheduler", {"scheduler_name": "other"}, False),
        ("x", {"scheduler_name": ""}, False),
    ],
)
def test_only_pods_of_our_scheduler_or_of_nobody_are_completed(scheduler: str, how: dict[str, Any], ours: bool) -> None:
    answer = verdict(pod(GPU, schedulerName=scheduler), **how)
    assert answer.allowed
    if ours:
        assert answer.patch
        assert answer.message == ""
    else:
        assert answer.patch == ()
        assert answer.message == "pod already has different scheduler assigned"


def test_a_user_is_told_that_another_scheduler_slices_nothing() -> None:
    warnings = verdict(pod(GPU, schedulerName="volcano")).warnings
    assert warnings == (
        "nvidia.com/gpu, nvidia.com/gpucores, nvidia.com/gpumem: "
        "this pod gets no slices, because its scheduler is volcano",
    )
    assert verdict(pod(PLAIN, schedulerName="volcano")).warnings == ()


def test_a_pod_with_devices_gets_our_scheduler() -> None:
    assert admitted(pod(GPU))["spec"]["schedulerName"] == "hami-scheduler"
    assert admitted(pod(PLAIN, init=(GPU,)), scheduler_name="mine")["spec"]["schedulerName"] == "mine"


def test_a_pod_with_devices_must_not_choose_its_node() -> None:
    assert refusal(pod(GPU, nodeName="n1")) == "pod has node assigned"
    assert verdict(pod(PLAIN, nodeName="n1")).allowed


def test_without_a_scheduler_name_pods_keep_theirs_and_their_node() -> None:
    stored = admitted(pod(GPU, nodeName="n1"), scheduler_name="")
    assert stored["spec"]["schedulerName"] == "default-scheduler"


# -- pods that ask for nothing


@pytest.mark.parametrize(
    "document", [pod(PLAIN), pod(container(gpu="0")), sample("plain")], ids=["none", "zero", "sample"]
)
def test_a_pod_that_asks_for_nothing_is_left_alone(document: Document) -> None:
    answer = verdict(document)
    assert answer.allowed
    assert (answer.patch, answer.warnings, answer.message) == ((), (), "")


@pytest.mark.parametrize("env", [None, [], [{"name": VISIBLE, "value": "all"}], [{"name": VISIBLE, "valueFrom": {}}]])
def test_cards_are_hidden_from_a_container_that_asks_for_none(env: list[Document] | None) -> None:
    stored = admitted(pod(container(env=env)), nvidia={"overwrite_env": True})
    assert stored["spec"]["containers"][0]["env"] == [{"name": VISIBLE, "value": "none"}]
    assert stored["spec"]["schedulerName"] == "default-scheduler"


# -- mutation


def test_a_patch_holds_only_what_changes() -> None:
    answer = verdict(pod(PLAIN, container(gpu="1")), **NO_INJECTION)
    assert answer.patch == (
        {"op": "add", "path": "/spec/containers/1/resources/limits/nvidia.com~1gpucores", "value": "100"},
        {"op": "replace", "path": "/spec/schedulerName", "value": "hami-scheduler"},
    )
    assert len(answer.warnings) == 1


def test_a_container_that_names_only_memory_gets_a_card() -> None:
    stored = admitted(pod(container(mem="3k")))
    assert limits(stored["spec"]["containers"][0]) == {"nvidia.com/gpumem": "3k", "nvidia.com/gpu": "1"}


def test_annotations_and_runtime_class_are_added_where_vendors_want_them() -> None:
    stored = admitted(pod(container(limits={"metax-tech.com/sgpu": "1"})))
    assert stored["metadata"]["annotations"] == {"metax-tech.com/sgpu-qos-policy": "best-effort"}
    stored = admitted(pod(GPU), nvidia={"runtime_class_name": "nvidia"})
    assert stored["spec"]["runtimeClassName"] == "nvidia"
    stored = admitted(pod(GPU, runtimeClassName="own"), nvidia={"runtime_class_name": "nvidia"})
    assert stored["spec"]["runtimeClassName"] == "own"


def test_a_quantity_that_the_apiserver_writes_in_another_way_is_not_written_again() -> None:
    stored = admitted(pod(ascend("16k")))
    raised = limits(stored["spec"]["containers"][0])["huawei.com/Ascend910B3-memory"]
    paths = [operation["path"] for operation in verdict(pod(ascend(f"{raised}000m"))).patch]
    assert raised == "16384"
    assert paths == ["/spec/schedulerName"]


def ascend(memory: str) -> Document:
    return container(limits={"huawei.com/Ascend910B3": "1", "huawei.com/Ascend910B3-memory": memory})


def test_a_priority_replaces_every_variable_of_its_name() -> None:
    env = [{"name": "CUDA_TASK_PRIORITY", "value": "0"}, {"name": "A"}, {"name": "CUDA_TASK_PRIORITY", "value": "5"}]
    stored = admitted(pod(container(gpu="1", mem="1", priority="1", env=env)), **NO_INJECTION)
    assert stored["spec"]["containers"][0]["env"] == [{"name": "CUDA_TASK_PRIORITY", "value": "1"}, {"name": "A"}]


def test_a_vendors_refusal_is_told_in_its_words() -> None:
    assert refusal(pod(container(gpu="1", percent="101"))) == (
        "invalid nvidia.com/gpumem-percentage value 101 in container main: must be an integer between 0 and 100"
    )


@pytest.mark.parametrize(
    ("limits", "advice"),
    [
        (
            {"gpu": "1", "mem": "2Gi"},
            "nvidia.com/gpumem: 2Gi cannot be used: write a plain number of MiB, such as 2048",
        ),
        ({"gpu": "1", "mem": "-5"}, "nvidia.com/gpumem: -5 cannot be used: write a whole number of MiB"),
        ({"gpu": "1", "mem": "1500m"}, "nvidia.com/gpumem: 1500m cannot be used: write a whole number of MiB"),
        ({"gpu": "0.5"}, "nvidia.com/gpu: 0.5 cannot be used: write a whole number"),
        ({"gpu": 1e300}, "nvidia.com/gpu: 1e+300 cannot be used: write a whole number"),
        ({"dcu": "1.5"}, "hygon.com/dcunum: 1.5 cannot be used: write a whole number"),
    ],
)
def test_a_request_that_cannot_be_written_down_is_refused_with_advice(limits: Document, advice: str) -> None:
    for document in (pod(container(**limits)), pod(GPU, init=(container("i", **limits),))):
        assert advice in refusal(document)


def test_a_refusal_names_the_container() -> None:
    assert refusal(pod(GPU, container("second", gpu="1", mem="2Gi"))).startswith("container second: nvidia.com/gpumem")


def test_a_pod_with_too_many_requests_for_devices_is_refused() -> None:
    assert refusal(pod(*[GPU] * 17)) == "17 requests for devices in one pod; at most 16"
    assert verdict(pod(GPU, *[PLAIN] * 511)).allowed


def test_an_annotation_that_cannot_be_read_is_refused_where_it_matters() -> None:
    annotations = {"hami.io/device-scoring-weights": "slot=much"}
    assert "slot" in refusal(pod(GPU, annotations=annotations))
    assert verdict(pod(PLAIN, annotations=annotations)).allowed


# -- privileged containers

PRIVILEGED = container("root", gpu="1", mem="3k", privileged=True)


def test_a_privileged_container_is_left_alone_and_its_user_told() -> None:
    answer = verdict(pod(PRIVILEGED))
    assert answer.allowed
    assert answer.patch == ()
    assert answer.warnings == (
        "container root is privileged: it is not changed and gets no slice of nvidia.com/gpu, nvidia.com/gpumem",
    )


def test_a_privileged_container_is_not_touched_in_a_pod_that_is_ours() -> None:
    stored = admitted(pod(GPU, PRIVILEGED), nvidia={"overwrite_env": True})
    assert stored["spec"]["schedulerName"] == "hami-scheduler"
    assert stored["spec"]["containers"][1] == PRIVILEGED


def test_a_privileged_container_without_devices_is_nobodys_business() -> None:
    plain = container("root", privileged=True)
    answer = verdict(pod(GPU, plain))
    assert answer.allowed
    assert not any("privileged" in warning for warning in answer.warnings)
    assert verdict(pod(plain), **DENY).allowed


def test_privileged_pods_with_devices_can_be_refused() -> None:
    quiet = container("quiet", privileged=False, gpu="1")
    assert refusal(pod(PRIVILEGED), **DENY) == "container root is privileged"
    assert refusal(pod(GPU, PRIVILEGED, init=(container("first", privileged=True),)), **DENY) == (
        "container first is privileged"
    )
    assert verdict(pod(quiet), **DENY).allowed


# -- what only Tessera may write


@pytest.mark.parametrize("key", [*sorted(reserved_keys(vendors())), "tessera.io/c0.visible-devices", "tessera.io/x"])
def test_reserved_annotations_are_refused(key: str) -> None:
    for document in (pod(PLAIN, annotations={key: ""}), pod(GPU, annotations={key: "x"}, schedulerName="other")):
        assert refusal(document) == f"pod p has annotation {key}: only the scheduler may write this"


@pytest.mark.parametrize("name", ["hami.io/vgpu-node", "tessera.io/fence"])
def test_the_labels_of_the_assigned_node_and_of_the_fence_are_refused(name: str) -> None:
    assert f"label {name}" in refusal(pod(PLAIN, labels={name: "n1"}))


def test_trusted_users_may_write_what_is_reserved() -> None:
    document = pod(PLAIN, annotations={"hami.io/vgpu-node": "n1"})
    assert verdict(document, user="restorer", trusted_users=frozenset({"restorer"})).allowed
    assert not verdict(document, user="tenant", trusted_users=frozenset({"restorer"})).allowed
    assert not verdict(document).allowed


def test_many_reserved_annotations_are_not_all_listed() -> None:
    text = refusal(pod(PLAIN, annotations={f"tessera.io/{n:04}": "" for n in range(2000)}))
    assert text.endswith("tessera.io/0002 and 1997 more: only the scheduler may write this")


def test_every_vendors_allocation_is_reserved() -> None:
    keys = reserved_keys(vendors())
    assert {"hami.io/vgpu-devices-to-allocate", "hami.io/Ascend310P-devices-allocated", "hami.io/bind-phase"} <= keys
    assert "" not in keys


def test_a_pod_without_a_name_is_called_by_what_its_name_begins_with() -> None:
    document = sample("deployment")
    document["metadata"]["annotations"] = {"hami.io/bind-phase": "success"}
    assert refusal(document).startswith("pod d-5cc5f466ff- has annotation hami.io/bind-phase")


# -- quotas

MEMORY_QUOTA = {"nvidia.com/gpumem": 5000}


def test_a_pod_over_its_quota_is_refused_with_the_shortfall() -> None:
    assert refusal(pod(GPU, GPU), quota=MEMORY_QUOTA) == (
        "exceeding resource quota: pod p asks for 6000 MiB of nvidia.com/gpumem, "
        "but limits.nvidia.com/gpumem of namespace team-a leaves 5000 MiB: 1000 MiB too much"
    )
    assert refusal(pod(GPU), quota={"nvidia.com/gpucores": 100}, used=Use(1, 0, 90)) == (
        "exceeding resource quota: pod p asks for 30 of nvidia.com/gpucores, "
        "but limits.nvidia.com/gpucores of namespace team-a leaves 10: 20 too much"
    )


@pytest.mark.parametrize(
    ("document", "used", "fits"),
    [
        pytest.param(pod(GPU), Use(), True, id="within"),
        pytest.param(pod(GPU), Use(1, 2000, 0), True, id="exactly"),
        pytest.param(pod(GPU), Use(1, 2001, 0), False, id="beside what is used"),
        pytest.param(pod(GPU, init=(GPU,)), Use(), True, id="init containers run before"),
        pytest.param(pod(GPU, init=(GPU | {"restartPolicy": "Always"},)), Use(), False, id="sidecars run beside"),
        pytest.param(pod(container(gpu="2", mem="3k")), Use(), False, id="memory is per card"),
        pytest.param(
            pod(container(gpu="1", percent="50", cores="0")), Use(1, 9000, 0), True, id="a share of an unknown card"
        ),
        pytest.param(pod(container(gpu="1", percent="50")), Use(1, 9000, 0), True, id="neither memory nor cores"),
        pytest.param(pod(PLAIN), Use(1, 9000, 0), True, id="no devices"),
        pytest.param(pod(container(dcu="1")), Use(1, 9000, 0), True, id="another vendor's"),
    ],
)
def test_a_quota_counts_what_a_pod_surely_takes(document: Document, used: Use, fits: bool) -> None:
    assert verdict(document, quota=MEMORY_QUOTA, used=used).allowed is fits


def test_a_quota_of_zero_blocks() -> None:
    assert "leaves 0 MiB: 3000 MiB too much" in refusal(pod(GPU), quota={"nvidia.com/gpumem": 0}, used=Use(1, 10, 0))


def test_other_namespaces_quotas_do_not_count() -> None:
    assert verdict(pod(GPU), quota=None).allowed


# -- MIG


def test_a_pod_that_does_not_ask_for_mig_is_warned_where_there_is_nothing_else() -> None:
    makers = vendors()
    mig = node_facts(node("n1").gpu("M", mode="mig", profiles=A100_40GB).api(), makers)
    plain = node_facts(node("n2").gpus(1).api(), makers)
    [warning] = surprises(pod(GPU), nodes=[mig])
    assert "only with the annotation nvidia.com/vgpu-mode: mig" in warning
    assert surprises(pod(GPU), nodes=[mig, plain]) == ()
    assert verdict(pod(GPU, annotations={"nvidia.com/vgpu-mode": "mig"}), nodes=[mig]).warnings == ()
    assert verdict(pod(container()), nodes=[mig]).warnings == ()


# -- recorded requests, and large ones


@pytest.mark.parametrize("name", ["kubectl-gpu", "generateName", "deployment"])
def test_recorded_pods_with_devices_are_completed(name: str) -> None:
    document = sample(name)
    stored = admitted(document)
    paths = {operation["path"] for operation in verdict(document).patch}
    assert paths == {"/spec/schedulerName", "/spec/containers/0/env"}
    assert stored["spec"]["containers"][0]["resources"] == document["spec"]["containers"][0]["resources"]
    assert stored["metadata"] == document["metadata"]


def test_a_huge_pod_is_answered_within_bounds() -> None:
    env = [{"name": f"CUDA_DEVICE_MEMORY_LIMIT_{n}", "value": "0"} for n in range(2000)]
    document = pod(*(container(f"c{n}", gpu="2147483647", mem="1", env=env[:n]) for n in range(16)))
    answer = verdict(document)
    assert answer.allowed
    assert len(answer.warnings) == 15
    assert all(len(warning) < 300 for warning in answer.warnings)


@pytest.mark.parametrize(
    ("annotations", "text"),
    [
        ({"tessera.io/gang": "g"}, 'the gang "g" needs tessera.io/gang-size: the number of its members'),
        ({"tessera.io/gang": "g", "tessera.io/gang-size": "x"}, 'tessera.io/gang-size is "x"; write a whole number'),
    ],
)
def test_a_gang_without_a_size_that_can_be_meant_is_refused_with_what_to_write(
    annotations: dict[str, str], text: str
) -> None:
    document = pod(GPU)
    document["metadata"]["annotations"] = annotations
    answer = verdict(document)
    assert not answer.allowed
    assert text in answer.message


def test_a_pod_may_opt_out_of_eviction() -> None:
    document = pod(GPU)
    document["metadata"]["annotations"] = {"tessera.io/preemptible": "false"}
    assert verdict(document).allowed


def test_a_member_of_a_gang_is_admitted_and_a_size_without_a_gang_gets_a_warning() -> None:
    document = pod(GPU)
    document["metadata"]["annotations"] = {"tessera.io/gang": "g", "tessera.io/gang-size": "2"}
    assert verdict(document).allowed
    document["metadata"]["annotations"] = {"tessera.io/gang-size": "2"}
    answer = verdict(document)
    assert answer.allowed
    assert "tessera.io/gang-size has no effect without tessera.io/gang: NAME" in answer.warnings
