"""The server as a whole: what is special to the embedded one, beyond the contract."""

from __future__ import annotations

import asyncio
import base64
import ssl
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from cryptography import x509

from tessera.sandbox.admission import User
from tessera.sandbox.certificates import for_loopback
from tessera.sandbox.faults import Delay, Drop, Fail, Hold, LoseAnswer
from tessera.sandbox.kinds import NAMESPACES, NODES, PODS
from tessera.sandbox.rest import Pace
from tessera.sandbox.server import ApiServer, Options
from tests.contract.speaking import APPLY, JSON_PATCH, TABLE, Client, Json, client
from tests.contract.test_api_contract import binding, pod

PODS_PATH = "/api/v1/namespaces/default/pods"
MAPS_PATH = "/api/v1/namespaces/default/configmaps"


async def version(api: Client, path: str = PODS_PATH) -> str:
    return str((await api.get(path)).body["metadata"]["resourceVersion"])


async def test_tls_and_a_token_are_in_the_kubeconfig(tmp_path: Path) -> None:
    async with ApiServer(Options(tls=True, token="t0k", host="127.0.0.1")) as server:
        path = tmp_path / "kubeconfig"
        server.write_kubeconfig(path)
        assert path.stat().st_mode & 0o077 == 0
        async with client(yaml.safe_load(path.read_text())) as api:
            assert (await api.get("/readyz")).body == "ok"
            assert (await api.post("/apis/authentication.k8s.io/v1/selfsubjectreviews", {})).body["status"] == {
                "userInfo": {"username": "system:admin", "groups": ["system:masters", "system:authenticated"]}
            }
        stranger = server.kubeconfig() | {"users": [{"name": "tessera-sandbox", "user": {"token": "wrong"}}]}
        async with client(stranger) as api:
            answer = await api.get(PODS_PATH)
            assert (answer.status, answer.reason) == (401, "Unauthorized")
        untrusting = aiohttp.TCPConnector(ssl=ssl.create_default_context())
        async with aiohttp.ClientSession(connector=untrusting) as session:
            with pytest.raises(aiohttp.ClientConnectorCertificateError):
                await session.get(server.url)


async def test_further_users_have_tokens_of_their_own() -> None:
    async with ApiServer(Options(users={"k": User("kubelet", ("nodes",))})) as server:
        headers = {"Authorization": "Bearer k"}
        url = f"{server.url}/apis/authentication.k8s.io/v1/selfsubjectreviews"
        async with aiohttp.ClientSession(headers=headers) as session, session.post(url, json={}) as answer:
            assert (await answer.json())["status"]["userInfo"] == {"username": "kubelet", "groups": ["nodes"]}


async def test_the_same_seed_gives_the_same_cluster() -> None:
    first, second = (ApiServer(Options(seed=7, now=lambda: 0.0)).cluster.store for _ in range(2))
    assert [each.object for each in first.list(NAMESPACES)] == [each.object for each in second.list(NAMESPACES)]


async def test_state_survives_a_restart_on_the_same_port(server: ApiServer, api: Client) -> None:
    await api.made(PODS_PATH, pod())
    url = server.url
    await server.stop()
    with pytest.raises(aiohttp.ClientConnectorError):
        await api.get(PODS_PATH)
    await server.start()
    assert server.url == url
    assert (await api.get(f"{PODS_PATH}/p")).status == 200


async def test_a_port_that_is_taken_is_an_error(server: ApiServer) -> None:
    second = ApiServer(Options(port=int(server.url.rsplit(":", 1)[1])))
    with pytest.raises(OSError, match="in use"):
        await second.start()
    await second.stop()


# Watches


