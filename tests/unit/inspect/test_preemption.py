"""What `explain` and `simulate pod --preempt` say about preemption."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tessera.inspect.explanation import explain
from tessera.inspect.manifests import read_manifests
from tessera.inspect.offline_cluster import OfflineCluster
from tessera.inspect.preemption import with_priority
from tessera.inspect.render.explanation import explanation_lines, simulation_lines
from tessera.inspect.simulation import simulate
from tessera.inspect.state import BudgetState, Setup
from tests.support.builders import PodBuilder, gpu_pod, node
from tests.support.cluster_states import state_of
from tests.support.stepwise_scheduler import uid

HELD = "n1-0,NVIDIA,60000,30:;"


def holder(name: str = "holder") -> PodBuilder:
    return gpu_pod(name, mem=60000, cores=30).on("n1", HELD)


def told(*pods: PodBuilder, setup: Setup | None = None) -> str:
    cluster = OfflineCluster(state_of([node("n1").gpus(1, memory=80000)], pods, setup=setup))
    return "\n".join(line.text for line in explanation_lines(explain(cluster, "default/p")))


def waiting() -> PodBuilder:
    return gpu_pod("p", mem=30000).with_priority(100)


async def test_a_pod_that_would_preempt_others_is_told_which() -> None:
    assert "would preempt default/holder (priority 0) on n1" in told(holder(), waiting())


async def test_a_pod_that_waits_for_pods_that_leave_is_told_so() -> None:
    assert "waits for default/holder (priority 0) on n1" in told(holder().terminating(), waiting())


@pytest.mark.parametrize(
    ("held", "pod", "why"),
    [
        (holder(), waiting().with_priority(100, policy="Never"), "its preemptionPolicy is Never"),
        (holder().with_priority(100), waiting(), "no pod that holds devices has a lower priority than 100"),
        (
            holder().annotate(("tessera.io/preemptible", "false")),
            waiting(),
            "(not evicted: 1 with annotation tessera.io/preemptible is false)",
        ),
    ],
)
async def test_a_pod_that_preempts_none_is_told_why(held: PodBuilder, pod: PodBuilder, why: str) -> None:
    text = told(held, pod)
    assert "evicts no pod: " in text
    assert why in text


async def test_a_cluster_without_preemption_says_so() -> None:
    text = told(holder(), waiting(), setup=Setup(flags={"preemption": "false"}, flags_from="a test"))
    assert "preemption is switched off" in text


async def test_a_simulation_names_the_victims_of_the_first_copy_that_does_not_fit() -> None:
    manifest = """
    metadata: {name: p}
    kind: Pod
    apiVersion: v1
    spec:
      priority: 100
      containers: [{name: c, resources: {limits: {nvidia.com/gpu: 1, nvidia.com/gpumem: 30000}}}]
    """
    cluster = OfflineCluster(state_of([node("n1").gpus(1, memory=80000)], [holder()]))
    [pod] = read_manifests(manifest, file="-", namespace="default", count=None)
    found = simulate(cluster, pod, preempt=True)
    lines = "\n".join(line.text for line in simulation_lines(found))
    assert "would preempt default/holder (priority 0) on n1" in lines


async def budgeted(allowed: int, *pods: PodBuilder) -> str:
    """What is told where one budget holds for the first pod."""
    state = state_of([node("n1").gpus(1, memory=80000)], pods)
    budget = BudgetState(allowed, frozenset({uid(pods[0])}))
    cluster = OfflineCluster(replace(state, budgets={"default/guard": budget}))
    return "\n".join(line.text for line in explanation_lines(explain(cluster, "default/p")))


async def test_a_budget_that_was_read_decides_and_is_not_a_doubt_any_more() -> None:
    assert (await budgeted(1, holder(), waiting())).endswith("would preempt default/holder (priority 0) on n1")
    text = await budgeted(0, holder(), waiting())
    assert "evicts no pod: " in text
    assert "1 with PodDisruptionBudget default/guard allows no eviction" in text


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
