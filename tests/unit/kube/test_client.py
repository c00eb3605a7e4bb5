from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from tessera import __version__
from tessera.kube.access import Access
from tessera.kube.client import JSON_PATCH, KubeClient
from tessera.kube.credentials import FixedHeaders, basic, bearer
from tessera.kube.errors import (
    ApiError,
    BadName,
    BadResponse,
    Unreachable,
    is_conflict,
    is_forbidden,
    is_not_found,
)
from tessera.kube.resources import NODES, PODS
from tests.support.event_loops import in_fake_time
from tests.support.network import (
    Answer,
    Exchange,
    RawServer,
    close_at_once,
    raw,
    refusal,
    reply,
    reset_at_once,
    silence,
    stream,
)

POD = PODS.path("team", "train-0")


class Meta(msgspec.Struct, frozen=True, rename="camel"):
    name: str = ""
    resource_version: str = ""
    labels: dict[str, str] | None = None


class Thing(msgspec.Struct, frozen=True):
    metadata: Meta = Meta()


def thing(name: str, version: str = "1") -> dict[str, Any]:
    return {"kind": "Pod", "apiVersion": "v1", "metadata": {"name": name, "resourceVersion": version}}


def page(*names: str, version: str = "9", more: str = "") -> Answer:
    metadata = {"resourceVersion": version, "continue": more}
    return reply(200, {"kind": "PodList", "metadata": metadata, "items": [thing(name) for name in names]})


def client_of(server: RawServer, **settings: Any) -> KubeClient:
    return KubeClient(Access(server.url), **settings)


@in_fake_time
async def test_an_object_that_may_be_missing_is_none_and_other_refusals_are_raised() -> None:
    answers = (reply(200, thing("train-0")), refusal(404, "NotFound"), refusal(403, "Forbidden"))
    async with RawServer(*answers) as server, client_of(server) as client:
        assert await client.find(POD, Thing) == Thing(Meta("train-0", "1"))
        assert await client.find(POD, Thing) is None
        with pytest.raises(ApiError) as error:
            await client.find(POD, Thing)
        assert is_forbidden(error.value)
        assert not is_not_found(error.value)
        assert not is_conflict(error.value)


@in_fake_time
async def test_an_object_is_read_as_the_type_that_is_asked_for() -> None:
    async with RawServer(reply(200, thing("train-0"))) as server, client_of(server) as client:
        assert await client.get(POD, Thing) == Thing(Meta("train-0", "1"))
    request = server.requests[0]
    assert (request.method, request.target, request.body) == ("GET", POD, b"")
    assert request.headers["user-agent"] == f"tessera/{__version__}"
    assert request.headers["accept"] == "application/json"


@in_fake_time
async def test_an_apiserver_behind_a_path_is_reached_there() -> None:
    async with (
        RawServer(reply(200, thing("a"))) as server,
        KubeClient(Access(f"{server.url}/k8s/clusters/c-1/")) as client,
    ):
        await client.get(PODS.path("team", "a b%2F"), Thing)
    assert server.requests[0].target == "/k8s/clusters/c-1/api/v1/namespaces/team/pods/a%20b%252F"


Call = Callable[[KubeClient], Any]