async def test_a_version_that_is_forgotten_is_gone(server: ApiServer, api: Client) -> None:
    old = await version(api)
    server.faults.compact()
    async with api.watch(PODS_PATH, resourceVersion=old) as watch:
        event = await watch.next()
        assert event is not None
        assert (event["type"], event["object"]["code"], event["object"]["reason"]) == ("ERROR", 410, "Expired")
        assert await watch.next() is None
    async with api.watch(PODS_PATH, resourceVersion=await version(api)) as watch:
        await api.made(PODS_PATH, pod())
        assert (await watch.expect("ADDED"))["metadata"]["name"] == "p"


async def test_a_short_memory_ends_in_gone() -> None:
    async with ApiServer(Options(history_length=2)) as server, client(server.kubeconfig()) as api:
        old = await version(api)
        for name in "abc":
            await api.made(PODS_PATH, pod(name))
        async with api.watch(PODS_PATH, resourceVersion=old) as watch:
            assert ((await watch.next()) or {})["object"]["code"] == 410


async def test_a_version_from_the_future_is_refused(api: Client) -> None:
    answer = await api.get(PODS_PATH, resourceVersion="99999")
    assert (answer.status, answer.reason) == (504, "Timeout")
    assert answer.headers["Retry-After"] == "1"
    async with api.watch(PODS_PATH, resourceVersion="99999") as watch:
        assert ((await watch.next()) or {})["object"]["code"] == 504


async def test_bookmarks_carry_the_version_on() -> None:
    pace = Pace(bookmark_every_s=0.02)
    async with ApiServer(Options(pace=pace)) as server, client(server.kubeconfig()) as api:
        start = await version(api)
        made = await api.made(MAPS_PATH, {"metadata": {"name": "c"}})
        async with api.watch(PODS_PATH, resourceVersion=start, allowWatchBookmarks="true") as watch:
            event = await watch.next()
            assert event == {
                "type": "BOOKMARK",
                "object": {
                    "kind": "Pod",
                    "apiVersion": "v1",
                    "metadata": {"resourceVersion": made["metadata"]["resourceVersion"]},
                },
            }


