"""The server as a whole: starting, TLS, tokens, requests that make no sense, faults on purpose."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import aiohttp
import pytest
import yaml
from cryptography import x509

from tessera_lab.sandbox.api.faults import Delay, Drop, Fail, Hold, LoseAnswer
from tessera_lab.sandbox.api.kinds import NAMESPACES
from tessera_lab.sandbox.api.server import ApiServer, ServerOptions, for_loopback
from tests.contract.client import Client, Json, client
from tests.contract.manifests import binding, pod

PODS_PATH = "/api/v1/namespaces/default/pods"
MAPS_PATH = "/api/v1/namespaces/default/configmaps"


async def test_tls_and_a_token_are_in_the_kubeconfig(tmp_path: Path) -> None:
    async with ApiServer(ServerOptions(tls=True, token="t0k", host="127.0.0.1")) as server:
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


async def test_the_same_seed_gives_the_same_cluster() -> None:
    first, second = (ApiServer(ServerOptions(seed=7, now=lambda: 0.0)).cluster.store for _ in range(2))
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
    second = ApiServer(ServerOptions(port=int(server.url.rsplit(":", 1)[1])))
    with pytest.raises(OSError, match="in use"):
        await second.start()
    await second.stop()


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
    assert "request failed" in caplog.text


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


@pytest.mark.parametrize("host", ["10.0.0.1", "api.example"])
def test_a_certificate_names_the_host_it_is_for(host: str) -> None:
    found = x509.load_pem_x509_certificate(for_loopback(host).certificate)
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert host in {str(each.value) for each in names}
