from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from tessera.wire.errors import WireError
from tessera.wire.objects import LabelRequirement, Node, Pod, ResourceQuota, Workload, decode_object

SAMPLES = Path(__file__).parents[2] / "samples"


def recorded(name: str, *path: str | int) -> bytes:
    value = msgspec.json.decode((SAMPLES / name).read_bytes())
    for key in path:
        value = value[key]
    return msgspec.json.encode(value)


def test_a_recorded_pod_keeps_what_is_read_of_it() -> None:
    pod = decode_object(recorded("admission/deployment.request.json", "request", "object"), Pod)
    assert (pod.metadata.name, pod.metadata.uid) == ("", "")
    assert pod.metadata.generate_name
    assert pod.spec.scheduler_name == "default-scheduler"
    assert pod.init_containers == []


def test_a_recorded_node_keeps_what_is_read_of_it() -> None:
    node = decode_object(recorded("extender/nodes_filter-0.request.json", "Nodes", "items", 0), Node)
    assert (node.name, node.labels["gpu"]) == ("fake-0", "on")
    assert node.capacity == node.allocatable
    assert node.capacity["nvidia.com/gpu"] == "80"
    assert node.annotations == {"node.alpha.kubernetes.io/ttl": "0"}


def test_what_an_object_does_not_have_is_empty() -> None:
    pod, node = decode_object("{}", Pod), decode_object(b"{}", Node)
    assert (pod.annotations, pod.init_containers, pod.app_containers) == ({}, [], [])
    assert (node.name, node.annotations, node.labels, node.capacity, node.allocatable) == ("", {}, {}, {}, {})


@pytest.mark.parametrize("quantity", ["3k", 3000, 1.5])
def test_a_quantity_is_kept_as_it_was_written(quantity: Any) -> None:
    quota = decode_object(msgspec.json.encode({"spec": {"hard": {"limits.nvidia.com/gpu": quantity}}}), ResourceQuota)
    assert quota.spec.hard == {"limits.nvidia.com/gpu": quantity}


@pytest.mark.parametrize(
    "text",
    ["", "[]", "null", '{"metadata":5}', b'{"metadata":{"name":"\xff"}}', '{"spec":' + "[" * 100_000, "\ud800"],
)
def test_what_is_not_such_an_object_is_refused(text: bytes | str) -> None:
    with pytest.raises(WireError, match=r"^not a valid Pod: "):
        decode_object(text, Pod)


@pytest.mark.parametrize(
    ("references", "workload"),
    [
        ("null", Workload("shop")),
        ('[{"kind":"Node","name":"n1"}]', Workload("shop")),
        (
            '[{"kind":"Node","name":"n1"},{"kind":"Job","name":"train","controller":true}]',
            Workload("shop", "Job", "train"),
        ),
        ('[{"kind":"ReplicaSet","name":"web-6d4f","controller":true}]', Workload("shop", "Deployment", "web")),
        ('[{"kind":"ReplicaSet","name":"web-9999","controller":true}]', Workload("shop", "ReplicaSet", "web-9999")),
    ],
)
def test_a_pod_belongs_to_its_controller_and_a_replica_set_to_its_deployment(
    references: str, workload: Workload
) -> None:
    labels = '{"pod-template-hash":"6d4f"}'
    text = f'{{"metadata":{{"namespace":"shop","labels":{labels},"ownerReferences":{references}}}}}'
    assert decode_object(text, Pod).workload == workload


def test_a_replica_set_without_the_label_is_its_own() -> None:
    text = '{"metadata":{"ownerReferences":[{"kind":"ReplicaSet","name":"web-","controller":true}]}}'
    assert decode_object(text, Pod).workload == Workload("", "ReplicaSet", "web-")


@pytest.mark.parametrize(
    ("operator", "values", "label", "matches"),
    [
        ("In", {"a", "b"}, "a", True),
        ("In", {"a"}, None, False),
        ("NotIn", {"a"}, "a", False),
        ("NotIn", {"a"}, None, True),
        ("Exists", set(), "", True),
        ("Exists", set(), None, False),
        ("DoesNotExist", set(), None, True),
        ("DoesNotExist", set(), "a", False),
        ("Gt", {"6"}, "7", True),
        ("Gt", {"7"}, "7", False),
        ("Lt", {"7"}, "6", True),
        ("Lt", {"7"}, "seven", False),
        ("Lt", {"seven"}, "7", False),
        ("Lt", set(), "7", False),
        ("Gt", {"6"}, None, False),
        ("Near", {"a"}, "a", False),
    ],
)
def test_a_label_matches(operator: str, values: set[str], label: str | None, matches: bool) -> None:
    labels = {} if label is None else {"key": label}
    assert LabelRequirement("key", operator, frozenset(values)).matches(labels) is matches