async def test_initial_events_end_with_a_bookmark(api: Client) -> None:
    await api.made(PODS_PATH, pod())
    query = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan", "allowWatchBookmarks": "true"}
    async with api.watch(PODS_PATH, **query) as watch:
        assert ((await watch.next()) or {})["type"] == "ADDED"
        event = await watch.next()
        assert event is not None
        assert event["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}


async def test_a_watch_of_a_table_shows_rows(api: Client) -> None:
    async with api.session.get(api.url + PODS_PATH, params={"watch": "1"}, headers={"Accept": TABLE}) as response:
        await api.made(PODS_PATH, pod())
        event = yaml.safe_load(await response.content.readline())
    assert event["object"]["rows"][0]["cells"][0] == "p"


async def test_watches_are_cut_or_ended_on_demand(server: ApiServer, api: Client) -> None:
    async with api.watch(PODS_PATH) as watch, api.watch("/api/v1/nodes") as other:
        assert server.faults.cut_watches(PODS) == 1
        with pytest.raises(aiohttp.ClientError):
            await watch.next()
        assert server.faults.end_watches(NODES) == 1
        assert await other.next() is None


async def test_a_client_that_leaves_is_forgotten(server: ApiServer, api: Client) -> None:
    async with api.watch(PODS_PATH):
        assert len(server.cluster.hub.all()) == 1
    async with asyncio.timeout(5):
        while server.cluster.hub.all():
            await api.get("/readyz")


async def test_stopping_ends_watches() -> None:
    server = ApiServer()
    await server.start()
    async with client(server.kubeconfig()) as api, api.watch(PODS_PATH) as watch:
        await server.stop()
        assert await watch.next() is None


# Lists


async def test_a_page_of_a_forgotten_list_is_gone(server: ApiServer, api: Client) -> None:
    for name in "abc":
        await api.made(PODS_PATH, pod(name))
    token = (await api.get(PODS_PATH, limit="1")).body["metadata"]["continue"]
    assert (await api.get(MAPS_PATH, limit="1", **{"continue": token})).status == 400
    whole = (await api.get(PODS_PATH, **{"continue": token})).body
    assert [each["metadata"]["name"] for each in whole["items"]] == ["b", "c"]
    server.faults.compact()
    answer = await api.get(PODS_PATH, limit="1", **{"continue": token})
    assert (answer.status, answer.reason) == (410, "Expired")


async def test_many_unfinished_lists_push_out_the_oldest(api: Client) -> None:
    for name in "ab":
        await api.made(PODS_PATH, pod(name))
    tokens = [(await api.get(PODS_PATH, limit="1")).body["metadata"]["continue"] for _ in range(33)]
    assert (await api.get(PODS_PATH, limit="1", **{"continue": tokens[0]})).status == 410
    assert (await api.get(PODS_PATH, limit="1", **{"continue": tokens[1]})).status == 200


@pytest.mark.parametrize("token", ["x", "!!!", base64.b64encode(b'{"version":1,"shown":-1,"number":1}').decode()])
async def test_a_forged_page_token_is_refused(api: Client, token: str) -> None:
    assert (await api.get(PODS_PATH, **{"continue": token})).status == 400


async def test_an_exact_version_is_the_present_or_gone(api: Client) -> None:
    now = await version(api)
    assert (await api.get(PODS_PATH, resourceVersion=now, resourceVersionMatch="Exact")).status == 200
    assert (await api.get(PODS_PATH, resourceVersion="1", resourceVersionMatch="Exact")).status == 410


async def test_metadata_alone_can_be_asked_for(api: Client) -> None:
    await api.made(PODS_PATH, pod())
    accept = "application/json;as=PartialObjectMetadata{};v=v1;g=meta.k8s.io"
    found = (await api.ask("GET", PODS_PATH, accept=accept.format("List"))).body
    assert found["kind"] == "PartialObjectMetadataList"
    assert set(found["items"][0]) == {"kind", "apiVersion", "metadata"}
    one = (await api.ask("GET", f"{PODS_PATH}/p", accept=accept.format(""))).body
    assert one == found["items"][0]


@pytest.mark.parametrize(
    "accept", ["text/html", "application/json;as=Table;v=v9;g=meta.k8s.io", "application/json;as=X"]
)
async def test_a_form_that_cannot_be_written_is_refused(api: Client, accept: str) -> None:
    assert (await api.ask("GET", PODS_PATH, accept=accept)).status == 406


# Requests that make no sense


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nothing", 404),
        ("GET", "/api/v1/pods/p", 404),
        ("GET", "/api/v1/namespaces/default/nodes", 404),
        ("GET", f"{PODS_PATH}/p/logs", 404),
        ("GET", f"{PODS_PATH}/p/status/x", 404),
        ("GET", "/openapi/v2", 404),
        ("GET", f"{PODS_PATH}/p/binding", 405),
        ("POST", "/api/v1/pods", 405),
        ("POST", f"{PODS_PATH}/p", 405),
        ("POST", "/version", 405),
        ("PUT", PODS_PATH, 405),
        ("PUT", f"{PODS_PATH}/p/binding", 405),
        ("DELETE", f"{PODS_PATH}/p/status", 405),
        ("OPTIONS", PODS_PATH, 405),
        ("GET", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", 405),
        ("PUT", f"{PODS_PATH}/p", 404),
    ],
)
async def test_a_path_or_method_that_is_not_served(api: Client, method: str, path: str, status: int) -> None:
    body: Json | None = {} if method in ("POST", "PUT") else None
    answer = await api.ask(method, path, body)
    assert answer.status == status
    assert answer.body["kind"] == "Status"