@pytest.mark.parametrize(
    ("call", "method", "target", "content_type", "body"),
    [
        (lambda c: c.create("/api/v1/nodes", {"a": 1}), "POST", "/api/v1/nodes", "application/json", {"a": 1}),
        (lambda c: c.create("/api/v1/nodes", b'{"b":2}'), "POST", "/api/v1/nodes", "application/json", {"b": 2}),
        (lambda c: c.replace(POD, Thing()), "PUT", POD, "application/json", msgspec.to_builtins(Thing())),
        (
            lambda c: c.patch(POD, {"metadata": {"labels": {"é": None}}}),
            "PATCH",
            POD,
            "application/merge-patch+json",
            {"metadata": {"labels": {"é": None}}},
        ),
        (
            lambda c: c.patch(POD, [{"op": "remove", "path": "/x"}], content_type=JSON_PATCH),
            "PATCH",
            POD,
            "application/json-patch+json",
            [{"op": "remove", "path": "/x"}],
        ),
        (lambda c: c.delete(POD), "DELETE", POD, "application/json", {"apiVersion": "v1", "kind": "DeleteOptions"}),
        (
            lambda c: c.delete(POD, uid="u1", grace_s=0),
            "DELETE",
            POD,
            "application/json",
            {
                "apiVersion": "v1",
                "kind": "DeleteOptions",
                "preconditions": {"uid": "u1"},
                "gracePeriodSeconds": 0,
            },
        ),
        (
            lambda c: c.bind("team", "train-0", uid="u1", node="n1", annotations={"a": "1"}, labels={"l": "2"}),
            "POST",
            f"{POD}/binding",
            "application/json",
            {
                "apiVersion": "v1",
                "kind": "Binding",
                "metadata": {
                    "name": "train-0",
                    "namespace": "team",
                    "uid": "u1",
                    "annotations": {"a": "1"},
                    "labels": {"l": "2"},
                },
                "target": {"apiVersion": "v1", "kind": "Node", "name": "n1"},
            },
        ),
        (
            lambda c: c.bind("team", "train-0", uid="u1", node="n1"),
            "POST",
            f"{POD}/binding",
            "application/json",
            {
                "apiVersion": "v1",
                "kind": "Binding",
                "metadata": {"name": "train-0", "namespace": "team", "uid": "u1"},
                "target": {"apiVersion": "v1", "kind": "Node", "name": "n1"},
            },
        ),
    ],
)
@in_fake_time
async def test_a_write_is_one_request(call: Call, method: str, target: str, content_type: str, body: Any) -> None:
    async with RawServer(reply(201, {"kind": "Status"})) as server, client_of(server) as client:
        assert await call(client) is None
    (request,) = server.requests
    assert (request.method, request.target, request.json) == (method, target, body)
    assert request.headers["content-type"] == content_type


@pytest.mark.parametrize(
    "call",
    [
        lambda c: c.create("/api/v1/nodes", {}, Thing),
        lambda c: c.replace("/api/v1/nodes/n", {}, Thing),
        lambda c: c.patch("/api/v1/nodes/n", {}, kind=Thing),
    ],
)
@in_fake_time
async def test_a_write_gives_back_the_object_where_a_type_is_named(call: Call) -> None:
    async with RawServer(reply(200, thing("n", "7"))) as server, client_of(server) as client:
        assert await call(client) == Thing(Meta("n", "7"))


@in_fake_time
async def test_a_list_is_read_page_by_page() -> None:
    script = page("a", "b", more="t1"), page("c", more="t/2=="), page("d", version="12")
    async with RawServer(*script) as server, client_of(server) as client:
        listing = await client.list("/api/v1/pods", Thing, field_selector="x=y", page_size=2)
    assert [item.metadata.name for item in listing.items] == ["a", "b", "c", "d"]
    assert listing.resource_version == "12"
    selectors = {"fieldSelector": "x=y", "limit": "2"}
    assert [request.query for request in server.requests] == [
        selectors,
        selectors | {"continue": "t1"},
        selectors | {"continue": "t/2=="},
    ]
    assert server.connections == 1


@in_fake_time
async def test_a_list_of_nothing_is_empty_however_it_is_written() -> None:
    script = reply(200, {"metadata": {"resourceVersion": "3"}, "items": None}), reply(200, {})
    async with RawServer(*script) as server, client_of(server) as client:
        first = await client.list("/api/v1/pods", Thing)
        assert (first.items, first.resource_version) == ([], "3")
        assert (await client.list("/api/v1/pods", Thing)).items == []


@in_fake_time
async def test_a_list_that_expires_half_way_starts_again_in_one_piece() -> None:
    script = page("a", more="t1"), refusal(410, "Expired"), page("a", "b", version="20")
    async with RawServer(*script) as server, client_of(server) as client:
        listing = await client.list("/api/v1/pods", Thing, field_selector="x")
    assert ([item.metadata.name for item in listing.items], listing.resource_version) == (["a", "b"], "20")
    assert server.requests[2].query == {"fieldSelector": "x"}


@pytest.mark.parametrize(
    ("script", "status", "requests"),
    [
        ((refusal(410, "Expired"),), 410, 1),
        ((page("a", more="t"), refusal(410, "Expired"), refusal(410, "Expired")), 410, 3),
        ((page("a", more="t"), refusal(500)), 500, 2),
    ],
)
@in_fake_time
async def test_a_list_that_cannot_be_had_fails(script: tuple[Answer, ...], status: int, requests: int) -> None:
    async with RawServer(*script) as server, client_of(server) as client:
        with pytest.raises(ApiError) as caught:
            await client.list("/api/v1/pods", Thing)
    assert (caught.value.status, len(server.requests)) == (status, requests)


