"""What bind and the nodes rely on: one write that binds, preconditions, and how pods end."""

from __future__ import annotations

import asyncio

import pytest

from tests.contract.client import PATIENCE_S, Client, Json
from tests.contract.conftest import Space
from tests.contract.manifests import binding, pod


async def bound(api: Client, space: Space, node: Json) -> None:
    """Binds the pod and waits until the server's own cache has it.

    A deletion that comes sooner may be decided on the pod as it was before, and then kube-apiserver removes it at once.
    """
    assert (await api.post(space.pods("p", "binding"), binding(node["metadata"]["name"]))).status == 201
    async with asyncio.timeout(PATIENCE_S):
        while "nodeName" not in (await api.get(space.pods("p"), resourceVersion="0")).body["spec"]:
            pass


async def test_a_binding_writes_node_annotations_and_labels_at_once(api: Client, space: Space, node: Json) -> None:
    made = await api.made(space.pods(), pod(annotations={"a": "1", "b": "1"}, labels={"l": "1"}))
    node_name, uid = node["metadata"]["name"], made["metadata"]["uid"]
    async with api.watch(space.pods(), resourceVersion=made["metadata"]["resourceVersion"]) as watch:
        body = binding(node_name, uid=uid, annotations={"b": "2", "c": "2"})
        answer = await api.post(space.pods("p", "binding"), body)
        assert (answer.status, answer.body["status"]) == (201, "Success")
        bound = await watch.expect("MODIFIED")
    assert bound["spec"]["nodeName"] == node_name
    assert bound["metadata"]["annotations"] == {"a": "1", "b": "2", "c": "2"}
    conditions = {each["type"]: each["status"] for each in bound["status"]["conditions"]}
    assert conditions == {"PodScheduled": "True"}


async def test_labels_of_a_binding_reach_the_pod(api: Client, space: Space, node: Json) -> None:
    await api.made(space.pods(), pod(labels={"l": "1"}))
    body = binding(node["metadata"]["name"], labels={"m": "2"})
    assert (await api.post(space.pods("p", "binding"), body)).status == 201
    assert (await api.get(space.pods("p"))).body["metadata"]["labels"] == {"l": "1", "m": "2"}


async def test_a_pod_is_bound_once(api: Client, space: Space, node: Json) -> None:
    await api.made(space.pods(), pod())
    name = node["metadata"]["name"]
    assert (await api.post(space.pods("p", "binding"), binding(name))).status == 201
    again = await api.post(space.pods("p", "binding"), binding(name))
    assert (again.status, again.reason) == (409, "Conflict")
    assert f'pod p is already assigned to node "{name}"' in again.message


async def test_a_binding_meant_for_an_earlier_pod_is_refused(api: Client, space: Space, node: Json) -> None:
    await api.made(space.pods(), pod())
    body = binding(node["metadata"]["name"], uid="11111111-2222-3333-4444-555555555555", annotations={"a": "1"})
    answer = await api.post(space.pods("p", "binding"), body)
    assert (answer.status, answer.reason) == (409, "Conflict")
    found = (await api.get(space.pods("p"))).body
    assert "nodeName" not in found["spec"]
    assert "annotations" not in found["metadata"]


async def test_a_binding_for_an_earlier_version_is_refused(api: Client, space: Space, node: Json) -> None:
    """However late it arrives: this is what fences a decider that another one has replaced."""
    made = (await api.made(space.pods(), pod()))["metadata"]
    touched = (await api.patch(space.pods("p"), {"metadata": {"annotations": {"a": "1"}}})).body["metadata"]
    earlier, name = {"uid": made["uid"], "resourceVersion": made["resourceVersion"]}, node["metadata"]["name"]
    answer = await api.post(space.pods("p", "binding"), binding(name, **earlier, annotations={"b": "2"}))
    assert (answer.status, answer.reason) == (409, "Conflict")
    assert answer.message == (
        'Operation cannot be fulfilled on pods "p": StorageError: invalid object, Code: 4, '
        f"Key: /registry/pods/{space.name}/p, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: "
        f"ResourceVersion in precondition: {made['resourceVersion']}, "
        f"ResourceVersion in object meta: {touched['resourceVersion']}"
    )
    found = (await api.get(space.pods("p"))).body
    assert "nodeName" not in found["spec"]
    assert found["metadata"]["annotations"] == {"a": "1"}
    current = earlier | {"resourceVersion": touched["resourceVersion"]}
    assert (await api.post(space.pods("p", "binding"), binding(name, **current))).status == 201


async def test_a_patch_that_changes_nothing_leaves_the_version(api: Client, space: Space) -> None:
    """So a touch needs a value that the pod does not have yet."""
    await api.made(space.pods(), pod(annotations={"a": "1"}))
    before = (await api.get(space.pods("p"))).body["metadata"]["resourceVersion"]
    same = await api.patch(space.pods("p"), {"metadata": {"annotations": {"a": "1"}}})
    assert same.body["metadata"]["resourceVersion"] == before


