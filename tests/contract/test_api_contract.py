"""What Tessera relies on in an API server: objects, versions, patches.

Every test here holds for kube-apiserver: `TESSERA_CONTRACT_KUBECONFIG=... pytest tests/contract` runs them against one.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract.client import APPLY, JSON_PATCH, MERGE, STRATEGIC, Client, Json
from tests.contract.conftest import Space
from tests.contract.manifests import pod


async def test_a_created_pod_has_an_identity_and_is_pending(api: Client, space: Space) -> None:
    made = await api.made(space.pods(), pod())
    assert (made["kind"], made["apiVersion"]) == ("Pod", "v1")
    assert made["status"]["phase"] == "Pending"
    assert made["spec"]["schedulerName"] == "default-scheduler"
    assert all(made["metadata"][key] for key in ("uid", "resourceVersion", "creationTimestamp"))
    assert (await api.get(space.pods("p"))).body == made


async def test_requests_are_copied_from_limits_and_amounts_are_canonical(api: Client, space: Space) -> None:
    made = await api.made(space.pods(), pod())
    amounts = {"cpu": "100m", "memory": "1Gi", "nvidia.com/gpu": "1", "nvidia.com/gpumem": "3k"}
    assert made["spec"]["containers"][0]["resources"] == {"limits": amounts, "requests": amounts}
    assert made["status"]["qosClass"] == "Guaranteed"


async def test_references_of_environment_variables_to_annotations_get_their_version(api: Client, space: Space) -> None:
    body = pod()
    reference = {"fieldRef": {"fieldPath": "metadata.annotations['tessera.io/x']"}}
    body["spec"]["containers"][0]["env"] = [{"name": "A", "valueFrom": reference}]
    made = await api.made(space.pods(), body)
    assert made["spec"]["containers"][0]["env"][0]["valueFrom"]["fieldRef"]["apiVersion"] == "v1"


async def test_a_generated_name_starts_with_its_prefix(api: Client, space: Space) -> None:
    body = pod() | {"metadata": {"generateName": "gen-"}}
    first, second = await api.made(space.pods(), body), await api.made(space.pods(), body)
    names = {first["metadata"]["name"], second["metadata"]["name"]}
    assert len(names) == 2
    assert all(name.startswith("gen-") and len(name) == 9 for name in names)


@pytest.mark.parametrize(
    ("change", "status", "reason"),
    [
        ({"metadata": {"name": "Not_A_Name"}}, 422, "Invalid"),
        ({"metadata": {}}, 422, "Invalid"),
        ({"metadata": {"name": "p", "resourceVersion": "7"}}, 500, ""),
        ({"metadata": {"name": "p", "namespace": "elsewhere"}}, 400, "BadRequest"),
        ({"metadata": {"name": "p", "annotations": {"a": 1}}}, 400, "BadRequest"),
        ({"metadata": {"name": "p", "annotations": {"a": "x" * 300_000}}}, 422, "Invalid"),
        ({"metadata": {"name": "p", "labels": {"a": "not a label"}}}, 422, "Invalid"),
        ({"metadata": "p"}, 400, "BadRequest"),
        ({"kind": "Node", "apiVersion": "v1"}, 400, "BadRequest"),
        ({"spec": {"containers": []}}, 422, "Invalid"),
        ({"spec": {"containers": {}}}, 400, "BadRequest"),
    ],
)
async def test_a_bad_pod_is_refused(api: Client, space: Space, change: Json, status: int, reason: str) -> None:
    answer = await api.post(space.pods(), pod() | change)
    assert (answer.status, answer.reason) == (status, reason), answer.body
    assert answer.body["kind"] == "Status"
    assert answer.body["status"] == "Failure"
    assert answer.body["code"] == status


@pytest.mark.parametrize(
    ("resources", "status"),
    [
        ({"limits": {"nvidia.com/gpu": "1.5"}}, 422),
        ({"limits": {"nvidia.com/gpu": "2"}, "requests": {"nvidia.com/gpu": "1"}}, 422),
        ({"requests": {"nvidia.com/gpu": "1"}}, 422),
        ({"limits": {"cpu": "1"}, "requests": {"cpu": "2"}}, 422),
        ({"limits": {"cpu": "-1"}}, 422),
        ({"limits": {"cpu": "lots"}}, 400),
        ({"requests": {"cpu": "1"}, "limits": {"cpu": "2"}}, 201),
    ],
)
async def test_amounts_are_checked(api: Client, space: Space, resources: Json, status: int) -> None:
    body = pod()
    body["spec"]["containers"][0]["resources"] = resources
    assert (await api.post(space.pods(), body)).status == status


async def test_a_body_that_is_not_json_is_refused(api: Client, space: Space) -> None:
    answer = await api.ask("POST", space.pods(), b'{"metadata": ')
    assert (answer.status, answer.reason) == (400, "BadRequest")
    answer = await api.ask("POST", space.pods(), b"pod", media="text/plain")
    assert answer.status == 415


async def test_what_is_missing_is_not_found_with_its_name(api: Client, space: Space) -> None:
    answer = await api.get(space.pods("nobody"))
    assert (answer.status, answer.reason, answer.message) == (404, "NotFound", 'pods "nobody" not found')
    assert answer.body["details"] == {"name": "nobody", "kind": "pods"}
    answer = await api.get(space.leases("nobody"))
    assert answer.message == 'leases.coordination.k8s.io "nobody" not found'
    answer = await api.post("/api/v1/namespaces/no-such-namespace/pods", pod())
    assert answer.status in (403, 404)
    assert (await api.get("/api/v1/nonsense")).status == 404


async def test_a_name_is_taken_once(api: Client, space: Space) -> None:
    await api.made(space.pods(), pod())
    answer = await api.post(space.pods(), pod())
    assert (answer.status, answer.reason, answer.message) == (409, "AlreadyExists", 'pods "p" already exists')


async def test_versions_grow(api: Client, space: Space) -> None:
    made = [await api.made(space.of("configmaps"), {"metadata": {"name": f"c{i}"}}) for i in range(3)]
    versions = [int(each["metadata"]["resourceVersion"]) for each in made]
    assert versions == sorted(set(versions))


async def test_an_update_from_an_old_version_conflicts(api: Client, space: Space) -> None:
    path = space.of("configmaps")
    old = await api.made(path, {"metadata": {"name": "c"}, "data": {"a": "1"}})
    assert (await api.put(f"{path}/c", old | {"data": {"a": "2"}})).status == 200
    answer = await api.put(f"{path}/c", old | {"data": {"a": "3"}})
    assert (answer.status, answer.reason) == (409, "Conflict")
    assert (await api.get(f"{path}/c")).body["data"] == {"a": "2"}
    free = {"metadata": {"name": "c"}, "data": {"a": "4"}}
    assert (await api.put(f"{path}/c", free)).body["data"] == {"a": "4"}


@pytest.mark.parametrize("media", [MERGE, STRATEGIC])
async def test_a_patch_that_names_an_old_version_conflicts(api: Client, space: Space, media: str) -> None:
    old = await api.made(space.pods(), pod())
    version = old["metadata"]["resourceVersion"]
    patch: Json = {"metadata": {"resourceVersion": version, "annotations": {"a": "1"}}}
    assert (await api.patch(space.pods("p"), patch, media)).status == 200
    patch["metadata"]["annotations"] = {"a": "2"}
    answer = await api.patch(space.pods("p"), patch, media)
    assert (answer.status, answer.reason) == (409, "Conflict")


async def test_a_patch_that_changes_nothing_is_no_write(api: Client, space: Space) -> None:
    made = await api.made(space.pods(), pod(annotations={"a": "1"}))
    answer = await api.patch(space.pods("p"), {"metadata": {"annotations": {"a": "1"}}})
    assert answer.body["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]


async def test_null_in_a_merge_patch_removes(api: Client, space: Space) -> None:
    await api.made(space.pods(), pod(annotations={"a": "1", "b": "2"}))
    answer = await api.patch(space.pods("p"), {"metadata": {"annotations": {"a": None, "c": "3"}}})
    assert answer.body["metadata"]["annotations"] == {"b": "2", "c": "3"}


async def test_a_json_patch_applies_whole_or_not_at_all(api: Client, space: Space) -> None:
    await api.made(space.pods(), pod(annotations={"a": "1"}))
    add = {"op": "add", "path": "/metadata/annotations/x~1y", "value": "2"}
    right, wrong = ({"op": "test", "path": "/metadata/annotations/a", "value": value} for value in ("1", "9"))
    answer = await api.patch(space.pods("p"), [add, wrong], JSON_PATCH)
    assert (answer.status, answer.reason) == (422, "Invalid")
    answer = await api.patch(space.pods("p"), [right, add], JSON_PATCH)
    assert answer.body["metadata"]["annotations"] == {"a": "1", "x/y": "2"}


async def test_a_strategic_patch_merges_containers_by_name(api: Client, space: Space) -> None:
    body = pod()
    body["spec"]["containers"].append({"name": "d", "image": "busybox:1"})
    await api.made(space.pods(), body)
    patch = {"spec": {"containers": [{"name": "d", "image": "busybox:2"}]}}
    answer = await api.patch(space.pods("p"), patch, STRATEGIC)
    assert [(each["name"], each["image"]) for each in answer.body["spec"]["containers"]] == [
        ("c", "busybox:1"),
        ("d", "busybox:2"),
    ]


async def test_an_unknown_kind_of_patch_is_refused(api: Client, space: Space) -> None:
    await api.made(space.pods(), pod())
    assert (await api.patch(space.pods("p"), {}, "application/json")).status == 415


@pytest.mark.parametrize(
    ("media", "patch", "status"),
    [
        (MERGE, [1], 400),
        (MERGE, {"metadata": {"name": "other"}}, 400),
        (MERGE, {"metadata": {"uid": "another"}}, 422),
        (MERGE, {"metadata": {"annotations": {"a": 1}}}, 422),
        (MERGE, {"spec": {"tolerations": []}}, 200),
        (JSON_PATCH, {"op": "remove"}, 400),
        (JSON_PATCH, [{"op": "explode", "path": "/metadata"}], 422),
        (JSON_PATCH, [{"op": "remove", "path": "/nowhere"}], 422),
        (STRATEGIC, {"spec": {"containers": [{"image": "busybox:2"}]}}, 500),
    ],
)
async def test_patches_at_the_edge(api: Client, space: Space, media: str, patch: Any, status: int) -> None:
    made = await api.made(space.pods(), pod())
    answer = await api.patch(space.pods("p"), patch, media)
    assert answer.status == status, answer.body
    assert (await api.get(space.pods("p"))).body == made


async def test_server_side_apply_creates_and_changes(api: Client, space: Space) -> None:
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"a": "1"}}
    path = space.of("configmaps", "c")
    query = {"fieldManager": "contract", "force": "true"}
    assert (await api.patch(path, body, APPLY, **query)).status == 201
    answer = await api.patch(path, body | {"data": {"a": "2"}}, APPLY, **query)
    assert (answer.status, answer.body["data"]) == (200, {"a": "2"})
    assert (await api.patch(path, body, APPLY)).status in (400, 422)


async def test_a_pods_spec_hardly_changes(api: Client, space: Space, node: Json) -> None:
    await api.made(space.pods(), pod())
    for change in ({"nodeName": node["metadata"]["name"]}, {"schedulerName": "other"}, {"priority": 7}):
        answer = await api.patch(space.pods("p"), {"spec": change})
        assert (answer.status, answer.reason) == (422, "Invalid"), change
    added = {"spec": {"containers": [{"name": "c", "env": [{"name": "A", "value": "1"}]}]}}
    assert (await api.patch(space.pods("p"), added, STRATEGIC)).status == 422


async def test_status_and_the_rest_change_on_their_own_paths(api: Client, space: Space) -> None:
    await api.made(space.pods(), pod())
    both = {"status": {"phase": "Running"}, "metadata": {"annotations": {"a": "1"}}}
    assert (await api.patch(space.pods("p"), both)).body["status"]["phase"] == "Pending"
    answer = await api.patch(space.pods("p", "status"), both | {"spec": {"priority": 7}})
    assert answer.body["status"]["phase"] == "Running"
    assert answer.body["spec"]["priority"] == 0
    ready = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    started = {"status": {"conditions": [{"type": "Initialized", "status": "True"}]}}
    await api.patch(space.pods("p", "status"), ready, STRATEGIC)
    answer = await api.patch(space.pods("p", "status"), started, STRATEGIC)
    assert {each["type"] for each in answer.body["status"]["conditions"]} >= {"Ready", "Initialized"}
    assert (await api.get(space.pods("p", "status"))).body == answer.body


async def test_a_node_is_created_with_its_status(api: Client, node: Json) -> None:
    assert node["status"]["capacity"] == {"cpu": "8", "memory": "64Gi", "pods": "110", "nvidia.com/gpu": "3k"}
    assert node["status"]["allocatable"] == node["status"]["capacity"]
    path = f"/api/v1/nodes/{node['metadata']['name']}"
    registration = {"metadata": {"annotations": {"hami.io/node-nvidia-register": "x" * 100_000}}}
    assert (await api.patch(path, registration)).status == 200
    more = await api.patch(f"{path}/status", {"status": {"capacity": {"nvidia.com/gpu": "10"}}})
    assert more.body["status"]["capacity"]["nvidia.com/gpu"] == "10"


async def test_a_rehearsal_changes_nothing(api: Client, space: Space) -> None:
    answer = await api.post(space.pods(), pod(), dryRun="All")
    assert (answer.status, bool(answer.body["metadata"]["uid"])) == (201, True)
    assert (await api.get(space.pods("p"))).status == 404
    assert (await api.post(space.pods(), pod(), dryRun="Some")).status == 422
    made = await api.made(space.pods(), pod())
    answer = await api.patch(space.pods("p"), {"metadata": {"labels": {"a": "1"}}}, dryRun="All")
    assert answer.body["metadata"]["labels"] == {"a": "1"}
    assert (await api.delete(space.pods("p"), dryRun="All")).status == 200
    assert (await api.get(space.pods("p"))).body == made


async def test_a_secrets_text_is_stored_as_data(api: Client, space: Space) -> None:
    made = await api.made(space.of("secrets"), {"metadata": {"name": "s"}, "stringData": {"a": "b"}})
    assert (made["data"], made["type"]) == ({"a": "Yg=="}, "Opaque")
    assert "stringData" not in made
    bad = {"metadata": {"name": "t"}, "data": {"a": "not base64!"}}
    assert (await api.post(space.of("secrets"), bad)).status == 400


async def test_a_quota_is_written_in_canonical_amounts(api: Client, space: Space) -> None:
    hard = {"limits.nvidia.com/gpumem": "10000", "requests.nvidia.com/gpu": 4}
    made = await api.made(space.of("resourcequotas"), {"metadata": {"name": "q"}, "spec": {"hard": hard}})
    assert made["spec"]["hard"] == {"limits.nvidia.com/gpumem": "10k", "requests.nvidia.com/gpu": "4"}


@pytest.mark.parametrize(
    ("amount", "written"),
    [
        ("3000", "3k"),
        ("0.1", "100m"),
        ("1536Ki", "1536Ki"),
        ("0.5Ki", "512"),
        ("1.5Gi", "1536Mi"),
        ("0.0001Ki", "103m"),
        ("0.1n", "1m"),
        ("1e3", "1e3"),
        ("12E2", "1200"),
        ("1E", "1E"),
        ("0.0", "0"),
    ],
)
async def test_an_amount_has_one_spelling(api: Client, space: Space, amount: str, written: str) -> None:
    body = {"metadata": {"name": "q"}, "spec": {"hard": {"limits.cpu": amount}}}
    made = await api.made(space.of("resourcequotas"), body)
    assert made["spec"]["hard"] == {"limits.cpu": written}


async def test_a_lease_is_taken_over_by_one_only(api: Client, space: Space) -> None:
    spec = {"holderIdentity": "a", "leaseDurationSeconds": 15, "renewTime": "2026-01-01T00:00:00.000000Z"}
    made = await api.made(space.leases(), {"metadata": {"name": "l"}, "spec": spec})
    taken = made | {"spec": spec | {"holderIdentity": "b"}}
    assert (await api.put(space.leases("l"), taken)).body["spec"]["holderIdentity"] == "b"
    late = await api.put(space.leases("l"), made | {"spec": spec | {"holderIdentity": "c"}})
    assert (late.status, late.reason) == (409, "Conflict")
    blind = {"metadata": {"name": "l"}, "spec": spec}
    assert (await api.put(space.leases("l"), blind)).status == 422