BAD = {"metadata": {"name": 5}}
BADLY_LABELLED = {
    "metadata": {"name": "b", "namespace": "team", "uid": "u", "resourceVersion": "4", "labels": "x"},
}


@in_fake_time
async def test_an_unreadable_object_does_not_spoil_the_list() -> None:
    answer = reply(200, {"metadata": {"resourceVersion": "3"}, "items": [thing("a"), BADLY_LABELLED, BAD, thing("c")]})
    async with RawServer(answer) as server, client_of(server) as client:
        found: list[Any] = []
        listing = await client.list("/api/v1/pods", Thing, on_unreadable=found.append)
        assert [item.metadata.name for item in listing.items] == ["a", "c"]
        assert listing.resource_version == "3"
        assert [(bad.namespace, bad.name, bad.uid, bad.resource_version) for bad in found] == [
            ("team", "b", "u", "4"),
            ("", "", "", ""),
        ]
        assert "team/b (uid u) cannot be decoded: Expected `object | null`, got `str`" in str(found[0])
        with pytest.raises(BadResponse, match="the list cannot be decoded"):
            await client.list("/api/v1/pods", Thing)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"nonsense",
        b'{"metadata": 5}',
        b'{"metadata":{"resourceVersion":"\xff"}}',
        b"[" * 100_000,
        b"\x00",
    ],
)
@in_fake_time
async def test_a_response_that_makes_no_sense_counts_as_lost(body: bytes) -> None:
    async with RawServer(reply(200, body)) as server, client_of(server) as client:
        for ask in (client.get(POD, Thing), client.list("/api/v1/pods", Thing, on_unreadable=lambda _: None)):
            with pytest.raises(BadResponse) as caught:
                await ask
            assert caught.value.maybe_done


@pytest.mark.parametrize(
    ("answer", "status", "reason", "message", "retry_after"),
    [
        (refusal(404, "NotFound", 'pods "x" not found'), 404, "NotFound", 'pods "x" not found', None),
        (refusal(409, "AlreadyExists"), 409, "AlreadyExists", "no", None),
        (refusal(429, "TooManyRequests", Retry_After="7"), 429, "TooManyRequests", "no", 7.0),
        (refusal(503, Retry_After="0.5"), 503, "", "no", 0.5),
        (refusal(503, Retry_After="soon"), 503, "", "no", None),
        (refusal(503, Retry_After="-3"), 503, "", "no", None),
        (refusal(503, Retry_After="nan"), 503, "", "no", None),
        (refusal(503, Retry_After="Fri, 06 Nov 2026 12:00:00 GMT"), 503, "", "no", 60.0),
        (refusal(503, Retry_After="1e300"), 503, "", "no", 120.0),
        (reply(429, {"details": {"retryAfterSeconds": 4}}), 429, "", "no message", 4.0),
        (reply(429, {"details": {"retryAfterSeconds": 2**62}}), 429, "", "no message", 120.0),
        (reply(429, {"details": {"retryAfterSeconds": -4}}), 429, "", "no message", 0.0),
        (reply(403, {"error": "you may not"}), 403, "", "you may not", None),
        (reply(502, b"<html>bad gateway</html>"), 502, "", "<html>bad gateway</html>", None),
        (reply(500, b"\xff" * 5000), 500, "", "\ufffd" * 500, None),
        (reply(500, b""), 500, "", "no message", None),
        (reply(302, b"", Location="http://127.0.0.1:1/"), 302, "", "no message", None),
    ],
)
@in_fake_time
async def test_a_refusal_says_why(
    answer: Answer, status: int, reason: str, message: str, retry_after: float | None
) -> None:
    async with RawServer(answer) as server, client_of(server) as client:
        with pytest.raises(ApiError) as caught:
            await client.get(POD, Thing)
    error = caught.value
    assert (error.status, error.reason, error.message, error.retry_after) == (status, reason, message, retry_after)
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("error", "text", "expired"),
    [
        (ApiError(status=409, reason="Conflict", message="changed"), "409 Conflict: changed", False),
        (ApiError(status=500, message="oops"), "500: oops", False),
        (ApiError(status=410, message="old"), "410: old", True),
        (ApiError(status=400, reason="Expired", message="old"), "400 Expired: old", True),
    ],
)
def test_a_refusal_reads_well(error: ApiError, text: str, expired: bool) -> None:
    assert (str(error), error.expired) == (text, expired)


