"""Workloads as the apiserver keeps them: defaults, refusals, scale, status, and what a deletion leaves to do.

Nothing here waits for a controller: the embedded server runs alone here.
"""

from __future__ import annotations

import pytest

from tests.contract.client import JSON_PATCH, MERGE, STRATEGIC, TABLE, Client, Json
from tests.contract.conftest import Space
from tests.contract.manifests import deployment, job, pod

SCALED = ("deployments", "replicasets")


def rolling(surge: object) -> Json:
    return {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": surge}}


@pytest.mark.parametrize("plural", SCALED)
async def test_a_workload_gets_the_defaults_of_its_kind_and_of_its_pods(api: Client, space: Space, plural: str) -> None:
    made = await api.made(space.grouped("apps", plural), deployment())
    spec = made["spec"]
    assert (spec["replicas"], made["metadata"]["generation"]) == (1, 1)
    template = spec["template"]["spec"]
    assert (template["restartPolicy"], template["schedulerName"]) == ("Always", "default-scheduler")
    amounts = {"cpu": "100m", "memory": "1Gi", "nvidia.com/gpu": "1", "nvidia.com/gpumem": "3k"}
    # Requests, the service account and tolerations come when pods are made of it.
    assert template["containers"][0]["resources"] == {"limits": amounts}
    assert "serviceAccountName" not in template
    assert "tolerations" not in template
    more = {
        "deployments": (
            "strategy",
            {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "25%", "maxSurge": "25%"}},
        ),
        "replicasets": ("replicas", 1),
    }
    key, value = more[plural]
    assert spec[key] == value
    listed = (await api.get(space.grouped("apps", plural))).body["items"]
    assert [each["metadata"]["name"] for each in listed] == ["d"]


async def test_a_job_selects_its_pods_by_its_uid(api: Client, space: Space) -> None:
    made = await api.made(space.jobs(), job())
    uid, spec = made["metadata"]["uid"], made["spec"]
    assert spec["selector"] == {"matchLabels": {"batch.kubernetes.io/controller-uid": uid}}
    assert spec["template"]["metadata"]["labels"] == {
        "batch.kubernetes.io/controller-uid": uid,
        "batch.kubernetes.io/job-name": "j",
        "controller-uid": uid,
        "job-name": "j",
    }
    assert [spec[key] for key in ("completions", "parallelism", "backoffLimit")] == [1, 1, 6]
    generated = await api.made(space.jobs(), job() | {"metadata": {"generateName": "gen-"}})
    name = generated["metadata"]["name"]
    assert generated["spec"]["template"]["metadata"]["labels"]["job-name"] == name
    workers = await api.made(space.jobs(), job("workers", parallelism=3))
    assert "completions" not in workers["spec"]


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("apps/deployments", deployment(selector={}), "spec.selector"),
        ("apps/deployments", deployment(replicas=-1), "spec.replicas"),
        ("apps/deployments", deployment(selector={"matchLabels": {"app": "x"}}), "spec.template.metadata.labels"),
        (
            "apps/deployments",
            deployment(template={"metadata": {"labels": {"app": "d"}}}),
            "spec.template.spec.containers",
        ),
        ("apps/deployments", deployment(strategy={"type": "Other"}), "spec.strategy"),
        ("apps/deployments", deployment(strategy=rolling("some")), "spec.strategy.rollingUpdate.maxSurge"),
        ("apps/deployments", deployment(strategy=rolling(-1)), "spec.strategy.rollingUpdate.maxSurge"),
        ("batch/jobs", job(template=pod()), "spec.template.spec.restartPolicy"),
        ("batch/jobs", job(parallelism=-1), "spec.parallelism"),
    ],
)
async def test_a_bad_workload_is_refused(api: Client, space: Space, path: str, body: Json, field: str) -> None:
    answer = await api.post(space.grouped(*path.split("/")), body)
    assert (answer.status, answer.reason) == (422, "Invalid"), answer.body
    assert field in [cause["field"] for cause in answer.body["details"]["causes"]]


async def test_what_a_workload_is_made_of_hardly_changes(api: Client, space: Space) -> None:
    await api.made(space.deployments(), deployment())
    other = {
        "spec": {"selector": {"matchLabels": {"app": "other"}}, "template": {"metadata": {"labels": {"app": "other"}}}}
    }
    answer = await api.patch(space.deployments("d"), other)
    assert (answer.status, answer.reason) == (422, "Invalid")
    await api.made(space.jobs(), job())
    answer = await api.patch(space.jobs("j"), {"spec": {"completions": 2}})
    assert (answer.status, answer.reason) == (422, "Invalid")


async def test_a_changed_spec_is_a_new_generation_and_a_changed_status_is_not(api: Client, space: Space) -> None:
    await api.made(space.deployments(), deployment())
    image = {"spec": {"template": {"spec": {"containers": [{"name": "c", "image": "busybox:2"}]}}}}
    changed = (await api.patch(space.deployments("d"), image, STRATEGIC)).body
    container = changed["spec"]["template"]["spec"]["containers"][0]
    assert (changed["metadata"]["generation"], container["image"]) == (2, "busybox:2")
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"
    conditions = [{"type": "Available", "status": "True"}]
    status = {"status": {"observedGeneration": 2, "replicas": 1, "conditions": conditions}, "spec": {"replicas": 9}}
    written = (await api.patch(space.deployments("d", "status"), status)).body
    assert (written["metadata"]["generation"], written["spec"]["replicas"]) == (2, 1)
    assert written["status"]["conditions"][0]["type"] == "Available"
    progressing = {"status": {"conditions": [{"type": "Progressing", "status": "True"}]}}
    written = (await api.patch(space.deployments("d", "status"), progressing, STRATEGIC)).body
    assert {each["type"] for each in written["status"]["conditions"]} == {"Available", "Progressing"}


