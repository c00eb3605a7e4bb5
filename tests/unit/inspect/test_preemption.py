"""What `explain` and `simulate pod --preempt` say about preemption, for pods and for gangs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tessera.inspect.explanation import explain
from tessera.inspect.manifests import read_manifests
from tessera.inspect.offline_cluster import OfflineCluster
from tessera.inspect.preemption import with_priority
from tessera.inspect.simulation import simulate, simulate_gangs
from tessera.inspect.state import BudgetState, Setup
from tests.support.builders import PodBuilder, gpu_pod, node
from tests.support.cluster_states import state_of
from tests.support.explained import explained, told
from tests.support.stepwise_scheduler import uid

ONE = [node("n1").gpus(1, memory=80000)]
TWO = [node("n1").gpus(1, slots=1), node("n2").gpus(1, slots=1)]
OFF = Setup(flags={"preemption": "false"}, flags_from="a test")


def holder() -> PodBuilder:
    return gpu_pod("holder", mem=60000, cores=30).on("n1", "n1-0,NVIDIA,60000,30:;")


def waiting() -> PodBuilder:
    return gpu_pod("p", mem=30000).with_priority(100)


def whole(number: int) -> PodBuilder:
    return gpu_pod(f"holder-{number}").on(f"n{number}", f"n{number}-0,NVIDIA,81920,100:;")


def members(first: int = 100) -> list[PodBuilder]:
    """The pod that is asked about, and another one of its gang."""
    return [gpu_pod("p").with_priority(100).in_gang("g", 2), gpu_pod("q").with_priority(first).in_gang("g", 2)]


BOTH = "default/holder-1 (priority 0) and default/holder-2 (priority 0) on n1, n2"


@pytest.mark.parametrize(
    ("nodes", "pods", "words"),
    [
        (ONE, [holder(), waiting()], "would preempt default/holder (priority 0) on n1"),
        (ONE, [holder().terminating(), waiting()], "waits for default/holder (priority 0) on n1"),
        (TWO, [whole(1), whole(2), *members()], f"would preempt {BOTH}"),
        (TWO, [whole(1).terminating(), whole(2).terminating(), *members()], f"waits for {BOTH}"),
    ],
    ids=["pod", "pod that waits", "gang", "gang that waits"],
)
async def test_who_would_preempt_others_is_told_which(nodes: Any, pods: list[PodBuilder], words: str) -> None:
    text = told(explained(nodes, *pods))
    assert words in text
    assert text.count("would preempt") <= 1, "a gang preempts as a whole, not for the member alone"


@pytest.mark.parametrize(
    ("nodes", "pods", "why"),
    [
        (ONE, [holder(), waiting().with_priority(100, policy="Never")], "its preemptionPolicy is Never"),
        (ONE, [holder().with_priority(100), waiting()], "no pod that holds devices has a lower priority than 100"),
        (
            ONE,
            [holder().annotate(("tessera.io/preemptible", "false")), waiting()],
            "(not evicted: 1 with annotation tessera.io/preemptible is false)",
        ),
        (TWO, [whole(1), whole(2).with_priority(100), *members()], "with a priority below 100 makes all 2"),
        (TWO, [whole(1), whole(2), *members(0)], "no pod that holds devices has a lower priority than 0"),
        (
            TWO,
            [whole(1), whole(2), members()[0].with_priority(100, policy="Never"), members()[1]],
            "the preemptionPolicy of a member is Never",
        ),
    ],
)
async def test_who_preempts_none_is_told_why(nodes: Any, pods: list[PodBuilder], why: str) -> None:
    text = told(explained(nodes, *pods))
    assert "evicts no pod: " in text
    assert why in text


@pytest.mark.parametrize(("nodes", "pods"), [(ONE, [holder(), waiting()]), (TWO, [whole(1), whole(2), *members()])])
async def test_a_cluster_without_preemption_says_so(nodes: Any, pods: list[PodBuilder]) -> None:
    assert "preemption is switched off" in told(explained(nodes, *pods, setup=OFF))


async def test_an_incomplete_gang_is_told_of_no_victims() -> None:
    text = told(explained(TWO, whole(1), whole(2), members()[0]))
    assert "1 of 2 members exist" in text
    assert "preempt" not in text


POD = """
kind: Pod
apiVersion: v1
metadata: {name: p}
spec:
  priority: 100
  containers: [{name: c, resources: {limits: {nvidia.com/gpu: 1, nvidia.com/gpumem: 30000}}}]
"""
JOB = """
kind: Job
apiVersion: batch/v1
metadata: {name: train}
spec:
  parallelism: 2
  template:
    metadata: {annotations: {tessera.io/gang: train, tessera.io/gang-size: "2"}}
    spec:
      priority: 100
      containers: [{name: c, image: x, resources: {limits: {nvidia.com/gpu: 1}}}]
"""


async def test_a_simulation_names_the_victims_of_the_first_copy_that_does_not_fit() -> None:
    [pod] = read_manifests(POD, file="-", namespace="default", count=None)
    found = simulate(OfflineCluster(state_of(ONE, [holder()])), pod, preempt=True)
    assert "would preempt default/holder (priority 0) on n1" in told(found)


async def test_a_simulated_job_names_the_victims_of_the_whole_gang() -> None:
    manifests = read_manifests(JOB, file="f", namespace="default", count=None)
    cluster = OfflineCluster(state_of(TWO, [whole(1), whole(2)]))
    [found] = simulate_gangs(cluster, manifests, preempt=True)
    assert f"would preempt {BOTH}" in told(found)
    [alone] = [simulate(cluster, manifest, preempt=True) for manifest in manifests]
    assert alone.stop is not None
    assert alone.stop.preemption is None
    [plain] = simulate_gangs(cluster, manifests)
    assert plain.preemption is None


@pytest.mark.parametrize(
    ("allowed", "words"),
    [
        (1, ["would preempt default/holder (priority 0) on n1"]),
        (0, ["evicts no pod: ", "1 with PodDisruptionBudget default/guard allows no eviction"]),
    ],
)
async def test_a_budget_that_was_read_decides_and_is_not_a_doubt_any_more(allowed: int, words: list[str]) -> None:
    budget = BudgetState(allowed, frozenset({uid(holder())}))
    state = replace(state_of(ONE, [holder(), waiting()]), budgets={"default/guard": budget})
    text = told(explain(OfflineCluster(state), "default/p"))
    assert all(each in text for each in words)
    assert "unless a PodDisruptionBudget keeps them" not in text


CLASSES = (
    {"metadata": {"name": "high"}, "value": 100},
    {"metadata": {"name": "patient"}, "value": 100, "preemptionPolicy": "Never"},
    {"metadata": {"name": "usual"}, "value": 7, "globalDefault": True},
)


@pytest.mark.parametrize(
    ("spec", "priority", "policy"),
    [
        ({"priorityClassName": "high"}, 100, None),
        ({"priorityClassName": "patient"}, 100, "Never"),
        ({"priorityClassName": "unknown"}, None, None),
        ({}, 7, None),
        ({"priority": 3, "priorityClassName": "high"}, 3, None),
    ],
)
def test_a_manifest_gets_the_priority_of_its_class(spec: dict[str, Any], priority: int | None, policy: str) -> None:
    found = with_priority({"spec": spec}, CLASSES)["spec"]
    assert (found.get("priority"), found.get("preemptionPolicy")) == (priority, policy)