async def half_a_body(exchange: Exchange) -> None:
    await exchange.send(b'HTTP/1.1 201 Created\r\nContent-Length: 500\r\n\r\n{"kind":')


async def half_a_body_and_silence(exchange: Exchange) -> None:
    await half_a_body(exchange)
    await silence(exchange)


WRITES: list[Call] = [
    lambda c: c.create("/api/v1/pods", {}),
    lambda c: c.replace(POD, {}),
    lambda c: c.patch(POD, {}),
    lambda c: c.delete(POD),
]


@pytest.mark.parametrize("call", WRITES)
@pytest.mark.parametrize(
    "fault",
    [close_at_once, reset_at_once, silence, half_a_body, half_a_body_and_silence, raw(b"SSH-2.0-OpenSSH\r\n\r\n")],
)
@in_fake_time
async def test_a_write_without_a_complete_response_may_be_done_and_is_sent_once(fault: Answer, call: Call) -> None:
    async with RawServer(fault) as server, client_of(server) as client:
        with pytest.raises(Unreachable) as caught:
            await call(client)
    assert caught.value.maybe_done
    assert len(server.requests) == 1


@in_fake_time
async def test_a_write_on_a_connection_that_was_closed_meanwhile_is_sent_once() -> None:
    async with RawServer(reply(200, {}), close_at_once) as server, client_of(server) as client:
        await client.get(POD, Thing)
        with pytest.raises(Unreachable):
            await client.replace(POD, {})
    assert len(server.requests) == 2


@in_fake_time
async def test_a_refused_connection_leaves_nothing_done() -> None:
    async with RawServer() as server:
        pass
    async with client_of(server) as client:
        with pytest.raises(Unreachable) as caught:
            await client.create("/api/v1/pods", {})
    assert not caught.value.maybe_done
    assert "POST /api/v1/pods" in str(caught.value)


@in_fake_time
async def test_a_request_has_a_deadline() -> None:
    async with RawServer(silence) as server, client_of(server, timeout=12.0) as client:
        with pytest.raises(Unreachable, match="no answer in time"):
            await client.get(POD, Thing)
        assert asyncio.get_running_loop().time() == pytest.approx(12.0)


@in_fake_time
async def test_requests_keep_to_the_rate() -> None:
    async with RawServer(reply(200, {})) as server, client_of(server, qps=5, burst=2) as client:
        for _ in range(7):
            await client.get(POD, Thing)
        assert asyncio.get_running_loop().time() == pytest.approx(1.0)


@in_fake_time
async def test_a_request_that_waits_too_long_for_its_turn_was_never_sent() -> None:
    async with RawServer(reply(200, {})) as server, client_of(server, qps=0.01, timeout=10.0) as client:
        await client.get(POD, Thing)
        with pytest.raises(Unreachable) as caught:
            await client.create("/api/v1/pods", {})
        assert not caught.value.maybe_done
    assert len(server.requests) == 1


@in_fake_time
async def test_names_that_would_change_the_path_are_refused() -> None:
    async with RawServer(reply(200, {})) as server, client_of(server) as client:
        with pytest.raises(BadName):
            await client.bind("team", "..", uid="u", node="n")
    assert server.requests == []


@in_fake_time
async def test_a_client_that_is_not_open_says_so() -> None:
    client = KubeClient(Access("http://127.0.0.1:1", namespace="team"))
    assert client.namespace == "team"
    with pytest.raises(RuntimeError, match="async with"):
        await client.get(NODES.path(), Thing)
    await client.__aexit__(None, None, None)


@pytest.mark.parametrize(
    ("credentials", "sent"),
    [(bearer("secret", "here"), "secret"), (basic("ada", "secret"), None), ({}, None)],
)
@in_fake_time
async def test_only_a_token_is_repeated_for_a_server_behind_the_proxy(
    credentials: dict[str, str], sent: str | None
) -> None:
    async with RawServer(stream(b"{}\n"), stream(b"{}\n")) as server:
        access = Access(server.url, credentials=FixedHeaders(credentials))
        async with KubeClient(access) as client:
            for header in ("X-Own-Token", ""):
                lines = client.stream_lines("/proxy/journal", query={}, duration=1.0, token_header=header)
                assert [line async for line in lines] == [b"{}"]
    assert [request.headers.get("x-own-token") for request in server.requests] == [sent, None]
