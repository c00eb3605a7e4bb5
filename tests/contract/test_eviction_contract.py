"""What `tessera drain` and preemption rely on: evictions, and the budgets that refuse them for a while."""

from __future__ import annotations

import asyncio

import pytest

from tests.contract.client import PATIENCE_S, Client, Json
from tests.contract.conftest import Space
from tests.contract.manifests import binding, pod

LABELS = {"app": "a"}


def budgets(space: Space, name: str = "") -> str:
    base = f"/apis/policy/v1/namespaces/{space.name}/poddisruptionbudgets"
    return f"{base}/{name}" if name else base


def eviction(name: str = "p", **options: object) -> Json:
    body: Json = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
    return body | ({"deleteOptions": options} if options else {})


async def running(api: Client, space: Space, node: Json, name: str = "p", *, ready: bool = True) -> Json:
    """A pod that its node has started, as the server's own cache shows it."""
    await api.made(space.pods(), pod(name, labels=LABELS))
    await api.post(space.pods(name, "binding"), binding(node["metadata"]["name"], name))
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    answer = await api.patch(space.pods(name, "status"), {"status": {"phase": "Running", "conditions": conditions}})
    async with asyncio.timeout(PATIENCE_S):
        while (await api.get(space.pods(name), resourceVersion="0")).body["status"]["phase"] != "Running":
            pass
    found: Json = answer.body
    return found


async def budget(api: Client, space: Space, *, healthy: int, name: str = "b", least: int = 1) -> Json:
    """A budget whose status is up to date: so many pods are healthy."""
    spec = {"minAvailable": least, "selector": {"matchLabels": LABELS}}
    made = await api.made(budgets(space), {"metadata": {"name": name}, "spec": spec})
    async with asyncio.timeout(PATIENCE_S):
        while True:
            found: Json = (await api.get(budgets(space, name))).body
            status = found.get("status", {})
            seen = status.get("observedGeneration") == made["metadata"]["generation"]
            if seen and status.get("currentHealthy") == healthy:
                return found


async def test_an_eviction_deletes_the_pod_with_grace(api: Client, space: Space, node: Json) -> None:
    await running(api, space, node)
    answer = await api.post(space.pods("p", "eviction"), eviction())
    assert (answer.status, answer.body["status"]) == (201, "Success")
    assert (await api.get(space.pods("p"))).body["metadata"]["deletionGracePeriodSeconds"] == 30
    again = await api.post(space.pods("p", "eviction"), eviction())
    assert again.status == 201, "a pod that is being deleted may be evicted again"


async def test_an_eviction_as_a_dry_run_leaves_the_pod(api: Client, space: Space, node: Json) -> None:
    await running(api, space, node)
    assert (await api.post(space.pods("p", "eviction"), eviction(), dryRun="All")).status == 201
    assert (await api.post(space.pods("p", "eviction"), eviction(dryRun=["All"]))).status == 201
    assert "deletionTimestamp" not in (await api.get(space.pods("p"))).body["metadata"]


async def test_an_eviction_of_another_pod_of_that_name_is_refused(api: Client, space: Space, node: Json) -> None:
    assert (await api.post(space.pods("p", "eviction"), eviction())).status == 404
    await running(api, space, node)
    earlier = {"uid": "11111111-2222-3333-4444-555555555555"}
    answer = await api.post(space.pods("p", "eviction"), eviction(preconditions=earlier))
    assert (answer.status, answer.reason) == (409, "Conflict")
    assert "deletionTimestamp" not in (await api.get(space.pods("p"))).body["metadata"]


