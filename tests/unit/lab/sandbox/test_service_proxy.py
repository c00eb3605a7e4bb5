from __future__ import annotations

from aiohttp import ClientSession, web
from aiohttp.test_utils import TestServer

from tessera_lab.sandbox.api.server import ApiServer

PATH = "/api/v1/namespaces/ns/services/web:http/proxy"


async def echo(request: web.Request) -> web.Response:
    return web.Response(status=202, text=f"{request.path}?{request.query_string}", content_type="text/plain")


async def test_a_get_is_passed_on_with_its_path_and_query_and_the_answer_comes_back() -> None:
    app = web.Application()
    app.router.add_get("/{path:.*}", echo)
    async with TestServer(app) as behind, ApiServer() as server, ClientSession() as session:
        server.cluster.services["ns/web:http"] = str(behind.make_url("")).rstrip("/")
        async with session.get(f"{server.url}{PATH}/a/b?x=1&y=2") as answer:
            assert (answer.status, answer.content_type) == (202, "text/plain")
            assert await answer.text() == "/a/b?x=1&y=2"
        async with session.post(f"{server.url}{PATH}/a") as answer:
            assert answer.status == 405


async def test_a_service_that_is_not_there_is_not_found_and_one_that_is_down_unavailable() -> None:
    async with ApiServer() as server, ClientSession() as session:
        async with session.get(f"{server.url}{PATH}/a") as answer:
            assert answer.status == 404
            assert 'services "web" not found' in (await answer.json())["message"]
        server.cluster.services["ns/web:http"] = "http://127.0.0.1:1"
        async with session.get(f"{server.url}{PATH}/a") as answer:
            assert answer.status == 503
