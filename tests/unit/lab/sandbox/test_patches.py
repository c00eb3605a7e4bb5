from __future__ import annotations

from typing import Any

import pytest

from tessera_lab.sandbox.api.errors import StatusError
from tessera_lab.sandbox.api.kinds import MUTATING_WEBHOOKS, NODES, PODS, SERVICE_ACCOUNTS, Json, ResourceKind
from tessera_lab.sandbox.api.patches import MAX_OPERATIONS, apply_json_patch, merge, merge_strategic


@pytest.mark.parametrize(
    ("target", "patch", "result"),
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": "foo"}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
        ({}, ["c"], ["c"]),
        ([1, 2], {"a": "b"}, {"a": "b"}),
    ],
)
def test_a_merge_patch_does_what_the_rfc_says(target: Any, patch: Any, result: Any) -> None:
    assert merge(target, patch) == result


@pytest.mark.parametrize(
    "operation",
    [
        {"op": "test", "path": "/a", "value": 2},
        {"op": "remove", "path": "/b"},
        {"op": "remove", "path": ""},
        {"op": "replace", "path": "/b", "value": 1},
        {"op": "add", "path": "/b/c", "value": 1},
        {"op": "add", "path": "/a/c", "value": 1},
        {"op": "add", "path": "/l/7", "value": 1},
        {"op": "add", "path": "/l/-1", "value": 1},
        {"op": "add", "path": "/l/01", "value": 1},
        {"op": "replace", "path": "/l/-", "value": 1},
        {"op": "add", "path": "b", "value": 1},
        {"op": "add", "path": "/~2", "value": 1},
        {"op": "move", "from": "/m", "path": "/m/n"},
        {"op": "move", "path": "/m"},
        {"op": "add", "path": "/b"},
        {"op": "explode", "path": "/b"},
        {"op": "add", "path": 7, "value": 1},
        "add",
    ],
)
def test_a_json_patch_that_does_not_apply_is_refused_as_kube_apiserver_refuses_it(operation: Any) -> None:
    with pytest.raises(StatusError, match="rejected our request due to an error in our request: ") as refusal:
        apply_json_patch({"a": 1, "l": [1], "m": {}}, [operation])
    assert (refusal.value.code, refusal.value.reason) == (422, "Invalid")


def test_a_json_patch_is_a_list_of_bounded_length() -> None:
    with pytest.raises(StatusError, match="list of operations"):
        apply_json_patch({}, {"op": "add"})
    with pytest.raises(StatusError, match="at most"):
        apply_json_patch({}, [{}] * (MAX_OPERATIONS + 1))


def containers(*found: Json) -> Json:
    return {"spec": {"containers": list(found)}}


def env(*names: str) -> list[Json]:
    return [{"name": name} for name in names]


@pytest.mark.parametrize(
    ("kind", "target", "patch", "result"),
    [
        (PODS, containers({"name": "a"}), containers({"name": "b"}), containers({"name": "a"}, {"name": "b"})),
        (
            PODS,
            containers({"name": "a", "env": env("x")}),
            containers({"name": "a", "env": [{"name": "x", "value": "1"}, {"name": "y"}]}),
            containers({"name": "a", "env": [{"name": "x", "value": "1"}, {"name": "y"}]}),
        ),
        (
            PODS,
            containers({"name": "a", "ports": [{"containerPort": 1}, {"containerPort": 2}]}),
            containers({"name": "a", "ports": [{"$patch": "delete", "containerPort": 1}]}),
            containers({"name": "a", "ports": [{"containerPort": 2}]}),
        ),
        (
            PODS,
            containers({"name": "a", "env": env("x")}),
            containers({"name": "a", "env": [{"name": "x", "$patch": "delete"}, {"name": "x", "value": "2"}]}),
            containers({"name": "a", "env": [{"name": "x", "value": "2"}]}),
        ),
        (PODS, containers({"name": "a"}), containers({"name": "z", "$patch": "delete"}), containers({"name": "a"})),
        (
            PODS,
            {"spec": {"tolerations": [{"key": "a"}]}},
            {"spec": {"tolerations": [{"key": "b"}]}},
            {"spec": {"tolerations": [{"key": "b"}]}},
        ),
        (
            PODS,
            {"metadata": {"labels": {"a": "1", "b": "2"}}},
            {"metadata": {"labels": {"a": None}}},
            {"metadata": {"labels": {"b": "2"}}},
        ),
        (
            PODS,
            {"spec": {"volumes": [{"name": "v", "emptyDir": {}}]}},
            {"spec": {"volumes": [{"name": "v", "$retainKeys": ["name", "secret"], "secret": {}}]}},
            {"spec": {"volumes": [{"name": "v", "secret": {}}]}},
        ),
        (
            PODS,
            containers({"name": "a"}, {"name": "sidecar"}, {"name": "b"}),
            {"spec": {"$setElementOrder/containers": [{"name": "b"}, {"name": "a"}]}},
            containers({"name": "sidecar"}, {"name": "b"}, {"name": "a"}),
        ),
        (
            PODS,
            {"metadata": {"finalizers": ["a", "b", "c"]}},
            {"metadata": {"$setElementOrder/finalizers": ["c", "a"]}},
            {"metadata": {"finalizers": ["b", "c", "a"]}},
        ),
        (
            NODES,
            {"status": {"conditions": [{"type": "Ready", "status": "False"}, {"type": "Disk"}]}},
            {"status": {"conditions": [{"type": "Ready", "status": "True"}]}},
            {"status": {"conditions": [{"type": "Ready", "status": "True"}, {"type": "Disk"}]}},
        ),
        (NODES, {"spec": {"taints": [1]}}, {"spec": {"taints": [2]}}, {"spec": {"taints": [2]}}),
        (SERVICE_ACCOUNTS, {}, {"secrets": [{"name": "s"}]}, {"secrets": [{"name": "s"}]}),
        (
            MUTATING_WEBHOOKS,
            {"webhooks": [{"name": "a"}]},
            {"webhooks": [{"name": "a", "x": 1}]},
            {"webhooks": [{"name": "a", "x": 1}]},
        ),
    ],
)
def test_a_strategic_patch_knows_the_lists(kind: ResourceKind, target: Json, patch: Json, result: Json) -> None:
    assert merge_strategic(kind, target, patch) == result


@pytest.mark.parametrize(
    "patch",
    [
        [],
        containers({"image": "x"}),
        {"spec": {"containers": ["x"]}},
    ],
)
def test_a_strategic_patch_that_makes_no_sense_is_refused(patch: Any) -> None:
    with pytest.raises(StatusError) as refusal:
        merge_strategic(PODS, {}, patch)
    assert refusal.value.code in (400, 500)