async def test_a_budget_refuses_evictions_until_enough_pods_are_healthy(api: Client, space: Space, node: Json) -> None:
    await running(api, space, node)
    status = (await budget(api, space, healthy=1))["status"]
    assert (status["disruptionsAllowed"], status["desiredHealthy"], status["expectedPods"]) == (0, 1, 1)
    for query in ({}, {"dryRun": "All"}):
        answer = await api.post(space.pods("p", "eviction"), eviction(), **query)
        assert (answer.status, answer.reason) == (429, "TooManyRequests")
        assert answer.message == "Cannot evict pod as it would violate the pod's disruption budget."
        [cause] = answer.body["details"]["causes"]
        assert cause == {
            "reason": "DisruptionBudget",
            "message": "The disruption budget b needs 1 healthy pods and has 1 currently",
        }
    await running(api, space, node, "q")
    async with asyncio.timeout(PATIENCE_S):
        while (await api.get(budgets(space, "b"))).body["status"]["disruptionsAllowed"] != 1:
            pass
    assert (await api.post(space.pods("p", "eviction"), eviction())).status == 201
    assert (await api.post(space.pods("q", "eviction"), eviction("q"))).status == 429


async def test_a_dry_run_asks_a_budget_and_does_not_use_it_up(api: Client, space: Space, node: Json) -> None:
    await running(api, space, node)
    await running(api, space, node, "q")
    assert (await budget(api, space, healthy=2))["status"]["disruptionsAllowed"] == 1
    for name in ("p", "q", "p"):
        assert (await api.post(space.pods(name, "eviction"), eviction(name, dryRun=["All"]))).status == 201
    assert (await api.get(budgets(space, "b"))).body["status"]["disruptionsAllowed"] == 1
    assert (await api.post(space.pods("p", "eviction"), eviction())).status == 201
    answer = await api.post(space.pods("q", "eviction"), eviction("q", dryRun=["All"]))
    assert (answer.status, answer.reason) == (429, "TooManyRequests")


async def test_a_budget_counts_only_pods_that_are_healthy(api: Client, space: Space, node: Json) -> None:
    await running(api, space, node)
    await running(api, space, node, "q", ready=False)
    await budget(api, space, healthy=1)
    assert (await api.post(space.pods("q", "eviction"), eviction("q"))).status == 201, "it was not healthy anyway"
    assert (await api.post(space.pods("p", "eviction"), eviction())).status == 429


async def test_a_pod_that_has_not_started_is_evicted_whatever_its_budget(api: Client, space: Space) -> None:
    await api.made(space.pods(), pod(labels=LABELS))
    await budget(api, space, healthy=0)
    assert (await api.post(space.pods("p", "eviction"), eviction())).status == 201
    assert (await api.get(space.pods("p"))).status == 404


async def test_two_budgets_for_one_pod_are_an_error(api: Client, space: Space, node: Json) -> None:
    await running(api, space, node)
    await budget(api, space, healthy=1)
    await budget(api, space, healthy=1, name="c", least=0)
    answer = await api.post(space.pods("p", "eviction"), eviction())
    assert answer.status == 500
    assert "more than one PodDisruptionBudget" in answer.message


@pytest.mark.parametrize("amount", ["x", "-1%"])
async def test_a_budget_with_an_amount_that_cannot_be_is_refused(api: Client, space: Space, amount: str) -> None:
    spec = {"minAvailable": amount, "selector": {"matchLabels": LABELS}}
    answer = await api.post(budgets(space), {"metadata": {"name": "b"}, "spec": spec})
    assert (answer.status, answer.reason) == (422, "Invalid")


async def test_a_patch_of_the_status_may_change_an_annotation_with_it(api: Client, space: Space) -> None:
    """So a nomination and the mark that says whose it is are one write."""
    uid = (await api.made(space.pods(), pod()))["metadata"]["uid"]
    for node in ("n1", None):
        patch = {
            "metadata": {"uid": uid, "annotations": {"example.com/n": node}},
            "status": {"nominatedNodeName": node},
        }
        assert (await api.patch(space.pods("p", "status"), patch)).status == 200
        found = (await api.get(space.pods("p"))).body
        assert found["status"].get("nominatedNodeName") == node
        assert found["metadata"].get("annotations", {}).get("example.com/n") == node
