"""Preemption with a real kube-apiserver and a stock kube-scheduler: evicted, held, bound; and a death in between."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tessera.kube.client import KubeClient
from tessera.kube.errors import ApiError
from tessera.kube.resources import POD_DISRUPTION_BUDGETS, Resource
from tessera.services.failpoints import VARIABLE, Failpoint
from tessera_lab.sandbox.api.kinds import Json
from tessera_lab.sandbox.nodes.node import SimulatedNode, gpu_cards
from tessera_lab.sandbox.objects import node_of
from tests.e2e.cluster import Cluster, cluster
from tests.e2e.control_plane import ControlPlane
from tests.e2e.replica import until
from tests.support.product import gpu_pod

PRIORITY_CLASSES = Resource("scheduling.k8s.io", "v1", "priorityclasses", False)
CONFLICT = 409
EVICTION = ("create", "pods/eviction")


async def make_classes(api: KubeClient) -> None:
    for name, value, policy in (
        ("e2e-high", 1000, "PreemptLowerPriority"),
        ("e2e-higher", 2000, "PreemptLowerPriority"),
        ("e2e-patient", 1000, "Never"),
    ):
        try:
            await api.create(
                PRIORITY_CLASSES.path(),
                {
                    "apiVersion": "scheduling.k8s.io/v1",
                    "kind": "PriorityClass",
                    "metadata": {"name": name},
                    "value": value,
                    "preemptionPolicy": policy,
                },
            )
        except ApiError as error:
            if error.status != CONFLICT:  # An earlier test has made it.
                raise


def nodes(count: int = 2, cards: int = 2) -> list[SimulatedNode]:
    return [SimulatedNode(f"n{number}", gpu_cards(f"n{number}", cards), agent="env") for number in range(count)]


def whole(name: str, *, gpu: int = 1, priority: str = "", labels: Mapping[str, str] | None = None) -> Json:
    """A pod that takes cards alone."""
    made = gpu_pod(name, gpu=gpu, cores=100)
    made["metadata"]["labels"] = dict(labels or {})
    made["spec"]["terminationGracePeriodSeconds"] = 1
    if priority:
        made["spec"]["priorityClassName"] = priority
    return made


def evictions(found: Cluster) -> int:
    return sum((each.verb, each.resource) == EVICTION for each in found.requests())


async def event_text(found: Cluster, name: str, reason: str) -> str:
    """Of the pod's event with this reason, which may come late."""
    texts: dict[str, str] = {}

    async def is_there() -> bool:
        texts.update({event["reason"]: event["message"] for event in await found.events(name)})
        return reason in texts

    await until(is_there, what=f"event {reason} of {name}")
    return texts[reason]


async def filled(found: Cluster, count: int, **pod: Any) -> list[str]:
    names = [f"low{number}" for number in range(count)]
    await found.run(*(whole(name, **pod) for name in names))
    return names


async def test_a_pod_of_higher_priority_is_bound_where_its_victim_was(plane: ControlPlane) -> None:
    async with cluster(plane, nodes()) as found:
        await make_classes(found.api)
        low = await filled(found, 4)
        await found.create(whole("high", priority="e2e-high"))
        await found.running("high")
        left = {name for name in low if name in {pod["metadata"]["name"] for pod in found.pods}}
        assert len(left) == 3
        [victim] = set(low) - left
        assert evictions(found) == 1
        assert f"by pod {found.namespace}/high (priority 1000)" in await event_text(found, victim, "Preempted")
        assert victim in await event_text(found, "high", "Preempting")
        await found.at_rest()
        assert found.wrong_slices() == []


async def test_a_pod_that_never_preempts_waits(plane: ControlPlane) -> None:
    async with cluster(plane, nodes(1, 1)) as found:
        await make_classes(found.api)
        await filled(found, 1)
        await found.create(whole("patient", priority="e2e-patient"), whole("high", priority="e2e-high"))
        await found.running("high")
        assert node_of(found.pod("patient")) == ""
        assert evictions(found) == 1


async def test_a_disruption_budget_holds(plane: ControlPlane) -> None:
    async with cluster(plane, nodes(1, 2)) as found:
        await make_classes(found.api)
        budget = {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": {"name": "guard"},
            "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "guarded"}}},
        }
        await found.api.create(POD_DISRUPTION_BUDGETS.path(found.namespace), budget)
        await found.run(whole("guarded", labels={"app": "guarded"}), whole("plain", priority="e2e-high"))
        await found.create(whole("high", priority="e2e-higher"))
        await found.running("high")
        assert "guarded" in {pod["metadata"]["name"] for pod in found.pods}


@pytest.mark.parametrize("point", [Failpoint.BEFORE_EVICT, Failpoint.AFTER_EVICT], ids=lambda point: str(point.value))
async def test_a_scheduler_that_dies_between_nomination_and_bind_evicts_none_twice_and_leaves_nothing(
    plane: ControlPlane, point: Failpoint
) -> None:
    async with cluster(plane, nodes()) as found:
        await make_classes(found.api)
        low = await filled(found, 4)
        tessera = found.replica.tessera
        tessera.kill()
        tessera.start(**{VARIABLE: f"{point.value}=kill"})
        await found.replica.ready()
        await found.create(whole("high", priority="e2e-high"))

        async def is_dead() -> bool:
            return not tessera.is_running

        await until(is_dead, what=f"the end at {point.value}")
        tessera.start()
        await found.replica.ready()
        await found.running("high")
        assert evictions(found) == 1
        assert len({pod["metadata"]["name"] for pod in found.pods} & set(low)) == 3
        await found.at_rest()
        scrape = await found.replica.scrape()
        assert scrape.value("tessera_nominations") == 0


async def test_many_preemptors_at_once_all_run_and_no_more_pods_leave_than_needed(plane: ControlPlane) -> None:
    async with cluster(plane, nodes(4, 8)) as found:
        await make_classes(found.api)
        low = await filled(found, 32)
        high = [f"high{number}" for number in range(20)]
        await found.create(*(whole(name, priority="e2e-high") for name in high))
        await found.running(*high)
        assert len({pod["metadata"]["name"] for pod in found.pods} & set(low)) == 12
        await found.at_rest()
        assert found.wrong_slices() == []


async def test_where_cpu_starts_a_preemption_the_cards_fit_too(plane: ControlPlane) -> None:
    """kube-scheduler's victim for CPU holds no card: the pod whose card is needed has to leave with it."""
    async with cluster(plane, nodes(1, 1)) as found:
        await make_classes(found.api)
        node = (await found.api.get("/api/v1/nodes/n0", dict[str, Any]))["status"]["allocatable"]["cpu"]
        hog = {
            "metadata": {"name": "hog"},
            "spec": {
                "terminationGracePeriodSeconds": 1,
                "schedulerName": "hami-scheduler",
                "containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": str(int(node) - 1)}}}],
            },
        }
        await found.run(whole("low"), hog)
        high = whole("high", priority="e2e-high")
        high["spec"]["containers"][0]["resources"]["requests"] = {"cpu": str(int(node) - 1)}
        await found.create(high)
        await found.running("high")
        assert {pod["metadata"]["name"] for pod in found.pods} == {"high"}
