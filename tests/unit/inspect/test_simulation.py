from __future__ import annotations

from typing import Any

import pytest

from tessera.inspect.description import read_description
from tessera.inspect.manifests import Manifest, read_manifests
from tessera.inspect.offline_cluster import OfflineCluster
from tessera.inspect.simulation import simulate, simulate_gangs
from tessera.inspect.state import InspectionError, Setup
from tests.support.builders import NOW, cluster, gpu_pod, node
from tests.support.cluster_states import quota, state_of
from tests.support.explained import told

CLUSTER = """
nodes:
  - name: a100
    count: 2
    cards: [{model: A100-SXM4-80GB, count: 2}]
  - name: tiny
    cards: [{model: made-up, memory: 8000, slots: 2}]
    labels: {zone: b}
    taints: [{key: k, effect: NoSchedule}]
namespaces:
  - {name: team-a, limits: {nvidia.com/gpumem: 50000}}
"""


def manifest(count: int = 1, namespace: str = "default", name: str = "p", **limits: Any) -> Manifest:
    named = {"gpu": "nvidia.com/gpu", "mem": "nvidia.com/gpumem", "cores": "nvidia.com/gpucores"}
    resources = {"limits": {named[key]: value for key, value in limits.items()}}
    pod = {
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"containers": [{"name": "main", "image": "x", "resources": resources}]},
    }
    return Manifest(namespace, name, pod, count)


def world() -> OfflineCluster:
    return OfflineCluster(read_description(CLUSTER, file="cluster.yaml", now=NOW, setup=Setup()))


async def test_one_pod_is_told_where_it_would_go_and_how_many_more_fit() -> None:
    found = simulate(world(), manifest(gpu=1, mem=30000, cores=10))
    assert found.all_fit
    assert [one.node for one in found.placed] == ["a100-1"]
    assert found.fits_in_all == 8
    assert found.stop is not None
    assert "needs 30000 MiB; the most free on one card is 21920 of 81920 MiB" in found.stop.text
    assert "8 in all: 7 more than requested" in told(found)


async def test_copies_that_do_not_all_fit_are_counted_and_the_first_failure_is_explained() -> None:
    found = simulate(world(), manifest(12, gpu=1, mem=30000, cores=10))
    assert not found.all_fit
    assert (len(found.placed), found.fits_in_all) == (8, 8)
    assert found.by_node == {"a100-1": 4, "a100-2": 4}
    assert "What stops copy 9" in told(found)
    assert "node(s) had untolerated taint(s)" in told(found)


async def test_the_copies_asked_for_stay_for_the_next_manifest_and_the_counted_ones_do_not() -> None:
    one = world()
    simulate(one, manifest(3, gpu=1, mem=30000, cores=10))
    assert simulate(one, manifest(1, name="q", gpu=1, mem=30000, cores=10)).fits_in_all == 5


async def test_a_quota_stops_copies_as_the_webhook_would() -> None:
    found = simulate(world(), manifest(3, "team-a", gpu=1, mem=20000))
    assert found.fits_in_all == 2
    assert found.stop is not None
    assert found.stop.text.startswith("the webhook refuses it: exceeding resource quota")


async def test_a_pod_without_devices_is_none_of_our_business() -> None:
    found = simulate(world(), manifest(3))
    assert found.all_fit
    assert "requests no devices" in told(found)


async def test_a_request_that_cannot_be_meant_is_refused_with_the_webhooks_words() -> None:
    found = simulate(world(), manifest(gpu=1, mem="2Gi"))
    assert not found.all_fit
    assert found.stop is not None
    assert "nvidia.com/gpumem" in found.stop.text


async def test_counting_ends_where_it_is_told_to() -> None:
    found = simulate(world(), manifest(gpu=1, mem=100, cores=1), most=3)
    assert (found.fits_in_all, found.stop) == (3, None)
    assert "at least 3" in told(found)


async def test_warnings_of_the_webhook_are_passed_on() -> None:
    assert simulate(world(), manifest(gpu=1)).warnings


