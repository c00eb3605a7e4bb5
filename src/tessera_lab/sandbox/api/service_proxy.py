"""`services/proxy`: requests that the API server passes on to a Service, as they are; only GET.

There are no Service objects here: `ApiState.services` says what is behind each of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import aiohttp
from aiohttp import web

from tessera_lab.sandbox.api.errors import method_not_allowed, status_error

PATH = re.compile(r"/api/v1/namespaces/([^/]+)/services/([^/]+)/proxy(/.*)?")


def is_service_proxy(path: str) -> bool:
    return PATH.fullmatch(path) is not None


async def pass_on(request: web.Request, services: Mapping[str, str]) -> web.StreamResponse:
    """The answer of the Service, piece by piece."""
    found = PATH.fullmatch(request.path)
    assert found is not None
    namespace, name, path = found.groups("/")
    url = services.get(f"{namespace}/{name}")
    if url is None:
        raise status_error(404, f'services "{name.partition(":")[0]}" not found')
    if request.method != "GET":
        raise method_not_allowed()
    timeout = aiohttp.ClientTimeout()
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.get(f"{url}{path}", params=request.query) as answer,
        ):
            response = web.StreamResponse(status=answer.status, headers={"Content-Type": answer.content_type})
            await response.prepare(request)
            async for piece in answer.content.iter_any():
                await response.write(piece)
            await response.write_eof()
            return response
    except aiohttp.ClientConnectorError as error:
        raise status_error(503, f"error trying to reach service: {error}") from error
