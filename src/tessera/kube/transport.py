"""Bytes to and from the apiserver: each request once, with a deadline, and every fault as one of ours.

Knows nothing of JSON or of what is asked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import contextmanager

import aiohttp
from yarl import URL

from tessera.kube.access import Access
from tessera.kube.answers import api_error
from tessera.kube.connecting import Body, open_session
from tessera.kube.errors import Unreachable
from tessera.kube.limiter import Limiter
from tessera.kube.lines import Lines


class Transport:
    """One session; the limiter, where there is one, covers everything that goes through it."""

    def __init__(self, access: Access, *, limiter: Limiter | None, user_agent: str) -> None:
        self._access = access
        self._limiter = limiter
        self._user_agent = user_agent
        self._session: aiohttp.ClientSession | None = None

    def open(self) -> None:
        self._session = open_session(self._user_agent)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def exchange(
        self,
        method: str,
        path: str,
        *,
        timeout: float,
        query: Mapping[str, str],
        body: bytes | None = None,
        content_type: str = "",
    ) -> bytes:
        """The body of the answer. Raises ApiError for any status but 2xx."""
        # Outside the deadline: a plugin has its own, and a slow plugin must not look like a slow apiserver.
        headers = await self._access.headers()
        content = Body(body, content_type) if body is not None else None
        with _faults(f"{method} {path}", content):
            async with asyncio.timeout(timeout):
                response = await self._send(method, path, query, headers, content)
                async with response:
                    return await self._read(response)

    async def stream(
        self, path: str, *, timeout: float, stream_timeout: float, query: Mapping[str, str]
    ) -> AsyncGenerator[bytes, None]:
        """The lines of an answer that goes on for a while: it begins within `timeout` and ends in `stream_timeout`."""
        deadline = asyncio.get_running_loop().time() + stream_timeout
        headers = await self._access.headers()
        lines, what = Lines(), f"WATCH {path}"
        # The deadline is around each wait, not around the whole: between lines the caller has the floor.
        with _faults(what):
            async with asyncio.timeout(timeout):
                response = await self._send("GET", path, query, headers)
                if response.status != 200:
                    async with response:
                        await self._read(response)
                        raise Unreachable(f"{what}: answered with status {response.status}", maybe_done=False)
        try:
            while True:
                with _faults(what):
                    async with asyncio.timeout_at(deadline):
                        chunk = await _chunk(response, lines)
                if not chunk:
                    return
                for line in lines.feed(chunk):
                    yield line
        finally:
            # Closed, not given back for re-use: the other side may still be sending.
            response.close()

    async def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        headers: Mapping[str, str],
        body: Body | None = None,
    ) -> aiohttp.ClientResponse:
        if self._session is None:
            raise RuntimeError("the client is not open: use it in `async with`")
        if self._limiter is not None:
            await self._limiter.take()
        url = URL(self._access.server + path, encoded=True)
        return await self._session.request(
            method,
            url.with_query(query) if query else url,
            data=body,
            headers=headers,
            ssl=self._access.ssl or True,
            server_hostname=self._access.tls_server_name,
            proxy=self._access.proxy,
            allow_redirects=False,
        )

    async def _read(self, response: aiohttp.ClientResponse) -> bytes:
        data = await response.read()
        if response.status < 300:
            return data
        if response.status == 401:
            self._access.refused()
        raise api_error(response.status, data, response.headers)


async def _chunk(response: aiohttp.ClientResponse, lines: Lines) -> bytes:
    """What came next; empty at an end that leaves no line unfinished."""
    try:
        chunk = await response.content.readany()
    except aiohttp.ClientPayloadError:
        # The connection ended before the answer did, as when an apiserver stops; between two lines nothing is lost.
        if lines.partial:
            raise
        return b""
    if not chunk and lines.partial:
        raise aiohttp.ClientPayloadError("the answer ends in the middle of a line")
    return chunk


@contextmanager
def _faults(what: str, body: Body | None = None) -> Iterator[None]:
    try:
        yield
    except TimeoutError as error:
        raise Unreachable(f"{what}: no answer in time", maybe_done=body is not None and body.left) from error
    except (aiohttp.ClientError, OSError) as error:
        said = str(error) or type(error).__name__
        raise Unreachable(f"{what}: {said}", maybe_done=body is not None and body.left) from error
