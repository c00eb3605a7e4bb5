"""Who may read what the scheduler serves to people."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tessera.http11.router import Request, Response
from tessera.kube.access import Access
from tessera.kube.client import KubeClient
from tessera.scheduler import access_review
from tessera.scheduler.access_review import AccessReview, get_on_path
from tests.support.network import Exchange, RawServer, reply

USERS = {
    "of-ada": {"username": "ada", "groups": ["people", "system:authenticated"], "uid": "1", "extra": {"k": ["v"]}},
    "of-bob": {"username": "bob", "groups": ["system:authenticated"]},
}


class Apiserver:
    """Knows two tokens; only one user may read the path."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.status = 201
        self.hold: asyncio.Event | None = None

    async def answer(self, exchange: Exchange) -> bool | None:
        body = json.loads(exchange.request.body)
        self.asked.append(body)
        if self.hold is not None:
            await self.hold.wait()
        if self.status != 201:
            return await reply(self.status, {"kind": "Status", "message": "no"})(exchange)
        if body["kind"] == "TokenReview":
            user = USERS.get(body["spec"]["token"])
            status = {"authenticated": user is not None, **({"user": user} if user else {"error": "unknown"})}
        else:
            status = {"allowed": body["spec"]["user"] == "ada"}
        return await reply(201, {**body, "status": status})(exchange)


class Caller:
    """Asks for access again and again."""

    def __init__(self, client: KubeClient, apiserver: Apiserver) -> None:
        self.now = 0.0
        self.apiserver = apiserver
        self.review = AccessReview(client, get_on_path("/dashboard"), clock=lambda: self.now)

    async def ask(self, token: str, header: bytes = b"Authorization") -> Response | None:
        text = f"Bearer {token}" if header == b"Authorization" else token
        return await self.review.refuse(Request(headers={header: text.encode()}))

    async def status(self, token: str) -> int:
        refusal = await self.ask(token)
        return 200 if refusal is None else refusal.status


@pytest.fixture
async def caller() -> AsyncIterator[Caller]:
    async with _caller() as caller:
        yield caller


@asynccontextmanager
async def _caller() -> AsyncIterator[Caller]:
    apiserver = Apiserver()
    async with RawServer(apiserver.answer) as server, KubeClient(Access(server.url)) as client:
        yield Caller(client, apiserver)


async def test_a_caller_whom_the_apiserver_allows_is_allowed(caller: Caller) -> None:
    assert await caller.status("of-ada") == 200
    token, access = caller.apiserver.asked
    assert token["spec"] == {"token": "of-ada"}
    assert access["spec"] == {
        "nonResourceAttributes": {"path": "/dashboard", "verb": "get"},
        "user": "ada",
        "groups": ["people", "system:authenticated"],
        "uid": "1",
        "extra": {"k": ["v"]},
    }


async def test_a_known_caller_without_the_right_is_forbidden_and_told_what_it_needs(caller: Caller) -> None:
    refusal = await caller.ask("of-bob")
    assert refusal is not None
    assert refusal.status == 403
    assert "`get` on the path /dashboard" in json.loads(refusal.body)["error"]


async def test_an_unknown_token_is_refused(caller: Caller) -> None:
    assert await caller.status("made-up") == 401
    assert len(caller.apiserver.asked) == 1


@pytest.mark.parametrize("headers", [{}, {b"Authorization": b"Bearer "}, {b"Authorization": b"Basic b2YtYWRh"}])
async def test_without_a_token_the_apiserver_is_not_asked(caller: Caller, headers: dict[bytes, bytes]) -> None:
    refusal = await caller.review.refuse(Request(headers=headers))
    assert refusal is not None
    assert (refusal.status, b"WWW-Authenticate: Bearer" in refusal.headers) == (401, True)
    assert caller.apiserver.asked == []


async def test_behind_a_proxy_the_token_comes_in_a_header_of_our_own(caller: Caller) -> None:
    assert await caller.ask("of-ada", b"X-Tessera-Token") is None


async def test_verdicts_are_kept_for_a_short_time_only(caller: Caller) -> None:
    for _ in range(3):
        assert await caller.status("of-ada") == 200
    assert len(caller.apiserver.asked) == 2
    caller.now = access_review.ALLOWED_S
    assert await caller.status("of-ada") == 200
    assert len(caller.apiserver.asked) == 4


async def test_a_right_that_was_given_counts_after_a_few_seconds(caller: Caller) -> None:
    assert await caller.status("soon") == 401
    USERS["soon"] = USERS["of-ada"]
    try:
        assert await caller.status("soon") == 401
        caller.now = access_review.REFUSED_S
        assert await caller.status("soon") == 200
    finally:
        del USERS["soon"]


async def test_an_apiserver_that_fails_refuses_and_is_asked_again(caller: Caller) -> None:
    caller.apiserver.status = 500
    assert await caller.status("of-ada") == 503
    caller.apiserver.status = 201
    assert await caller.status("of-ada") == 200


async def test_an_apiserver_that_is_down_refuses() -> None:
    async with RawServer() as server:
        url = server.url
    async with KubeClient(Access(url)) as client:
        assert await Caller(client, Apiserver()).status("of-ada") == 503


async def test_an_expired_verdict_is_not_kept_while_the_apiserver_is_down(caller: Caller) -> None:
    assert await caller.status("of-ada") == 200
    caller.now, caller.apiserver.status = access_review.ALLOWED_S, 500
    assert await caller.status("of-ada") == 503


async def test_only_so_many_verdicts_are_kept(caller: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_review, "MAX_VERDICTS", 2)
    for token in ("a", "b", "c"):
        assert await caller.status(token) == 401
    assert len(caller.apiserver.asked) == 3
    await caller.status("c")
    assert len(caller.apiserver.asked) == 3
    await caller.status("a")
    assert len(caller.apiserver.asked) == 4


async def test_callers_with_one_token_share_a_review_and_strangers_cannot_start_many(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access_review, "MAX_REVIEWS", 1)
    caller.apiserver.hold = asyncio.Event()
    same = [asyncio.create_task(caller.status("of-ada")) for _ in range(3)]
    await asyncio.sleep(0)
    assert await caller.status("another") == 503
    same[0].cancel()
    caller.apiserver.hold.set()
    assert await asyncio.gather(*same[1:]) == [200, 200]
    assert len(caller.apiserver.asked) == 2


async def test_no_token_is_kept(caller: Caller) -> None:
    await caller.status("of-ada")
    assert "of-ada" not in repr(vars(caller.review))
