"""What informers and kubectl rely on: lists, selectors, pages, tables, discovery."""

from __future__ import annotations

import pytest

from tests.contract.client import TABLE, Client, Json
from tests.contract.conftest import Space
from tests.contract.manifests import pod


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ({"labelSelector": "k=x"}, "ab"),
        ({"labelSelector": "k==x,l"}, "b"),
        ({"labelSelector": "k!=x"}, "cd"),
        ({"labelSelector": "k in (x, y)"}, "abc"),
        ({"labelSelector": "k notin (x),k"}, "c"),
        ({"labelSelector": "!k"}, "d"),
        ({"fieldSelector": "metadata.name=c"}, "c"),
        ({"fieldSelector": "metadata.name!=c,status.phase=Pending"}, "abd"),
        ({"fieldSelector": "spec.nodeName="}, "abcd"),
        ({"fieldSelector": "spec.nodeName=n"}, ""),
        ({"labelSelector": "k=x", "fieldSelector": "metadata.name=b"}, "b"),
    ],
)
async def test_lists_are_selected(api: Client, space: Space, query: dict[str, str], names: str) -> None:
    labels: dict[str, Json] = {"a": {"k": "x"}, "b": {"k": "x", "l": "1"}, "c": {"k": "y"}, "d": {}}
    for name, held in labels.items():
        await api.made(space.pods(), pod(name, labels=held))
    answer = await api.get(space.pods(), **query)
    assert answer.body["kind"] == "PodList"
    assert "".join(each["metadata"]["name"] for each in answer.body["items"]) == names
    assert all("kind" not in each for each in answer.body["items"])


@pytest.mark.parametrize("query", [{"fieldSelector": "spec.image=x"}, {"labelSelector": "k in x"}, {"limit": "x"}])
async def test_selectors_that_make_no_sense_are_refused(api: Client, space: Space, query: dict[str, str]) -> None:
    assert (await api.get(space.pods(), **query)).status == 400


async def test_a_list_in_pages_shows_one_moment(api: Client, space: Space) -> None:
    path = space.of("secrets")
    for i in range(5):
        await api.made(path, {"metadata": {"name": f"s{i}"}})
    page = (await api.get(path, limit="2")).body
    assert page["metadata"]["remainingItemCount"] == 3
    await api.made(path, {"metadata": {"name": "s9"}})
    await api.delete(f"{path}/s3")
    names, version = [], page["metadata"]["resourceVersion"]
    while True:
        names += [each["metadata"]["name"] for each in page["items"]]
        if not page["metadata"].get("continue"):
            break
        page = (await api.get(path, limit="2", **{"continue": page["metadata"]["continue"]})).body
        assert page["metadata"]["resourceVersion"] == version
    assert names == ["s0", "s1", "s2", "s3", "s4"]


async def test_events_are_found_by_the_object_they_are_about(api: Client, space: Space) -> None:
    for name in ("p", "q"):
        about = {"kind": "Pod", "name": name, "namespace": space.name, "uid": f"uid-{name}"}
        body = {"metadata": {"name": f"{name}.1"}, "involvedObject": about, "reason": "Because", "type": "Warning"}
        await api.made(space.of("events"), body)
    query = f"involvedObject.name=p,involvedObject.namespace={space.name},involvedObject.uid=uid-p"
    found = (await api.get(space.of("events"), fieldSelector=query)).body["items"]
    assert [each["metadata"]["name"] for each in found] == ["p.1"]
    elsewhere = {"metadata": {"name": "x"}, "involvedObject": {"kind": "Pod", "name": "p", "namespace": "other"}}
    assert (await api.post(space.of("events"), elsewhere)).status == 422


async def test_kubectl_gets_a_table(api: Client, space: Space) -> None:
    await api.made(space.pods(), pod())
    table = (await api.ask("GET", space.pods(), accept=TABLE)).body
    assert (table["kind"], table["apiVersion"]) == ("Table", "meta.k8s.io/v1")
    shown = [each["name"] for each in table["columnDefinitions"] if each["priority"] == 0]
    assert shown == ["Name", "Ready", "Status", "Restarts", "Age"]
    (row,) = table["rows"]
    assert row["cells"][:3] == ["p", "0/1", "Pending"]
    assert row["object"]["kind"] == "PartialObjectMetadata"
    assert row["object"]["metadata"]["name"] == "p"


async def test_discovery_lists_what_is_served(api: Client) -> None:
    core = (await api.get("/api/v1")).body
    names = {each["name"] for each in core["resources"]}
    assert names >= {"pods", "pods/status", "pods/binding", "nodes", "nodes/status", "events", "secrets"}
    groups = {each["name"] for each in (await api.get("/apis")).body["groups"]}
    assert groups >= {"coordination.k8s.io", "admissionregistration.k8s.io"}
    assert (await api.get("/version")).body["major"] == "1"
    assert (await api.get("/readyz")).body == "ok"


async def test_an_administrator_may_do_everything(api: Client) -> None:
    attributes = {"verb": "create", "resource": "pods", "namespace": "default"}
    body = {"spec": {"resourceAttributes": attributes}}
    answer = await api.post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body)
    assert (answer.status, answer.body["status"]["allowed"]) == (201, True)