@pytest.mark.parametrize(
    ("method", "path", "body", "query"),
    [
        ("GET", PODS_PATH, None, {"resourceVersion": "9" * 30}),
        ("GET", PODS_PATH, None, {"watch": "1", "timeoutSeconds": "soon"}),
        ("DELETE", f"{PODS_PATH}/p", {"kind": "Pod"}, {}),
        ("DELETE", f"{PODS_PATH}/p", {"gracePeriodSeconds": "x"}, {}),
        ("DELETE", f"{PODS_PATH}/p", [], {}),
    ],
)
async def test_parameters_that_make_no_sense(
    api: Client, method: str, path: str, body: Json | None, query: dict[str, str]
) -> None:
    assert (await api.ask(method, path, body, **query)).status == 400


async def test_a_huge_body_is_refused(api: Client) -> None:
    answer = await api.ask("POST", PODS_PATH, b"x" * (4 * 1024 * 1024))
    assert (answer.status, answer.reason) == (413, "RequestEntityTooLarge")


async def test_yaml_is_read_too(api: Client) -> None:
    body = b"metadata: {name: c}\ndata: {a: '1'}\n"
    answer = await api.ask("POST", MAPS_PATH, body, media="application/yaml")
    assert answer.body["data"] == {"a": "1"}


async def test_a_fault_of_the_server_itself_is_a_500(
    server: ApiServer, api: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server.verbs, "get", None)
    answer = await api.get(f"{PODS_PATH}/p")
    assert (answer.status, answer.reason) == (500, "InternalError")
    assert "a request was not answered" in caplog.text


# Faults


async def test_the_next_requests_fail_and_then_no_more(server: ApiServer, api: Client) -> None:
    server.faults.next(Fail(429, retry_after_s=3), method="get", path="/pods$", times=2)
    assert (await api.get("/api/v1/nodes")).status == 200
    for _ in range(2):
        answer = await api.get(PODS_PATH)
        assert (answer.status, answer.reason, answer.headers["Retry-After"]) == (429, "TooManyRequests", "3")
        assert answer.body["details"] == {"retryAfterSeconds": 3}
    assert (await api.get(PODS_PATH)).status == 200
    server.faults.next(Fail(500))
    server.faults.clear()
    assert (await api.get(PODS_PATH)).status == 200


async def test_a_dropped_request_has_no_effect_and_a_lost_answer_has(server: ApiServer, api: Client) -> None:
    server.faults.next(Drop(), method="POST")
    with pytest.raises(aiohttp.ClientError):
        await api.post(PODS_PATH, pod("a"))
    server.faults.next(LoseAnswer(), method="POST", path="/binding")
    await api.made(PODS_PATH, pod("b"))
    with pytest.raises(aiohttp.ClientError):
        await api.post(f"{PODS_PATH}/b/binding", binding("n", "b"))
    found = (await api.get(PODS_PATH)).body["items"]
    assert [(each["metadata"]["name"], each["spec"]["nodeName"]) for each in found] == [("b", "n")]
    assert [each.status for each in server.journal if each.writes] == [0, 201, 0]


@pytest.mark.parametrize("after_effect", [False, True])
async def test_a_held_request_waits_before_or_after_its_effect(
    server: ApiServer, api: Client, after_effect: bool
) -> None:
    hold = Hold(asyncio.Event(), asyncio.Event(), after_effect=after_effect)
    server.faults.next(hold, method="POST")
    waiting = asyncio.create_task(api.post(PODS_PATH, pod()))
    await hold.reached.wait()
    assert (await api.get(f"{PODS_PATH}/p")).status == (200 if after_effect else 404)
    hold.release.set()
    assert (await waiting).status == 201


async def test_a_delayed_request_is_answered(server: ApiServer, api: Client) -> None:
    server.faults.next(Delay(0.0))
    assert (await api.get(PODS_PATH)).status == 200
    assert len(server.journal) == 1
    server.journal.clear()
    assert len(server.journal) == 0


# Objects


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


@pytest.mark.parametrize("host", ["10.0.0.1", "api.example"])
def test_a_certificate_names_the_host_it_is_for(host: str) -> None:
    found = x509.load_pem_x509_certificate(for_loopback(host).certificate)
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert host in {str(each.value) for each in names}
