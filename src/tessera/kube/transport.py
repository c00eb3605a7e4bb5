"""Bytes to and from the apiserver: each request once, with a deadline, and every fault as one of ours.

Knows nothing of JSON or of what is asked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from urllib.parse import urlencode

from tessera.kube.access import Access
from tessera.kube.errors import Unreachable
from tessera.kube.http_transport import HttpTransport
from tessera.kube.limiter import Limiter
from tessera.kube.lines import Lines
from tessera.kube.proxy_transport import ProxyTransport
from tessera.kube.request import Carrier, CutShort, Reply, Request
from tessera.kube.responses import api_error

RUSH = 100.0
"""lines a second of a stream from which it pays to take breaks and read those of a while together"""
LOOK_SECONDS = 0.25
"""of a stream, after which its pace is judged anew"""
BREAK_SECONDS = 0.04


class Transport:
    """The way to one apiserver; the limiter, where there is one, covers everything that goes through it."""

    def __init__(self, access: Access, *, limiter: Limiter | None, user_agent: str) -> None:
        self._access = access
        self._limiter = limiter
        # In the cluster bandwidth is cheaper than the event loop's time.
        self._headers = {"User-Agent": user_agent, "Accept": "application/json", "Accept-Encoding": "identity"}
        self._carrier: Carrier | None = None

    def open(self) -> None:
        make = HttpTransport if self._access.proxy is None else ProxyTransport
        self._carrier = make(self._access, headers=self._headers)

    async def close(self) -> None:
        if self._carrier is not None:
            await self._carrier.close()

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
        if body is not None:
            headers["Content-Type"] = content_type
        request = Request(method, _target(path, query), headers, body)
        try:
            async with asyncio.timeout(timeout):
                reply = await self._send(request)
                try:
                    return await self._read(reply)
                finally:
                    reply.close()
        except OSError as error:
            raise _unreachable(f"{method} {path}", request, error) from error

    async def stream(
        self, path: str, *, timeout: float, stream_timeout: float, query: Mapping[str, str]
    ) -> AsyncGenerator[bytes, None]:
        """The lines of an answer that goes on for a while: it begins within `timeout` and ends in `stream_timeout`."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + stream_timeout
        request = Request("GET", _target(path, query), await self._access.headers())
        lines, what = Lines(), f"WATCH {path}"
        try:
            async with asyncio.timeout(timeout):
                reply = await self._send(request)
                if reply.status != 200:
                    try:
                        await self._read(reply)
                    finally:
                        reply.close()
                    raise Unreachable(f"{what}: answered with status {reply.status}", maybe_done=False)
        except OSError as error:
            raise _unreachable(what, request, error) from error
        # One timer for the whole, not one for each wait: whoever waits when it rings finds the connection closed.
        end = loop.call_at(deadline, reply.close)
        pace = Pace(loop.time())
        try:
            while True:
                try:
                    chunk = await _chunk(reply, lines)
                except OSError as error:
                    raise _unreachable(what, request, TimeoutError() if loop.time() >= deadline else error) from error
                if not chunk:
                    if loop.time() >= deadline:
                        raise _unreachable(what, request, TimeoutError())
                    return
                found = lines.feed(chunk)
                for line in found:
                    yield line
                is_rush = pace.is_rush(len(found), loop.time())
                reply.gather(is_rush)
                if is_rush:
                    await asyncio.sleep(BREAK_SECONDS)
        finally:
            end.cancel()
            reply.close()

    async def _send(self, request: Request) -> Reply:
        if self._carrier is None:
            raise RuntimeError("the client is not open: use it in `async with`")
        if self._limiter is not None:
            await self._limiter.take()
        return await self._carrier.send(request)

    async def _read(self, reply: Reply) -> bytes:
        data = await reply.read()
        if reply.status < 300:
            return data
        if reply.status == 401:
            self._access.refused()
        raise api_error(reply.status, data, reply.headers())


class Pace:
    """Tells many lines from few, so that a line which comes alone is passed on at once."""

    def __init__(self, now: float) -> None:
        self._since = now
        self._lines = 0
        self._is_rush = False

    def is_rush(self, lines: int, now: float) -> bool:
        """Whether it is one, now that so many more have come."""
        self._lines += lines
        passed = now - self._since
        if passed >= LOOK_SECONDS:
            self._is_rush = self._lines >= RUSH * passed
            self._since, self._lines = now, 0
        return self._is_rush


def _target(path: str, query: Mapping[str, str]) -> str:
    return f"{path}?{urlencode(query)}" if query else path


async def _chunk(reply: Reply, lines: Lines) -> bytes:
    """What came next; empty at an end that leaves no line unfinished."""
    try:
        chunk = await reply.chunk()
    except CutShort:
        # The connection ended before the answer did, as when an apiserver stops; between two lines nothing is lost.
        if lines.partial:
            raise
        return b""
    if not chunk and lines.partial:
        raise CutShort("the answer ends in the middle of a line")
    return chunk


def _unreachable(what: str, request: Request, error: OSError) -> Unreachable:
    said = "no answer in time" if isinstance(error, TimeoutError) else str(error) or type(error).__name__
    return Unreachable(f"{what}: {said}", maybe_done=request.maybe_done)
