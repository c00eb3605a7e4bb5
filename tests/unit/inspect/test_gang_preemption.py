"""What `explain` and `simulate pod --preempt` say about gangs that preempt."""

from __future__ import annotations

import pytest

from tessera.inspect.explanation import explain
from tessera.inspect.manifests import read_manifests
from tessera.inspect.offline_cluster import OfflineCluster
from tessera.inspect.render.explanation import explanation_lines, gang_lines
from tessera.inspect.simulation import simulate, simulate_gangs
from tessera.inspect.state import Setup
from tests.support.builders import PodBuilder, gpu_pod, node
from tests.support.cluster_states import state_of

NODES = [node("n1").gpus(1, slots=1), node("n2").gpus(1, slots=1)]
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


def holder(number: int) -> PodBuilder:
    return gpu_pod(f"holder-{number}").on(f"n{number}", f"n{number}-0,NVIDIA,81920,100:;")


def members(**priority: int) -> list[PodBuilder]:
    return [gpu_pod(f"g-{i}").with_priority(priority.get(f"g_{i}", 100)).in_gang("g", 2) for i in range(2)]


def told(*pods: PodBuilder, setup: Setup | None = None) -> str:
    cluster = OfflineCluster(state_of(NODES, pods, setup=setup))
    return "\n".join(line.text for line in explanation_lines(explain(cluster, "default/g-1")))


async def test_a_member_is_told_which_pods_its_gang_would_preempt() -> None:
    text = told(holder(1), holder(2), *members())
    assert "would preempt default/holder-1 (priority 0) and default/holder-2 (priority 0) on n1, n2" in text
    assert text.count("would preempt") == 1, "not for the member alone"


async def test_a_gang_that_waits_for_pods_that_leave_is_told_so() -> None:
    text = told(holder(1).terminating(), holder(2).terminating(), *members())
    assert "waits for default/holder-1 (priority 0) and default/holder-2 (priority 0) on n1, n2" in text


@pytest.mark.parametrize(
    ("pods", "why"),
    [
        ([holder(1), holder(2).with_priority(100), *members()], "no set of pods with a priority below 100 makes all 2"),
        ([holder(1), holder(2), *members(g_0=0)], "no pod that holds devices has a lower priority than 0"),
        (
            [holder(1), holder(2), members()[0].with_priority(100, policy="Never"), members()[1]],
            "the preemptionPolicy of a member is Never",
        ),
    ],
)
async def test_a_gang_that_preempts_none_is_told_why(pods: list[PodBuilder], why: str) -> None:
    assert f"evicts no pod: {why}" in told(*pods)


async def test_a_gang_is_told_that_preemption_is_switched_off() -> None:
    setup = Setup(flags={"preemption": "false"}, flags_from="a test")
    assert "preemption is switched off" in told(holder(1), holder(2), *members(), setup=setup)


async def test_an_incomplete_gang_is_told_of_no_victims() -> None:
    text = told(holder(1), holder(2), members()[1])
    assert "1 of 2 members exist" in text
    assert "preempt" not in text


async def test_a_simulated_job_names_the_victims_of_the_whole_gang() -> None:
    manifests = read_manifests(JOB, file="f", namespace="default", count=None)
    cluster = OfflineCluster(state_of(NODES, [holder(1), holder(2)]))
    [found] = simulate_gangs(cluster, manifests, preempt=True)
    text = "\n".join(line.text for line in gang_lines(found))
    assert "would preempt default/holder-1 (priority 0) and default/holder-2 (priority 0) on n1, n2" in text
    [alone] = [simulate(cluster, manifest, preempt=True) for manifest in manifests]
    assert alone.stop is not None
    assert alone.stop.preemption is None
    [plain] = simulate_gangs(cluster, manifests)
    assert plain.preemption is None