@pytest.mark.parametrize("asks", [{"mem": 9000, "cores": 30}, {"gpu": 2, "mem": 50000}, {"mem": 30000, "cores": 100}])
async def test_copies_go_where_the_scheduler_puts_them(asks: dict[str, Any]) -> None:
    nodes = [node("n1").gpus(2), node("n2").gpus(3, memory=40000), node("n3").gpus(1, slots=2)]
    found = simulate(OfflineCluster(state_of(nodes)), manifest(30, **{"gpu": 1, **asks}))
    ledger, expected = cluster(*nodes), []
    for number in range(found.fits_in_all):
        expected.append(ledger.start(gpu_pod(f"p{number}", **asks)).node)
    assert [one.node for one in found.placed] == expected
    ledger.refused(gpu_pod("next", **asks))


async def test_quota_of_a_running_cluster_counts() -> None:
    holder = gpu_pod("h", mem=3000).on("n1", "n1-0,NVIDIA,3000,0:;")
    state = state_of([node("n1").gpus(1)], [holder], quotas=[quota("default", {"nvidia.com/gpumem": 5000})])
    assert simulate(OfflineCluster(state), manifest(5, gpu=1, mem=1000)).fits_in_all == 2


# -- manifests

DEPLOYMENT = """
kind: Deployment
metadata: {name: web, namespace: team-a}
spec:
  replicas: 3
  template:
    metadata: {annotations: {a: b}}
    spec: {containers: [{name: c}]}
"""


def test_a_workload_stands_for_its_replicas() -> None:
    [found] = read_manifests(DEPLOYMENT, file="f", namespace="default", count=None)
    assert (found.namespace, found.name, found.count) == ("team-a", "web", 3)
    assert found.pod["metadata"]["annotations"] == {"a": "b"}


def test_a_count_wins_over_replicas() -> None:
    assert read_manifests(DEPLOYMENT, file="f", namespace="default", count=7)[0].count == 7


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "contains no pod"),
        ("[", "not valid JSON"),
        ("kind: Pod", "expected a Pod"),
        ("kind: Pod\nspec: {}", "has no containers"),
    ],
)
def test_a_file_without_a_pod_says_what_is_wrong(text: str, words: str) -> None:
    with pytest.raises(InspectionError, match=words):
        read_manifests(text, file="f", namespace="default", count=None)


JOB_SET = """
kind: JobSet
metadata: {name: train, namespace: default}
spec:
  replicatedJobs:
    - name: driver
      template: {spec: {template: &pod
        {metadata: {annotations: {tessera.io/gang: train, tessera.io/gang-size: "5", tessera.io/gang-topology: rack}},
         spec: {containers: [{name: c, image: x, resources: {limits: {nvidia.com/gpu: 1}}}]}}}}
    - name: worker
      replicas: 2
      template: {spec: {parallelism: 2, template: *pod}}
"""


async def test_a_job_set_is_tried_as_one_gang() -> None:
    manifests = read_manifests(JOB_SET, file="f", namespace="default", count=None)
    assert [(each.name, each.count) for each in manifests] == [("train-driver", 1), ("train-worker", 4)]
    racks = [node(f"n{i}").gpus(4, slots=1).label("rack", f"r{i % 2}") for i in range(4)]
    [fits] = simulate_gangs(OfflineCluster(state_of(racks, [])), manifests)
    assert (fits.fits, fits.text) == (True, "5 x 1 NVIDIA: all 5 members fit together, in 1 of rack: r0")
    [short] = simulate_gangs(OfflineCluster(state_of(racks[:1], [])), manifests)
    assert not short.fits
    assert short.text.startswith("5 x 1 NVIDIA: 4 of 5 members fit; short of 1 card")


async def test_pods_of_no_gang_are_not_tried_as_one() -> None:
    assert simulate_gangs(world(), [manifest(gpu=1)]) == []


async def test_a_job_without_a_template_is_refused() -> None:
    broken = "kind: JobSet\nmetadata: {name: train}\nspec: {replicatedJobs: [{name: a}]}"
    with pytest.raises(InspectionError, match="a replicated Job of JobSet train has no template"):
        read_manifests(broken, file="f", namespace="default", count=None)
