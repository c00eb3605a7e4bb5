"""Requests through a proxy, by aiohttp, which speaks the proxies' protocol."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import aiohttp
from aiohttp.abc import AbstractStreamWriter
from yarl import URL

from tessera.http11.client import IncompleteResponse
from tessera.kube.access import Access
from tessera.kube.round_tripper import KEEP_ALIVE_SECONDS, MAX_CONNECTIONS, ApiRequest, create_probed_socket

READ_BUFFER_BYTES = 1 << 18
"""a page of a list is megabytes; the default of 64 KiB means four times as many wake-ups"""


class ProxyRoundTripper:
    """For one `access`; `headers` go with every request."""

    def __init__(self, access: Access, *, headers: Mapping[str, str]) -> None:
        self._access = access
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=MAX_CONNECTIONS, keepalive_timeout=KEEP_ALIVE_SECONDS, socket_factory=create_probed_socket
            ),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
            cookie_jar=aiohttp.DummyCookieJar(),
            read_bufsize=READ_BUFFER_BYTES,
            headers=headers,
        )
        # aiohttp repeats GET, PUT and DELETE by itself after a lost response; here the caller decides that.
        self._session._retry_connection = False

    async def round_trip(self, request: ApiRequest) -> ProxyResponse:
        with _as_os_errors():
            response = await self._session.request(
                request.method,
                URL(self._access.server + request.target, encoded=True),
                data=None if request.body is None else _NotedPayload(request),
                headers=request.headers,
                ssl=self._access.ssl or True,
                server_hostname=self._access.tls_server_name,
                proxy=self._access.proxy,
                allow_redirects=False,
            )
        return ProxyResponse(response)

    async def close(self) -> None:
        await self._session.close()


class ProxyResponse:
    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self.status = response.status

    @property
    def headers(self) -> Mapping[str, str]:
        return {name.lower(): value for name, value in self._response.headers.items()}

    async def read(self) -> bytes:
        with _as_os_errors():
            return await self._response.read()

    async def read_chunk(self) -> bytes:
        with _as_os_errors():
            return await self._response.content.readany()

    def close(self) -> None:
        self._response.close()


class _NotedPayload(aiohttp.BytesPayload):
    """The body of a request; it notes on the request when it is sent."""

    def __init__(self, request: ApiRequest) -> None:
        super().__init__(request.body or b"", content_type=request.content_type)
        self._request = request

    async def write_with_length(self, writer: AbstractStreamWriter, content_length: int | None) -> None:
        # aiohttp holds the head back until the body is written, so nothing was sent before.
        self._request.was_sent = True
        await super().write_with_length(writer, content_length)


@contextmanager
def _as_os_errors() -> Iterator[None]:
    try:
        yield
    except aiohttp.ClientPayloadError as error:
        raise IncompleteResponse(str(error)) from error
    except aiohttp.ClientOSError:
        raise
    except aiohttp.ClientError as error:
        raise ConnectionError(str(error) or type(error).__name__) from error
