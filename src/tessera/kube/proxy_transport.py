"""Through a proxy, by aiohttp, which knows how to speak to them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import aiohttp
from aiohttp.abc import AbstractStreamWriter
from yarl import URL

from tessera.kube.access import Access
from tessera.kube.request import CONNECTIONS, KEEP_ALIVE_SECONDS, CutShort, Request
from tessera.kube.sockets import probed_socket

READ_BUFFER_BYTES = 1 << 18
"""a page of a list is megabytes; the default of 64 KiB means four times the wake-ups"""


class ProxyTransport:
    """For one `access`; `headers` go with every request."""

    def __init__(self, access: Access, *, headers: Mapping[str, str]) -> None:
        self._access = access
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=CONNECTIONS, keepalive_timeout=KEEP_ALIVE_SECONDS, socket_factory=probed_socket
            ),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
            cookie_jar=aiohttp.DummyCookieJar(),
            read_bufsize=READ_BUFFER_BYTES,
            headers=headers,
        )
        # aiohttp sends GET, PUT and DELETE again by itself after a lost answer; whether to is the caller's to decide.
        self._session._retry_connection = False

    async def send(self, request: Request) -> ProxyReply:
        with _as_os_errors():
            response = await self._session.request(
                request.method,
                URL(self._access.server + request.target, encoded=True),
                data=None if request.body is None else _Body(request),
                headers=request.headers,
                ssl=self._access.ssl or True,
                server_hostname=self._access.tls_server_name,
                proxy=self._access.proxy,
                allow_redirects=False,
            )
        return ProxyReply(response)

    async def close(self) -> None:
        await self._session.close()


class ProxyReply:
    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self.status = response.status

    def headers(self) -> Mapping[str, str]:
        return {name.lower(): value for name, value in self._response.headers.items()}

    async def read(self) -> bytes:
        with _as_os_errors():
            return await self._response.read()

    def gather(self, gathers: bool) -> None:
        """aiohttp reads on in any case, and gives all that it has."""

    async def chunk(self) -> bytes:
        with _as_os_errors():
            return await self._response.content.readany()

    def close(self) -> None:
        self._response.close()


class _Body(aiohttp.BytesPayload):
    """What a request sends; it notes that it leaves."""

    def __init__(self, request: Request) -> None:
        super().__init__(request.body or b"")
        self._request = request

    async def write_with_length(self, writer: AbstractStreamWriter, content_length: int | None) -> None:
        # The head waits for the body, so nothing has left before.
        self._request.left = True
        await super().write_with_length(writer, content_length)


@contextmanager
def _as_os_errors() -> Iterator[None]:
    try:
        yield
    except aiohttp.ClientPayloadError as error:
        raise CutShort(str(error)) from error
    except aiohttp.ClientOSError:
        raise
    except aiohttp.ClientError as error:
        raise ConnectionError(str(error) or type(error).__name__) from error
