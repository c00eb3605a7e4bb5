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


@pytest.mark.parametrize(
    ("change", "volumes"),
    [({}, 1), ({"automountServiceAccountToken": False}, 0), ({"serviceAccount": "default"}, 1)],
)
async def test_a_pods_token_is_mounted(api: Client, change: Json, volumes: int) -> None:
    body = pod()
    body["spec"] |= change
    made = await api.made(PODS_PATH, body)
    assert len(made["spec"].get("volumes", [])) == volumes
    assert len(made["spec"]["tolerations"]) == 2


async def test_what_a_pod_has_already_is_left_alone(api: Client) -> None:
    body = pod()
    mount = {"name": "t", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}
    body["spec"]["containers"][0]["volumeMounts"] = [mount]
    body["spec"]["volumes"] = [{"name": "t"}, {"name": "s", "secret": {"secretName": "s"}}]
    body["spec"]["tolerations"] = [{"operator": "Exists"}]
    body["spec"]["containers"][0] |= {"image": "busybox", "ports": [{"containerPort": 1}]}
    body["spec"]["priorityClassName"] = "system-node-critical"
    spec = (await api.made(PODS_PATH, body))["spec"]
    assert spec["volumes"] == [
        {"name": "t", "emptyDir": {}},
        {"name": "s", "secret": {"secretName": "s", "defaultMode": 420}},
    ]
    assert spec["tolerations"] == [{"operator": "Exists"}]
    assert spec["priority"] == 2_000_001_000
    assert spec["containers"][0]["imagePullPolicy"] == "Always"
    assert spec["containers"][0]["ports"] == [{"containerPort": 1, "protocol": "TCP"}]


async def test_a_gated_pod_is_not_bound_and_its_gates_only_go(api: Client) -> None:
    body = pod()
    body["spec"]["schedulingGates"] = [{"name": "wait"}]
    await api.made(PODS_PATH, body)
    assert (await api.post(f"{PODS_PATH}/p/binding", binding("n"))).status == 409
    more = [{"op": "add", "path": "/spec/schedulingGates/-", "value": {"name": "more"}}]
    assert (await api.patch(f"{PODS_PATH}/p", more, JSON_PATCH)).status == 422
    gone = [{"op": "remove", "path": "/spec/schedulingGates"}]
    assert (await api.patch(f"{PODS_PATH}/p", gone, JSON_PATCH)).status == 200
    assert (await api.post(f"{PODS_PATH}/p/binding", binding("n"), dryRun="All")).status == 201
    assert (await api.post(f"{PODS_PATH}/p/binding", binding("n"))).status == 201


async def test_tolerations_are_only_added(api: Client) -> None:
    await api.made(PODS_PATH, pod())
    extra = [{"op": "add", "path": "/spec/tolerations/-", "value": {"operator": "Exists"}}]
    assert (await api.patch(f"{PODS_PATH}/p", extra, JSON_PATCH)).status == 200
    assert (await api.patch(f"{PODS_PATH}/p", {"spec": {"tolerations": []}})).status == 422


async def test_an_eviction_deletes_with_grace(api: Client) -> None:
    await api.made(PODS_PATH, pod())
    await api.post(f"{PODS_PATH}/p/binding", binding("n"))
    eviction = {"metadata": {"name": "p"}, "deleteOptions": {"gracePeriodSeconds": 7}}
    rehearsal: Json = {"metadata": {"name": "p"}, "deleteOptions": {"dryRun": ["All"]}}
    assert (await api.post(f"{PODS_PATH}/p/eviction", rehearsal)).status == 201
    assert "deletionTimestamp" not in (await api.get(f"{PODS_PATH}/p")).body["metadata"]
    assert (await api.post(f"{PODS_PATH}/p/eviction", eviction)).status == 201
    assert (await api.get(f"{PODS_PATH}/p")).body["metadata"]["deletionGracePeriodSeconds"] == 7
    assert (await api.post(f"{PODS_PATH}/p/eviction", {"metadata": {"name": "q"}})).status == 422


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


async def test_leases_and_events_are_created_by_their_first_update(api: Client) -> None:
    path = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n1"
    body = {"metadata": {"name": "n1"}, "spec": {"holderIdentity": "n1"}}
    assert (await api.put(path, body)).status == 201
    assert (await api.put(path.replace("n1", "n2"), body)).status == 400


@pytest.mark.parametrize(
    ("path", "body", "patch"),
    [
        (MAPS_PATH, {"immutable": True, "data": {"a": "1"}}, {"data": {"a": "2"}}),
        (MAPS_PATH, {}, {"metadata": {"name": "other"}}),
        (MAPS_PATH, {}, {"binaryData": {"a": "not base64!"}}),
        (MAPS_PATH.replace("configmaps", "secrets"), {"type": "a"}, {"type": "b"}),
        (MAPS_PATH, {}, {"metadata": {"uid": "another"}}),
    ],
)
async def test_what_may_not_change(api: Client, path: str, body: Json, patch: Json) -> None:
    await api.made(path, {"metadata": {"name": "x"}} | body)
    assert (await api.patch(f"{path}/x", patch)).status in (400, 409, 422)


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