@pytest.mark.parametrize("plural", SCALED)
async def test_a_workload_is_scaled_through_its_scale(api: Client, space: Space, plural: str) -> None:
    made = await api.made(space.grouped("apps", plural), deployment(replicas=2))
    path = space.grouped("apps", plural, "d", "scale")
    scale = (await api.get(path)).body
    assert (scale["kind"], scale["apiVersion"]) == ("Scale", "autoscaling/v1")
    assert (scale["spec"], scale["status"]) == ({"replicas": 2}, {"replicas": 0, "selector": "app=d"})
    assert scale["metadata"]["uid"] == made["metadata"]["uid"]
    assert (await api.patch(path, {"spec": {"replicas": 3}}, MERGE)).body["spec"] == {"replicas": 3}
    assert (await api.put(path, scale)).status == 409
    del scale["metadata"]["resourceVersion"]
    scale["spec"]["replicas"] = 4
    assert (await api.put(path, scale)).status == 200
    add = [{"op": "replace", "path": "/spec/replicas", "value": 0}]
    assert (await api.patch(path, add, JSON_PATCH)).body["spec"] == {}
    assert (await api.patch(path, {"spec": {"replicas": -1}}, MERGE)).status == 422
    found = (await api.get(space.grouped("apps", plural, "d"))).body
    assert (found["spec"]["replicas"], found["metadata"]["generation"]) == (0, 4)


async def test_jobs_have_no_scale(api: Client, space: Space) -> None:
    await api.made(space.jobs(), job())
    assert (await api.get(space.jobs("j", "scale"))).status == 404


async def test_a_deletion_says_what_happens_to_dependents(api: Client, space: Space) -> None:
    for name in ("gone", "kept", "waiting"):
        await api.made(space.deployments(), deployment(name))
    answer = await api.delete(space.deployments("gone"), {"propagationPolicy": "Background"})
    assert (answer.status, answer.body["kind"]) == (200, "Status")
    assert (await api.get(space.deployments("gone"))).status == 404
    for name, policy, finalizer in (("kept", "Orphan", "orphan"), ("waiting", "Foreground", "foregroundDeletion")):
        # A garbage collector may have removed the finalizer by the next request.
        found = (await api.delete(space.deployments(name), {"propagationPolicy": policy})).body["metadata"]
        assert (found["finalizers"], "deletionTimestamp" in found) == ([finalizer], True)
    # Another policy replaces the first; the update that removes the last finalizer removes the object.
    await api.delete(space.deployments("kept"), {"propagationPolicy": "Background"})
    assert (await api.get(space.deployments("kept"))).status == 404
    await api.patch(space.deployments("waiting"), {"metadata": {"finalizers": None}})
    assert (await api.get(space.deployments("waiting"))).status == 404


async def test_the_pods_of_a_job_are_kept_unless_the_deletion_says_otherwise(api: Client, space: Space) -> None:
    await api.made(space.jobs(), job())
    answer = await api.delete(space.jobs("j"))
    assert answer.body["metadata"]["finalizers"] == ["orphan"]
    await api.patch(space.jobs("j"), {"metadata": {"finalizers": None}})


async def test_a_watch_shows_workloads(api: Client, space: Space) -> None:
    version = (await api.get(space.deployments())).body["metadata"]["resourceVersion"]
    async with api.watch(space.deployments(), resourceVersion=version) as watch:
        await api.made(space.deployments(), deployment())
        assert (await watch.expect("ADDED"))["kind"] == "Deployment"
        await api.patch(space.deployments("d", "scale"), {"spec": {"replicas": 3}}, MERGE)
        # A deployment controller that runs beside this suite writes the status as well.
        while (await watch.expect("MODIFIED"))["spec"]["replicas"] != 3:
            pass
        await api.delete(space.deployments("d"), {"propagationPolicy": "Background"})
        while (await watch.next_change())["type"] != "DELETED":
            pass


@pytest.mark.parametrize(
    ("group", "plural", "columns", "cells"),
    [
        ("apps", "deployments", ["Name", "Ready", "Up-to-date", "Available", "Age"], ["d", "0/1", 0, 0]),
        ("apps", "replicasets", ["Name", "Desired", "Current", "Ready", "Age"], ["d", 1, 0, 0]),
        ("batch", "jobs", ["Name", "Status", "Completions", "Duration", "Age"], ["d", "Running", "0/1", ""]),
    ],
)
async def test_kubectl_gets_tables_of_workloads(
    api: Client, space: Space, group: str, plural: str, columns: list[str], cells: list[object]
) -> None:
    path = space.grouped(group, plural)
    await api.made(path, job("d") if plural == "jobs" else deployment())
    found = (await api.ask("GET", path, accept=TABLE)).body
    assert [each["name"] for each in found["columnDefinitions"] if each["priority"] == 0] == columns
    assert found["rows"][0]["cells"][: len(cells)] == cells


async def test_a_pod_that_is_on_no_node_has_an_empty_log(api: Client, space: Space) -> None:
    body = pod()
    body["spec"]["containers"].append({"name": "d", "image": "busybox:1"})
    await api.made(space.pods(), body)
    answer = await api.get(space.pods("p", "log"), container="d")
    assert (answer.status, answer.body) == (204, "")
    assert (await api.get(space.pods("p", "log"))).status == 400
    assert (await api.get(space.pods("p", "log"), container="x")).status == 400
    assert (await api.get(space.pods("nobody", "log"))).status == 404
