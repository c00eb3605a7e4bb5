"""Webhook, filter and bind with a stock kube-apiserver and kube-scheduler: which slice a pod gets, at what cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from tessera.kube.resources import DEPLOYMENTS, RESOURCE_QUOTAS, Resource
from tessera_lab.sandbox.api.kinds import Json
from tessera_lab.sandbox.nodes.kubelet import RUN_FOR
from tessera_lab.sandbox.nodes.node import AgentKind, SimulatedNode, gpu_cards
from tessera_lab.sandbox.objects import node_of, phase_of
from tests.e2e.cluster import Cluster, cluster
from tests.e2e.control_plane import ControlPlane
from tests.e2e.replica import until
from tests.support.product import container, gpu_pod, pod, sidecar

JOBS = Resource("batch", "v1", "jobs", True)
NODE_POLICY = "hami.io/node-scheduler-policy"


def node(name: str = "n1", count: int = 2, *, agent: AgentKind = "env") -> SimulatedNode:
    return SimulatedNode(name, gpu_cards(name, count), agent=agent)


# -- shapes

SHAPES = (
    # First, while two cards are free.
    pod("whole", container("a", gpu=2)),
    pod("one", container("a", gpu=1, mem=3000, cores=10)),
    pod("two", container("a", gpu=1, mem=1000), container("b", gpu=1, mem=2000, cores=20)),
    pod("one-of-three", container("a"), container("b", gpu=1, mem=1000), container("c")),
    pod("two-cards", container("a", gpu=2, mem=1500)),
    pod("share", container("a", gpu=1, percent=25)),
    pod("init", container("a", gpu=1, mem=1000), init=[container("i", gpu=1, mem=20000, cores=30)]),
    pod("init-alone", container("a"), init=[container("i", gpu=1, mem=1000)]),
    pod("sidecar", container("a", gpu=1, mem=1000), init=[sidecar("s", gpu=1, mem=2000)]),
    pod(
        "all-kinds",
        container("a", gpu=1, mem=1000),
        container("b"),
        container("c", gpu=2, mem=500, cores=10),
        init=[sidecar("s", gpu=1, mem=2000), container("i", gpu=2, mem=3000)],
    ),
)


@pytest.mark.parametrize("agent", ["env", "answer", "hami"])
async def test_every_container_of_every_shape_has_exactly_its_slice(plane: ControlPlane, agent: AgentKind) -> None:
    async with cluster(plane, [node("n1", 8, agent=agent)]) as found:
        await found.create(*SHAPES)
        await found.running(*(shape["metadata"]["name"] for shape in SHAPES))
        await found.at_rest()
        assert found.wrong_slices() == []


async def test_sixty_mixed_pods_at_once_have_exactly_their_slices(plane: ControlPlane) -> None:
    nodes = [
        node("n1", 4),
        node("n2", 4, agent="answer"),
        node("n3", 4),
        SimulatedNode("n4", gpu_cards("n4", 4), shuffled=True),
    ]
    pods = list(mixed_pods(60))
    async with cluster(plane, nodes, "--node-scheduler-policy=spread") as found:
        await found.create(*pods)
        await found.running(*(each["metadata"]["name"] for each in pods))
        await found.at_rest()
        assert found.wrong_slices() == []
        assert {node_of(each) for each in found.pods} == {"n1", "n2", "n3", "n4"}


def mixed_pods(count: int) -> Iterator[Json]:
    """Of five shapes, in sizes that all differ."""
    for number in range(count):
        name, memory = f"p{number:02}", 500 + 37 * number
        yield (
            gpu_pod(name, gpu=1, mem=memory, cores=number % 7),
            gpu_pod(name, gpu=2, mem=memory),
            pod(name, container("a", gpu=1, mem=memory), container("b", gpu=1, mem=memory + 11, cores=3)),
            pod(name, container("a", gpu=1, mem=memory), init=[sidecar("s", gpu=1, mem=memory + 11)]),
            pod(name, container("a", gpu=1, mem=memory), container("b"), init=[container("i", gpu=2, mem=memory + 11)]),
        )[number % 5]


async def test_pods_of_deployments_and_jobs_are_placed_like_any_other(plane: ControlPlane) -> None:
    containers = [container("main", gpu=1, mem=2000, cores=5)]
    staying = {"metadata": {"labels": {"app": "a"}}, "spec": {"containers": containers}}
    serving = {"replicas": 3, "selector": {"matchLabels": {"app": "a"}}, "template": staying}
    once = {"containers": containers, "restartPolicy": "Never"}
    ending = {"metadata": {"annotations": {RUN_FOR: "0.1"}}, "spec": once}
    async with cluster(plane, [node("n1", 1)]) as found:
        for resource, name, spec in (
            (DEPLOYMENTS, "serve", serving),
            (JOBS, "train", {"completions": 2, "parallelism": 2, "template": ending}),
        ):
            path = resource.path(found.namespace)
            answer = await found.tenant.post(path, {"metadata": {"name": name}, "spec": spec})
            assert answer.status == 201, answer.body
        phases = {"Running": 3, "Succeeded": 2}
        await found.wait_for(lambda: Counter(map(phase_of, found.pods)) == phases, what="3 replicas and 2 completions")
        job = await until(lambda: completed(found, "train"), what="the job's completion")
        assert job["status"]["succeeded"] == 2
        await found.at_rest()
        assert found.wrong_slices() == []


async def completed(found: Cluster, name: str) -> Json:
    job: Json = (await found.tenant.get(JOBS.path(found.namespace, name))).body
    return job if job.get("status", {}).get("completionTime") else {}


async def test_a_pod_without_devices_is_left_alone(plane: ControlPlane) -> None:
    async with cluster(plane, [node("n1", 1), SimulatedNode("n2")]) as found:
        manifests = [pod(f"p{number}", container("main")) for number in range(4)]
        await found.create(*manifests)
        await found.running(*(each["metadata"]["name"] for each in manifests))
        for each in found.pods:
            assert each["spec"]["schedulerName"] == "default-scheduler"
            assert "annotations" not in each["metadata"]
            assert "env" not in each["spec"]["containers"][0]
        assert [asked for asked in found.requests() if asked.writes] == []


# -- wishes


@pytest.mark.parametrize(("policy", "together"), [("binpack", True), ("spread", False)])
async def test_the_node_policy_decides_whether_pods_share_a_node(
    plane: ControlPlane, policy: str, together: bool
) -> None:
    async with cluster(plane, [node("n1"), node("n2")]) as found:
        wish = {NODE_POLICY: policy}
        await found.run(*(gpu_pod(name, gpu=1, mem=100, annotations=wish) for name in ("p", "q")))
        assert (node_of(found.pod("p")) == node_of(found.pod("q"))) is together


async def test_a_namespace_gets_no_more_than_its_quota(plane: ControlPlane) -> None:
    quota = {"metadata": {"name": "gpus"}, "spec": {"hard": {"limits.nvidia.com/gpumem": "5000"}}}
    async with cluster(plane, [node()]) as found:
        await found.api.create(RESOURCE_QUOTAS.path(found.namespace), quota)
        await found.run(gpu_pod("p", gpu=1, mem=3000))
        answer = await until(lambda: denied(found, gpu_pod("big", gpu=1, mem=6000)), what="the quota to be known")
        assert "asks for 6000 MiB of nvidia.com/gpumem" in answer
        await found.run(gpu_pod("q", gpu=1, mem=2000))
        assert "asks for 1000 MiB" in await denied(found, gpu_pod("r", gpu=1, mem=1000))
        await found.at_rest()


async def denied(found: Cluster, manifest: Json) -> str:
    """Why a tenant may not create this pod; nothing where they may."""
    answer = await found.post(manifest, dryRun="All")
    return answer.message if answer.status != 201 else ""


# -- cost


async def test_a_pod_costs_one_write_and_its_events(plane: ControlPlane) -> None:
    names = [f"p{number:02}" for number in range(20)]
    async with cluster(plane, [node("n1", 4), node("n2", 4), SimulatedNode("n3")]) as found:
        await found.create(*(gpu_pod(name, gpu=1, mem=1000) for name in names))
        await found.running(*names)
        await found.at_rest()
        # Events are written asynchronously; a clean stop writes those that are left.
        assert await found.replica.stop_tessera() == 0
        asked = found.requests()
        writes = [(each.verb, each.resource, each.name) for each in asked if each.writes and each.resource != "events"]
        assert sorted(writes) == [("create", "pods/binding", name) for name in names]
        events = Counter(each.verb for each in asked if each.resource == "events")
        assert set(events) <= {"create", "patch"}
        # Two events a pod; kube-scheduler may ask for one twice.
        assert 2 * len(names) <= events.total() <= 3 * len(names)
        reads = Counter((each.verb, each.resource) for each in asked if each.verb in ("get", "list"))
        # Pods also by the take-over, and after it.
        assert reads.pop(("list", "pods")) <= 3
        assert reads == {("list", "nodes"): 1, ("list", "resourcequotas"): 1, ("list", "poddisruptionbudgets"): 1}
