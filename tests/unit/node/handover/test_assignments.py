from __future__ import annotations

from typing import Any

import pytest

from tessera.node.handover.assignments import ALLOCATED, TO_ALLOCATE, read_pod
from tessera.wire import keys
from tests.support.handover_node import NODE, bound, claims, view

A = "a/3000/50"
VISIBLE = "NVIDIA_VISIBLE_DEVICES"
OWN = {"fieldRef": {"fieldPath": "metadata.annotations['tessera.io/c0.visible-devices']"}}
OTHER = {"fieldRef": {"fieldPath": "metadata.annotations['tessera.io/c1.visible-devices']"}}
RESERVED = (
    '{"containerIndex":0,"deviceIndex":%d,"gpuUUID":"GPU-a","profile":"1g.18gb","placement":{"start":%d,"size":1}}'
)


@pytest.mark.parametrize(
    ("env", "uses"),
    [
        ([{"name": VISIBLE, "valueFrom": OWN}], True),
        ([{"name": VISIBLE, "value": "all"}, {"name": VISIBLE, "valueFrom": OWN}], True),
        ([{"name": VISIBLE, "valueFrom": OWN}, {"name": VISIBLE, "value": "all"}], False),
        ([{"name": VISIBLE, "valueFrom": OWN, "value": "all"}], False),
        ([{"name": VISIBLE, "valueFrom": OTHER}], False),
        ([{"name": VISIBLE, "valueFrom": {"configMapKeyRef": {}}}], False),
        ([{"name": "OTHER", "valueFrom": OWN}], False),
        ([{"name": VISIBLE, "valueFrom": OWN}, {"name": "CUDA_DISABLE_CONTROL", "value": "true"}], False),
        ([{"name": VISIBLE, "valueFrom": OWN}, {"name": "CUDA_DISABLE_CONTROL", "value": "yes"}], True),
        ([], False),
    ],
)
def test_a_container_uses_the_downward_api_if_its_last_variable_refers_to_its_own_annotation(
    env: list[dict[str, Any]], uses: bool
) -> None:
    assert claims(bound("p", A, env={0: env}))[0].uses_downward_api is uses


@pytest.mark.parametrize(
    ("value", "uncontrolled"),
    [("1", True), ("t", True), ("True", True), ("TRUE", True), ("0", False), ("yes", False), ("", False)],
)
def test_only_a_literal_true_asks_for_no_library(value: str, uncontrolled: bool) -> None:
    pod = bound("p", A, env={0: [{"name": "CUDA_DISABLE_CONTROL", "value": value}]})
    assert claims(pod)[0].uncontrolled is uncontrolled


def test_a_reference_is_no_literal() -> None:
    entry = {"name": "CUDA_DISABLE_CONTROL", "value": "true", "valueFrom": OWN}
    assert not claims(bound("p", A, env={0: [entry]}))[0].uncontrolled


def test_reservations_belong_to_their_container_in_order_of_devices() -> None:
    text = f"[{RESERVED % (1, 4)},{RESERVED % (0, 0)}]"
    pod = bound("p", "a/1/1 a/1/1", A, annotations={keys.MIG_ALLOCATIONS: text})
    first, second = claims(pod)
    assert [each.slot.placement.start for each in first.mig] == [0, 4]
    assert second.mig == ()


@pytest.mark.parametrize(
    ("annotations", "problem"),
    [
        ({keys.MIG_ALLOCATIONS: f"[{RESERVED % (0, 0)},{RESERVED % (1, 1)}]"}, "other MIG reservations"),
        ({keys.MIG_ALLOCATIONS: f"[{RESERVED % (0, 0)},{RESERVED % (0, 1)}]"}, "duplicate MIG allocation"),
        ({keys.MIG_ALLOCATIONS: f'[{(RESERVED % (0, 0))[:-1]},"migUUID":"m"}}]'}, "partial runtime identity"),
        ({TO_ALLOCATE: "a,b,c:;"}, "missing fields"),
        ({TO_ALLOCATE: None}, "device request not found"),
        ({TO_ALLOCATE: ";GPU-a,NVIDIA,1,1:;"}, "beyond the pod's 1 containers"),
    ],
)
def test_what_cannot_be_read_is_a_problem_of_that_pod(annotations: dict[str, str | None], problem: str) -> None:
    pod = view(bound("p", A, annotations=annotations))
    assert problem in pod.problem
    assert pod.problem
    assert pod.left == ()


def test_entries_that_plugins_of_hami_append_are_dropped() -> None:
    pod = view(bound("p", A, annotations={TO_ALLOCATE: "GPU-a,NVIDIA,1,1:;;;;"}))
    assert len(pod.entries) == 1
    assert pod.in_handover
    assert not pod.problem


@pytest.mark.parametrize(
    ("changes", "waits"),
    [
        ({}, True),
        ({"deleted": "2026-01-01T00:00:00Z"}, True),
        ({"status": "Failed"}, False),
        ({"status": "Succeeded"}, False),
        ({"phase": "success"}, False),
        ({"phase": "failed"}, False),
        ({"annotations": {keys.ASSIGNED_NODE: "elsewhere"}}, False),
    ],
)
def test_a_pod_waits_from_its_binding_to_the_end_of_its_handover(changes: dict[str, Any], waits: bool) -> None:
    assert view(bound("p", A, **changes)).in_handover is waits


def test_pods_are_in_order_of_binding_and_those_without_a_time_come_last() -> None:
    pods = [
        bound("b", A),
        bound("a", A),
        bound("no-time", A, annotations={keys.BIND_TIME: None}),
        bound("bad-time", A, annotations={keys.BIND_TIME: "soon"}),
        bound("z", A, at=-5),
        bound("y", A, annotations={keys.ASSIGNED_TIME: "1"}),
    ]
    ordered = sorted((view(pod) for pod in pods), key=lambda pod: pod.order)
    assert [pod.key.name for pod in ordered] == ["z", "y", "a", "b", "bad-time", "no-time"]


@pytest.mark.parametrize(
    ("text", "left"), [("x,AMD,1,1:;", True), (";;", False), ("x,AMD:;", True)], ids=["some", "none", "unreadable"]
)
def test_what_another_vendor_has_left_is_seen(text: str, left: bool) -> None:
    assert view(bound("p", A, annotations={"hami.io/amd-devices-to-allocate": text})).others_left is left


def test_a_pod_of_another_vendor_alone_is_not_ours() -> None:
    pod = bound("p", A, annotations={TO_ALLOCATE: None, ALLOCATED: None, "hami.io/amd-devices-to-allocate": ";"})
    assert not view(pod).ours
    assert not view(pod).in_handover


def test_a_pod_without_devices_is_nothing_to_us() -> None:
    pod = bound("p", A, annotations={TO_ALLOCATE: None, ALLOCATED: None, keys.ASSIGNED_NODE: None})
    assert read_pod(pod, NODE) is None


def test_kubelet_never_shows_init_containers_that_end() -> None:
    assert view(bound("p", A, A, A, inits=2, sidecars=1)).unlisted == {1}


def test_a_container_is_found_by_name_and_its_claim_by_position() -> None:
    pod = view(bound("p", "", A, annotations={TO_ALLOCATE: ";;"}))
    assert (pod.position("c1"), pod.position("other")) == (1, None)
    assert pod.assignment(0) is None
    found = pod.assignment(1)
    assert found is not None
    assert found.container == "c1"