async def test_pods_without_a_node_can_be_listed(api: Client, space: Space, node: Json) -> None:
    for name in ("p", "q"):
        await api.made(space.pods(), pod(name))
    assert (await api.post(space.pods("q", "binding"), binding(node["metadata"]["name"], "q"))).status == 201
    found = (await api.get(space.pods(), fieldSelector="spec.nodeName=")).body["items"]
    assert [each["metadata"]["name"] for each in found] == ["p"]


async def test_bindings_that_cannot_be_are_refused(api: Client, space: Space) -> None:
    assert (await api.post(space.pods("p", "binding"), binding("n"))).status == 404
    await api.made(space.pods(), pod())
    wrong_kind = binding("n") | {"target": {"kind": "Pod", "name": "n"}}
    assert (await api.post(space.pods("p", "binding"), wrong_kind)).status == 500
    assert (await api.post(space.pods("p", "binding"), binding(""))).status == 500
    assert (await api.post(space.pods("p", "binding"), binding("n", "other"))).status == 400
    nameless = await api.post(space.pods("p", "binding"), {"target": {"name": "n"}})
    assert (nameless.status, nameless.message) == (400, "name in URL does not match name in Binding object")


async def test_a_pod_that_is_being_deleted_is_not_bound(api: Client, space: Space, node: Json) -> None:
    await api.made(space.pods(), pod(finalizers=["tessera.io/test"]))
    assert (await api.delete(space.pods("p"))).status == 200
    answer = await api.post(space.pods("p", "binding"), binding(node["metadata"]["name"]))
    assert (answer.status, answer.reason) == (409, "Conflict")
    assert (await api.patch(space.pods("p"), {"metadata": {"finalizers": None}})).status == 200
    assert (await api.get(space.pods("p"))).status == 404


async def test_an_unbound_pod_is_deleted_at_once(api: Client, space: Space) -> None:
    await api.made(space.pods(), pod())
    options = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background"}
    assert (await api.delete(space.pods("p"), options)).status == 200
    assert (await api.get(space.pods("p"))).status == 404
    assert (await api.delete(space.pods("p"))).status == 404


async def test_a_bound_pod_is_deleted_by_its_node(api: Client, space: Space, node: Json) -> None:
    made = await api.made(space.pods(), pod())
    await bound(api, space, node)
    answer = await api.delete(space.pods("p"))
    assert answer.body["metadata"]["deletionGracePeriodSeconds"] == 30
    first = answer.body["metadata"]["deletionTimestamp"]
    assert (await api.delete(space.pods("p"))).body["metadata"]["deletionTimestamp"] == first
    shorter = (await api.delete(space.pods("p"), gracePeriodSeconds="5")).body["metadata"]
    assert shorter["deletionGracePeriodSeconds"] == 5
    assert shorter["deletionTimestamp"] < first
    final = {"gracePeriodSeconds": 0, "preconditions": {"uid": made["metadata"]["uid"]}}
    assert (await api.delete(space.pods("p"), final)).status == 200
    assert (await api.get(space.pods("p"))).status == 404


async def test_a_pod_that_has_ended_is_deleted_at_once(api: Client, space: Space, node: Json) -> None:
    await api.made(space.pods(), pod())
    await api.post(space.pods("p", "binding"), binding(node["metadata"]["name"]))
    await api.patch(space.pods("p", "status"), {"status": {"phase": "Succeeded"}})
    await api.delete(space.pods("p"))
    assert (await api.get(space.pods("p"))).status == 404


async def test_a_deletion_meant_for_an_earlier_pod_is_refused(api: Client, space: Space) -> None:
    await api.made(space.pods(), pod())
    answer = await api.delete(space.pods("p"), {"preconditions": {"uid": "11111111-2222-3333-4444-555555555555"}})
    assert (answer.status, answer.reason) == (409, "Conflict")
    assert (await api.get(space.pods("p"))).status == 200


async def test_a_collection_is_deleted_by_selector(api: Client, space: Space) -> None:
    for name, label in (("a", "x"), ("b", "x"), ("c", "y")):
        await api.made(space.pods(), pod(name, labels={"k": label}))
    assert (await api.delete(space.pods(), {"gracePeriodSeconds": 0}, labelSelector="k=x")).status == 200
    left = (await api.get(space.pods())).body["items"]
    assert [each["metadata"]["name"] for each in left] == ["c"]


@pytest.mark.parametrize(
    ("plural", "kind"),
    [("configmaps", "Status"), ("secrets", "Status"), ("serviceaccounts", "ServiceAccount"), ("pods", "Pod")],
)
async def test_a_deletion_answers_with_the_object_or_a_status(
    api: Client, space: Space, plural: str, kind: str
) -> None:
    body = pod() if plural == "pods" else {"metadata": {"name": "p"}}
    made = await api.made(space.of(plural), body)
    answer = await api.delete(space.of(plural, "p"))
    assert (answer.status, answer.body["kind"]) == (200, kind)
    if kind == "Status":
        assert answer.body["details"] == {"name": "p", "kind": plural, "uid": made["metadata"]["uid"]}
