"""kube-scheduler's own rules about nodes, and its sentence for a pod that fits nowhere."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tessera.scheduler.node_filters import SELECTOR, TAINTS, UNSCHEDULABLE
from tessera_lab.sandbox.scheduling.attempts import Attempts, fit_error
from tessera_lab.sandbox.scheduling.fit import TOO_MANY_PODS, asks_for, node_capacity, node_signature, pod_needs

MANAGED = frozenset({"nvidia.com/gpu"})
GPU_TAINT = {"key": "gpu", "value": "a100", "effect": "NoSchedule"}


def node(name: str = "n", *, cpu: str = "4", pods: str = "2", **more: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "labels": more.pop("labels", {}), "annotations": more.pop("annotations", {})},
        "spec": more,
        "status": {"allocatable": {"cpu": cpu, "memory": "1Gi", "pods": pods, "example.com/fpga": "1"}},
    }


def pod(uid: str = "u", *, node: str = "", requests: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    container = {"name": "c", "resources": {"requests": requests or {}}}
    where = {"nodeName": node} if node else {}
    return {
        "metadata": {"name": uid, "namespace": "default", "uid": uid, "resourceVersion": "1"},
        "spec": {"schedulerName": "s", "containers": [container], **where, **spec},
        "status": {"phase": "Pending"},
    }


def affine(*expressions: dict[str, Any], fields: tuple[dict[str, Any], ...] = ()) -> dict[str, Any]:
    term = {"matchExpressions": list(expressions), "matchFields": list(fields)}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}


@pytest.mark.parametrize(
    ("of_node", "of_pod", "reasons"),
    [
        ({}, {}, []),
        ({"unschedulable": True}, {}, [UNSCHEDULABLE]),
        (
            {"unschedulable": True},
            {"tolerations": [{"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}]},
            [],
        ),
        ({"taints": [GPU_TAINT]}, {}, [TAINTS]),
        ({"taints": [{**GPU_TAINT, "effect": "PreferNoSchedule"}]}, {}, []),
        ({"taints": [{**GPU_TAINT, "effect": "NoExecute"}]}, {}, [TAINTS]),
        ({"taints": [GPU_TAINT]}, {"tolerations": [{"operator": "Exists"}]}, []),
        ({"taints": [GPU_TAINT]}, {"tolerations": [{"key": "gpu", "operator": "Exists"}]}, []),
        ({"taints": [GPU_TAINT]}, {"tolerations": [{"key": "gpu", "value": "a100", "effect": "NoSchedule"}]}, []),
        ({"taints": [GPU_TAINT]}, {"tolerations": [{"key": "gpu", "value": "t4"}]}, [TAINTS]),
        ({"taints": [GPU_TAINT]}, {"tolerations": [{"key": "gpu", "value": "a100", "effect": "NoExecute"}]}, [TAINTS]),
        ({"taints": [GPU_TAINT]}, {"tolerations": [{"key": "other", "operator": "Exists"}]}, [TAINTS]),
        ({"labels": {"zone": "a"}}, {"nodeSelector": {"zone": "a"}}, []),
        ({"labels": {"zone": "a"}}, {"nodeSelector": {"zone": "b"}}, [SELECTOR]),
        (
            {"labels": {"zone": "a"}},
            {"affinity": affine({"key": "zone", "operator": "In", "values": ["a", "b"]})},
            [],
        ),
        ({}, {"affinity": affine({"key": "zone", "operator": "Exists"})}, [SELECTOR]),
        ({"labels": {"gen": "7"}}, {"affinity": affine({"key": "gen", "operator": "Gt", "values": ["6"]})}, []),
        ({}, {"affinity": affine(fields=({"key": "metadata.name", "operator": "In", "values": ["n"]},))}, []),
        ({}, {"affinity": affine(fields=({"key": "metadata.name", "operator": "In", "values": ["m"]},))}, [SELECTOR]),
        ({}, {"affinity": affine()}, [SELECTOR]),
        ({}, {"requests": {"cpu": "4"}}, []),
        ({}, {"requests": {"cpu": "4001m"}}, ["Insufficient cpu"]),
        ({}, {"requests": {"cpu": "5", "memory": "2Gi"}}, ["Insufficient cpu", "Insufficient memory"]),
        ({}, {"requests": {"example.com/fpga": "2"}}, ["Insufficient example.com/fpga"]),
        ({}, {"requests": {"example.com/none": "1"}}, ["Insufficient example.com/none"]),
        ({}, {"requests": {"nvidia.com/gpu": "100"}}, []),
        ({"pods": "0"}, {}, [TOO_MANY_PODS]),
    ],
)
def test_a_node_says_why_it_does_not_take_a_pod(
    of_node: dict[str, Any], of_pod: dict[str, Any], reasons: list[str]
) -> None:
    assert node_capacity(node(**of_node)).misfits(pod_needs(pod(**of_pod), ignored=MANAGED)) == reasons


def test_what_init_containers_and_sidecars_need_counts_as_kubernetes_counts_it() -> None:
    def container(cpu: str, **more: str) -> dict[str, Any]:
        return {"name": "x", "resources": {"requests": {"cpu": cpu}}, **more}

    always = {"restartPolicy": "Always"}
    several = pod(
        initContainers=[container("1", **always), container("5"), container("2", **always)],
        containers=[container("1"), container("500m")],
    )
    assert pod_needs(several).amounts == {"cpu": 6000}
    assert pod_needs(pod(initContainers=[container("9", **always)])).amounts == {"cpu": 9000}
    assert pod_needs(pod(requests={"cpu": "nonsense"})).amounts == {}


@pytest.mark.parametrize(
    ("spec", "asks"),
    [
        ({"containers": [{"resources": {"limits": {"nvidia.com/gpu": "1"}}}]}, True),
        ({"containers": [{"resources": {"requests": {"nvidia.com/gpu": "1"}}}]}, True),
        ({"containers": [{}], "initContainers": [{"resources": {"limits": {"nvidia.com/gpu": "1"}}}]}, True),
        ({"containers": [{"resources": {"limits": {"cpu": "1"}}}]}, False),
        ({"containers": [{}]}, False),
    ],
)
def test_the_extender_is_asked_about_pods_that_name_a_managed_resource(spec: dict[str, Any], asks: bool) -> None:
    assert asks_for({"spec": spec}, MANAGED) is asks


def test_a_heartbeat_is_no_change_of_a_node_but_an_annotation_is() -> None:
    def ready(status: str, at: str) -> dict[str, Any]:
        condition = {"type": "Ready", "status": status, "lastHeartbeatTime": at}
        return {**node(), "status": {"conditions": [condition]}}

    assert node_signature(ready("True", "10:00")) == node_signature(ready("True", "10:05"))
    assert node_signature(ready("True", "10:00")) != node_signature(ready("False", "10:00"))
    assert node_signature(node()) != node_signature(node(annotations={"a": "b"}))


@pytest.mark.parametrize(
    ("nodes", "misfits", "said"),
    [
        (
            3,
            {"a": ["1/1 CardInsufficientMemory"], "b": ["1/1 CardInsufficientMemory"], "c": ["node unregistered"]},
            "0/3 nodes are available: 1 node unregistered, 2 1/1 CardInsufficientMemory.",
        ),
        (2, {"a": ["x"] * 2, "b": ["x"]}, "0/2 nodes are available: 3 x."),
        (12, {f"n{i}": ["x"] for i in range(12)} | {"m": ["y"] * 2}, "0/12 nodes are available: 12 x, 2 y."),
        (2, {}, "0/2 nodes are available:"),
    ],
)
def test_the_sentence_of_kube_scheduler(nodes: int, misfits: dict[str, list[str]], said: str) -> None:
    assert fit_error(nodes, misfits) == said


# -- the core that is stepped


def core(*nodes: dict[str, Any], profiles: dict[str, bool] | None = None, seed: int = 0) -> Attempts:
    attempts = Attempts(profiles=profiles or {"s": True}, managed=MANAGED, rng=random.Random(seed))
    for each in nodes:
        attempts.node_seen(each, 0)
    return attempts


def candidates(attempts: Attempts) -> tuple[str, ...]:
    attempt = attempts.next(0)
    assert attempt is not None
    return attempt.candidates


def test_an_assumed_pod_takes_its_place_before_any_watch_shows_it() -> None:
    attempts = core(node("a", pods="1"), node("b", pods="1"))
    attempts.pod_seen(pod("one"), 0)
    attempts.pod_seen(pod("two"), 0)
    first = attempts.next(0)
    assert first is not None
    assert first.candidates == ("a", "b")
    attempts.assume(first, "a")
    assert attempts.is_assumed("one")
    assert candidates(attempts) == ("b",)


def test_a_bind_that_fails_gives_the_place_back() -> None:
    attempts = core(node("a", pods="1"))
    attempts.pod_seen(pod("one"), 0)
    first = attempts.next(0)
    assert first is not None
    attempts.assume(first, "a")
    assert attempts.bind_failed(first, 0)
    attempts.pod_seen(pod("two"), 0)
    assert candidates(attempts) == ("a",)


def test_a_bind_that_fails_after_its_effect_changes_nothing() -> None:
    attempts = core(node("a", pods="1"))
    attempts.pod_seen(pod("one"), 0)
    first = attempts.next(0)
    assert first is not None
    attempts.assume(first, "a")
    attempts.pod_seen(pod("one", node="a"), 0)
    assert not attempts.bind_failed(first, 0)
    assert attempts.next(100) is None


def test_places_are_free_again_when_pods_end_or_go() -> None:
    attempts = core(node("a", pods="1"))
    running = pod("one", node="a")
    attempts.pod_seen(running, 0)
    attempts.pod_seen(pod("two"), 0)
    assert candidates(attempts) == ()
    attempts.pod_seen({**running, "status": {"phase": "Succeeded"}}, 0)
    attempts.pod_seen(pod("three"), 0)
    assert candidates(attempts) == ("a",)


def test_pods_that_were_seen_before_their_node_count_on_it() -> None:
    attempts = core()
    attempts.pod_seen(pod("one", node="a"), 0)
    attempts.pod_seen(pod("gone", node="a"), 0)
    attempts.pod_gone("gone", 0)
    attempts.node_seen(node("a", pods="1"), 0)
    attempts.pod_seen(pod("two"), 0)
    assert candidates(attempts) == ()


def test_what_pods_take_survives_a_node_that_goes_and_comes_back() -> None:
    attempts = core(node("a", pods="1"))
    attempts.pod_seen(pod("one", node="a"), 0)
    attempts.node_gone("a")
    attempts.node_gone("a")
    attempts.node_seen(node("a", pods="1"), 0)
    attempts.pod_seen(pod("two"), 0)
    assert candidates(attempts) == ()


def test_gated_leaving_and_foreign_pods_are_not_tried() -> None:
    attempts = core(node("a"))
    attempts.pod_seen(pod("gated", schedulingGates=[{"name": "later"}]), 0)
    attempts.pod_seen(pod("foreign", schedulerName="other"), 0)
    leaving = pod("leaving")
    attempts.pod_seen(leaving, 0)
    attempts.pod_seen({**leaving, "metadata": {**leaving["metadata"], "deletionTimestamp": "now"}}, 0)
    assert attempts.next(0) is None
    attempts.pod_seen(pod("gated"), 0)
    assert candidates(attempts) == ("a",)


def test_only_a_change_beside_the_status_makes_a_refused_pod_try_again() -> None:
    attempts = core(node("a"))
    seen = pod("one")
    attempts.pod_seen(seen, 0)
    first = attempts.next(0)
    assert first is not None
    attempts.refused(first, 0)
    metadata = {**seen["metadata"], "resourceVersion": "2", "managedFields": [{}]}
    attempts.pod_seen({**seen, "metadata": metadata, "status": {"phase": "Pending", "conditions": [{}]}}, 0)
    assert attempts.next(0) is None
    attempts.pod_seen({**seen, "metadata": {**metadata, "annotations": {"tessera.io/retry": "1"}}}, 0)
    assert attempts.next(0) is not None


def test_the_emptiest_node_is_chosen_and_the_seed_decides_between_equals() -> None:
    nodes = [node("a", pods="9"), node("b", pods="9"), node("c", pods="9", cpu="2")]

    def chosen(seed: int) -> list[str]:
        attempts = core(*nodes, seed=seed)
        names = []
        for number in range(6):
            attempts.pod_seen(pod(f"p{number}", requests={"cpu": "500m"}), 0)
            attempt = attempts.next(0)
            assert attempt is not None
            name = attempts.choose(attempt, attempt.candidates)
            assert name is not None
            attempts.assume(attempt, name)
            names.append(name)
        return names

    assert chosen(1) == chosen(1)
    assert {tuple(chosen(seed)[:2]) for seed in range(20)} == {("a", "b"), ("b", "a")}
    attempts = core(*nodes)
    attempts.pod_seen(pod("p"), 0)
    attempt = attempts.next(0)
    assert attempt is not None
    assert attempts.choose(attempt, ["gone"]) is None


def test_a_profile_without_extender_counts_devices_itself() -> None:
    attempts = core(node("a"), profiles={"s": False})
    attempts.pod_seen(pod("one", requests={"nvidia.com/gpu": "1"}), 0)
    attempt = attempts.next(0)
    assert attempt is not None
    assert attempt.misfits == {"a": ["Insufficient nvidia.com/gpu"]}
    assert not attempt.extended
