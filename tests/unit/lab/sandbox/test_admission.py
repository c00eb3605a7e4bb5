"""Admission beyond the contract: services, order, reinvocation, dry runs, deletions, bindings, validating webhooks."""

from __future__ import annotations

import base64
import json
import ssl
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import trustme
from aiohttp import web

from tessera_lab.sandbox.api.kinds import PODS
from tessera_lab.sandbox.api.server import ApiServer, ServerOptions
from tests.contract.client import Client, Json, client
from tests.contract.manifests import binding, pod

MUTATING = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
VALIDATING = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
PODS_PATH = "/api/v1/namespaces/default/pods"

EVERYTHING: Json = {"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/*"]}


def _allowing(_: Json) -> Json:
    return {"allowed": True}


class Service:
    """Answers by path: each path has its own rule. `serve` says where the Service hooks/tessera is."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Json]] = []
        self.answers: dict[str, Callable[[Json], Any]] = {}
        self.ca = ""
        self.port = 0

    async def handle(self, request: web.Request) -> web.Response:
        review = await request.json()
        self.asked.append((request.path, review["request"]))
        rule = self.answers.get(request.path, _allowing)
        answer = rule(review["request"])
        if isinstance(answer, web.Response):
            return answer
        response = {"uid": review["request"]["uid"]} | answer
        return web.json_response({"apiVersion": review["apiVersion"], "kind": "AdmissionReview", "response": response})


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    found = Service()
    authority = trustme.CA()
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(tls)
    app = web.Application()
    app.router.add_post("/{path:.*}", found.handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
    found.port = runner.addresses[0][1]
    found.ca = base64.b64encode(authority.cert_pem.bytes()).decode()
    yield found
    await runner.cleanup()


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with ApiServer(ServerOptions(seed=1)) as running:
        yield running


@pytest.fixture
async def api(server: ApiServer) -> AsyncIterator[Client]:
    async with client(server.kubeconfig()) as speaking:
        yield speaking


def webhook(service: Service, path: str = "hook", **changes: Any) -> Json:
    return {
        "name": f"{path}.tessera.io",
        "clientConfig": {"url": f"https://127.0.0.1:{service.port}/{path}", "caBundle": service.ca},
        "rules": [EVERYTHING],
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    } | changes


async def register(api: Client, *webhooks: Json, path: str = MUTATING, name: str = "w") -> None:
    await api.made(path, {"metadata": {"name": name}, "webhooks": list(webhooks)})


def adding(key: str, value: str = "1") -> Callable[[Json], Json]:
    def answer(request: Json) -> Json:
        held = request["object"]["metadata"].get("annotations")
        operations: list[Json] = [] if held else [{"op": "add", "path": "/metadata/annotations", "value": {}}]
        operations.append({"op": "add", "path": f"/metadata/annotations/{key}", "value": value})
        patch = base64.b64encode(json.dumps(operations).encode()).decode()
        return {"allowed": True, "patchType": "JSONPatch", "patch": patch}

    return answer


async def test_webhooks_run_in_order_and_see_what_the_others_did(api: Client, service: Service) -> None:
    again = webhook(service, "one", reinvocationPolicy="IfNeeded")
    await register(api, webhook(service, "two"), webhook(service, "three"), name="b")
    await register(api, again, name="a")
    service.answers |= {"/one": adding("one"), "/two": adding("two")}
    await api.made(PODS_PATH, pod())
    assert [path for path, _ in service.asked] == ["/one", "/two", "/three", "/one"]
    assert service.asked[2][1]["object"]["metadata"]["annotations"] == {"one": "1", "two": "1"}


async def test_validating_webhooks_see_the_result_and_may_refuse(api: Client, service: Service) -> None:
    await register(api, webhook(service, "change"))
    await register(api, webhook(service, "check"), path=VALIDATING)
    service.answers |= {
        "/change": adding("a"),
        "/check": lambda request: {"allowed": "a" not in request["object"]["metadata"]["annotations"]},
    }
    answer = await api.post(PODS_PATH, pod())
    assert (answer.status, answer.message) == (
        400,
        'admission webhook "check.tessera.io" denied the request without explanation',
    )


async def test_updates_deletions_and_bindings_are_reviewed(api: Client, service: Service) -> None:
    await api.made(PODS_PATH, pod())
    await register(api, webhook(service))
    await api.patch(f"{PODS_PATH}/p", {"metadata": {"labels": {"a": "1"}}})
    await api.patch(f"{PODS_PATH}/p/status", {"status": {"phase": "Running"}})
    service.answers["/hook"] = adding("bound")
    assert (await api.post(f"{PODS_PATH}/p/binding", binding("n"))).status == 201
    service.answers.clear()
    await api.delete(f"{PODS_PATH}/p")
    requests = [request for _, request in service.asked]
    assert [(each["operation"], each.get("subResource", ""), each["kind"]["kind"]) for each in requests] == [
        ("UPDATE", "", "Pod"),
        ("UPDATE", "status", "Pod"),
        ("CREATE", "binding", "Binding"),
        ("DELETE", "", "Pod"),
    ]
    assert requests[0]["oldObject"]["metadata"].get("labels") is None
    assert requests[0]["object"]["metadata"]["labels"] == {"a": "1"}
    assert (requests[3]["object"], requests[3]["oldObject"]["metadata"]["annotations"]) == (None, {"bound": "1"})


async def test_a_pod_that_changes_while_webhooks_are_asked(server: ApiServer, api: Client, service: Service) -> None:
    await api.made(PODS_PATH, pod())
    old = (await api.get(f"{PODS_PATH}/p")).body
    await register(api, webhook(service, rules=[EVERYTHING | {"operations": ["UPDATE"]}]))
    overtaking = iter(("first", "second", *(f"more-{i}" for i in range(100))))

    def overtake(request: Json) -> Json:
        stored = server.cluster.store.list(PODS)[0].copy()
        stored["metadata"].setdefault("labels", {})["by"] = next(overtaking)
        server.cluster.store.put(PODS, stored)
        service.answers["/hook"] = (lambda _: {"allowed": True}) if once else overtake
        return {"allowed": True}

    once = True
    service.answers["/hook"] = overtake
    answer = await api.patch(f"{PODS_PATH}/p", {"metadata": {"labels": {"mine": "1"}}})
    assert answer.body["metadata"]["labels"] == {"by": "first", "mine": "1"}
    service.answers["/hook"] = overtake
    old = answer.body
    assert (await api.put(f"{PODS_PATH}/p", old)).status == 409
    once = False
    service.answers["/hook"] = overtake
    assert (await api.patch(f"{PODS_PATH}/p", {"metadata": {"labels": {"mine": "2"}}})).status == 409
    service.answers["/hook"] = lambda _: (
        server.cluster.store.remove(server.cluster.store.list(PODS)[0]) and {"allowed": True}
    )
    assert (await api.patch(f"{PODS_PATH}/p", {"metadata": {"labels": {"mine": "3"}}})).status == 404


async def test_a_pod_that_goes_while_its_deletion_is_reviewed(server: ApiServer, api: Client, service: Service) -> None:
    await api.made(PODS_PATH, pod())
    await register(api, webhook(service))
    service.answers["/hook"] = lambda _: (
        server.cluster.store.remove(server.cluster.store.list(PODS)[0]) and {"allowed": True}
    )
    assert (await api.delete(f"{PODS_PATH}/p")).status == 404


@pytest.mark.parametrize(
    ("changes", "asked"),
    [
        ({}, True),
        ({"rules": []}, False),
        ({"rules": [EVERYTHING | {"apiGroups": ["apps"]}]}, False),
        ({"rules": [EVERYTHING | {"apiVersions": ["v2"]}]}, False),
        ({"rules": [EVERYTHING | {"operations": ["UPDATE"]}]}, False),
        ({"rules": [EVERYTHING | {"resources": ["pods/status"]}]}, False),
        ({"rules": [EVERYTHING | {"resources": ["nodes", "pods/*"]}]}, True),
        ({"rules": [EVERYTHING | {"scope": "Cluster"}]}, False),
        ({"rules": [EVERYTHING | {"scope": "Namespaced"}]}, True),
        ({"namespaceSelector": {"matchLabels": {"team": "a"}}}, False),
        ({"namespaceSelector": {"matchExpressions": [{"key": "team", "operator": "NotIn", "values": ["a"]}]}}, True),
        ({"objectSelector": {"matchLabels": {"gpu": "yes"}}}, True),
        ({"objectSelector": {"matchLabels": {"gpu": "no"}}}, False),
    ],
)
async def test_who_is_asked(api: Client, service: Service, changes: Json, asked: bool) -> None:
    await register(api, webhook(service, **changes))
    await api.made(PODS_PATH, pod(labels={"gpu": "yes"}))
    assert bool(service.asked) is asked


async def test_namespaces_are_selected_by_their_own_labels_and_nodes_always(api: Client, service: Service) -> None:
    await register(api, webhook(service, namespaceSelector={"matchLabels": {"team": "a"}}))
    await api.made("/api/v1/namespaces", {"metadata": {"name": "x", "labels": {"team": "a"}}})
    await api.made("/api/v1/namespaces", {"metadata": {"name": "y"}})
    await api.made("/api/v1/nodes", {"metadata": {"name": "n"}})
    await register(api, webhook(service, "second"), name="z")
    assert [request["name"] for _, request in service.asked] == ["x", "n"]


REVIEW = {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1"}


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (web.Response(status=503, text="busy"), "503"),
        (web.Response(body=b"{"), "not valid JSON"),
        (web.json_response([]), "did not include response"),
        (web.json_response({"response": {}}), "expected webhook response of admission.k8s.io/v1"),
        (web.json_response(REVIEW | {"response": {"uid": 7}}), "cannot be read"),
        ({"allowed": True, "patch": "W10=", "patchType": "Merge"}, "invalid response.patchType"),
        (
            {"allowed": True, "patch": "W3sib3AiOiJhZGQiLCJwYXRoIjoiIiwidmFsdWUiOjF9XQ==", "patchType": "JSONPatch"},
            "patch",
        ),
    ],
)
async def test_an_answer_that_cannot_be_used(api: Client, service: Service, answer: Any, said: str) -> None:
    await register(api, webhook(service))
    service.answers["/hook"] = lambda _: answer
    refused = await api.post(PODS_PATH, pod())
    assert (refused.status, said in refused.message) == (500, True), refused.message


async def test_a_patch_of_a_binding_must_leave_an_object_and_a_deletion_has_none(api: Client, service: Service) -> None:
    await api.made(PODS_PATH, pod())
    await register(api, webhook(service))
    whole = base64.b64encode(b'[{"op":"add","path":"","value":1}]').decode()
    service.answers["/hook"] = lambda _: {"allowed": True, "patchType": "JSONPatch", "patch": whole}
    answer = await api.post(f"{PODS_PATH}/p/binding", binding("n"))
    assert (answer.status, "leaves no object" in answer.message) == (500, True)
    answer = await api.delete(f"{PODS_PATH}/p")
    assert (answer.status, "no object to patch" in answer.message) == (500, True)


@pytest.mark.parametrize(
    ("client_config", "said"),
    [
        ({"url": "http://127.0.0.1:1/x"}, "is not an https URL"),
        ({"url": "https://127.0.0.1:1/x", "caBundle": "!"}, "unable to load root certificates"),
        ({"url": "https://127.0.0.1:1/x"}, "Cannot connect"),
        ({"url": "https://["}, "Invalid"),
    ],
)
async def test_an_address_that_cannot_be_called(api: Client, service: Service, client_config: Json, said: str) -> None:
    await register(api, webhook(service, clientConfig=client_config))
    answer = await api.post(PODS_PATH, pod())
    assert (answer.status, answer.reason) == (500, "InternalError")
    assert said in answer.message


async def test_a_slow_webhook_runs_out_of_time(
    api: Client, service: Service, server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await register(api, webhook(service))

    async def late(*_: Any) -> bytes:
        raise TimeoutError

    monkeypatch.setattr(server.cluster.caller, "_post", late)
    answer = await api.post(PODS_PATH, pod())
    assert "context deadline exceeded" in answer.message


async def test_certificates_that_rotate_do_not_pile_up(api: Client, server: ApiServer, service: Service) -> None:
    await register(api, webhook(service))
    await api.made(PODS_PATH, pod())
    caller = server.cluster.caller
    for index in range(70):
        caller._contexts[f"old-{index}"] = caller._contexts[service.ca]
    del caller._contexts[service.ca]
    await api.made(PODS_PATH, pod("q"))
    assert len(caller._contexts) == 64


async def test_a_configuration_has_defaults(api: Client, service: Service) -> None:
    await register(api, webhook(service))
    (found,) = (await api.get(f"{MUTATING}/w")).body["webhooks"]
    assert found["failurePolicy"] == "Fail"
    assert found["reinvocationPolicy"] == "Never"
    bad = webhook(service, namespaceSelector={"matchExpressions": [{"key": "a", "operator": "Like"}]})
    assert (await api.post(MUTATING, {"metadata": {"name": "x"}, "webhooks": [bad]})).status == 400
