"""Rules about objects, beyond the contract."""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract.client import APPLY, JSON_PATCH, Client, Json
from tests.contract.manifests import binding, pod

PODS_PATH = "/api/v1/namespaces/default/pods"
MAPS_PATH = "/api/v1/namespaces/default/configmaps"


async def test_a_namespace_takes_its_content_along(api: Client) -> None:
    await api.made("/api/v1/namespaces", {"metadata": {"name": "team"}})
    path = "/api/v1/namespaces/team/pods"
    await api.made(path, pod())
    await api.post(f"{path}/p/binding", binding("n"))
    rehearsal = await api.delete("/api/v1/namespaces/team", dryRun="All")
    assert rehearsal.body["status"]["phase"] == "Terminating"
    assert (await api.get("/api/v1/namespaces/team")).body["status"]["phase"] == "Active"
    assert (await api.delete("/api/v1/namespaces/team")).body["status"]["phase"] == "Terminating"
    late = await api.post(path, pod("late"))
    assert (late.status, late.reason) == (403, "Forbidden")
    assert (await api.delete("/api/v1/namespaces/team")).status == 200
    assert (await api.delete(f"{path}/p", gracePeriodSeconds="0")).status == 200
    assert (await api.get("/api/v1/namespaces/team")).status == 404
    assert (await api.delete("/api/v1/namespaces/default")).status == 403


async def test_a_namespaces_finalizers_are_the_servers(api: Client) -> None:
    answer = await api.patch("/api/v1/namespaces/default", {"spec": {"finalizers": []}})
    assert answer.body["spec"] == {"finalizers": ["kubernetes"]}


async def test_a_pod_needs_a_service_account_that_exists(api: Client) -> None:
    body = pod()
    body["spec"]["serviceAccountName"] = "nobody"
    answer = await api.post(PODS_PATH, body)
    assert (answer.status, answer.reason) == (403, "Forbidden")
    assert 'serviceaccount "nobody" not found' in answer.message


async def test_a_gated_pod_is_not_bound(api: Client) -> None:
    body = pod()
    body["spec"]["schedulingGates"] = [{"name": "wait"}]
    await api.made(PODS_PATH, body)
    assert (await api.post(f"{PODS_PATH}/p/binding", binding("n"))).status == 409
    gone = [{"op": "remove", "path": "/spec/schedulingGates"}]
    assert (await api.patch(f"{PODS_PATH}/p", gone, JSON_PATCH)).status == 200
    assert (await api.post(f"{PODS_PATH}/p/binding", binding("n"), dryRun="All")).status == 201
    assert (await api.post(f"{PODS_PATH}/p/binding", binding("n"))).status == 201


async def test_a_negative_grace_is_one_second(api: Client) -> None:
    await api.made(PODS_PATH, pod())
    await api.post(f"{PODS_PATH}/p/binding", binding("n"))
    rehearsed = await api.delete(f"{PODS_PATH}/p", {"gracePeriodSeconds": -5, "dryRun": ["All"]})
    assert rehearsed.body["metadata"]["deletionGracePeriodSeconds"] == 1


async def test_deletion_can_require_a_version(api: Client) -> None:
    await api.made(PODS_PATH, pod())
    wrong = {"preconditions": {"resourceVersion": "1"}}
    assert (await api.delete(f"{PODS_PATH}/p", wrong)).status == 409
    assert (await api.delete("/api/v1/nodes/none")).status == 404


async def test_nodes_and_maps_answer_their_deletion_with_a_status(api: Client) -> None:
    made = await api.made(MAPS_PATH, {"metadata": {"name": "c"}})
    answer = await api.delete(f"{MAPS_PATH}/c")
    assert answer.body["details"] == {"name": "c", "kind": "configmaps", "uid": made["metadata"]["uid"]}


async def test_generations_count_changes_of_the_spec(api: Client) -> None:
    await api.made(PODS_PATH, pod())
    labelled = await api.patch(f"{PODS_PATH}/p", {"metadata": {"labels": {"a": "1"}}})
    assert labelled.body["metadata"]["generation"] == 1
    changed = await api.patch(f"{PODS_PATH}/p", {"spec": {"activeDeadlineSeconds": 9}})
    assert changed.body["metadata"]["generation"] == 2


@pytest.mark.parametrize(
    ("metadata", "container", "field"),
    [
        ({"labels": {"not/a/key": "x"}}, {}, "metadata.labels"),
        ({"annotations": {"not a key": "x"}}, {}, "metadata.annotations"),
        ({"annotations": {"UPPER/x": "x", "_/x": ""}}, {}, "metadata.annotations"),
        ({}, {"name": ""}, "spec.containers[0].name"),
        ({}, {"name": "a.b"}, "spec.containers[0].name"),
        ({}, {"name": "x" * 64}, "spec.containers[0].name"),
        ({}, {"name": "second"}, "spec.containers[1].name"),
        ({}, {"image": ""}, "spec.containers[0].image"),
        ({}, {"resources": {"limits": {"a b": "1"}}}, "spec.containers[0].resources.limits[a b]"),
    ],
)
async def test_a_refusal_names_the_field(api: Client, metadata: Json, container: Json, field: str) -> None:
    body = pod(**metadata)
    body["spec"]["containers"][0] |= container
    body["spec"]["containers"].append({"name": "second", "image": "x"})
    answer = await api.post(PODS_PATH, body)
    assert (answer.status, answer.body["details"]["causes"][0]["field"]) == (422, field)


async def test_several_problems_are_told_together(api: Client) -> None:
    answer = await api.post(PODS_PATH, {"metadata": {"name": "p"}, "spec": {"containers": [{}]}})
    names = [each["field"] for each in answer.body["details"]["causes"]]
    assert names == ["spec.containers[0].name", "spec.containers[0].image"]
    assert answer.message.startswith('Pod "p" is invalid: [spec.containers[0].name: Required value, ')


async def test_what_is_applied_must_be_an_object(api: Client) -> None:
    bodies: tuple[Any, ...] = ([], {"metadata": []})
    for body in bodies:
        assert (await api.patch(f"{PODS_PATH}/p", body, APPLY, fieldManager="x")).status == 400


async def test_requests_other_than_limits_may_stand_alone(api: Client) -> None:
    body = pod()
    body["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "1"}}
    assert (await api.made(PODS_PATH, body))["status"]["qosClass"] == "Burstable"
