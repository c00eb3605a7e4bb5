"""Who gets the page and its data on a user's own machine."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tessera.inspect.dashboard.server import SECURITY_HEADERS
from tessera.inspect.dashboard.source import FixedSource
from tessera.inspect.offline_cluster import OfflineCluster
from tests.support.builders import node
from tests.support.cluster_states import state_of
from tests.support.page import HOST, PORT, Page


@pytest.fixture
async def page() -> AsyncIterator[Page]:
    page = Page(FixedSource(OfflineCluster(state_of([node("n1").gpus(1)]))))
    yield page
    await page.server.close()


@pytest.mark.parametrize("target", ["/api/state", "/api/state?since=1"])
@pytest.mark.parametrize("token", [b"", b"Bearer ", b"Bearer wrong", b"Basic dGVzdA=="])
async def test_data_needs_the_token(page: Page, target: str, token: bytes) -> None:
    response = await page.ask(target, headers={b"Host": HOST, b"Authorization": token})
    assert response.status == 401
    assert b"WWW-Authenticate: Bearer" in response.headers


async def test_the_page_itself_needs_no_token(page: Page) -> None:
    response = await page.ask("/", headers={b"Host": HOST})
    assert (response.status, response.content_type) == (200, "text/html; charset=utf-8")


@pytest.mark.parametrize("target", ["/", "/api/state"])
@pytest.mark.parametrize("host", [b"", b"evil.example", b"127.0.0.1", b"127.0.0.1:1", b"evil.example:%d" % PORT])
async def test_a_foreign_name_for_this_machine_is_refused(page: Page, target: str, host: bytes) -> None:
    response = await page.ask(target, headers={**page.headers, b"Host": host})
    assert response.status == 403


@pytest.mark.parametrize("host", [b"localhost", b"[::1]", b"LOCALHOST", b"127.0.0.1"])
async def test_this_machine_may_be_called_by_each_of_its_own_names(page: Page, host: bytes) -> None:
    assert (await page.ask("/api/state", headers={**page.headers, b"Host": host + b":%d" % PORT})).status == 200


@pytest.mark.parametrize("origin", [b"null", b"https://evil.example", b"http://127.0.0.1:1"])
async def test_a_page_of_another_origin_is_refused(page: Page, origin: bytes) -> None:
    response = await page.ask("/api/state", headers={**page.headers, b"Origin": origin})
    assert response.status == 403
    own = await page.ask("/api/state", headers={**page.headers, b"Origin": b"http://" + HOST})
    assert own.status == 200


async def test_an_unchanged_file_is_not_sent_again(page: Page) -> None:
    first = await page.ask("/", headers={b"Host": HOST})
    tag = next(line for line in first.headers.split(b"\r\n") if line.startswith(b"ETag")).partition(b": ")[2]
    again = await page.ask("/", headers={b"Host": HOST, b"If-None-Match": tag})
    assert (again.status, again.body) == (304, b"")


def test_every_response_forbids_scripts_frames_and_guesses_of_types() -> None:
    text = SECURITY_HEADERS.decode()
    for part in ("default-src 'none'", "script-src 'self'", "frame-ancestors 'none'", "nosniff", "no-referrer"):
        assert part in text
