"""Bytes to and from the apiserver: credentials, rate limit, deadlines, lines, and every fault as a KubeError.

Each request is sent once. The transport knows nothing of JSON or of the resources that are requested.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from urllib.parse import urlencode

from tessera.http11.client import ClientResponse, IncompleteResponse
from tessera.kube.access import Access
from tessera.kube.connection_pool import ApiRequest, ConnectionPool
from tessera.kube.decoder import api_error
from tessera.kube.errors import UNAUTHORIZED, ApiError, BadResponse, Unreachable

MAX_LINE_BYTES = 32 << 20
"""an object in etcd has at most 1.5 MiB; JSON and escapes make that a few times more"""

BATCH_FROM_LINES_PER_SECOND = 100.0
"""below this rate every line of a stream is passed on at once"""
BATCH_S = 0.04
"""between two reads at or above that rate: one read of many lines costs far less than many reads. Lines are delayed by
this time at most, never dropped or reordered."""
RATE_WINDOW_S = 0.25
"""over which the rate of a stream is measured"""
SILENT_S = 90.0
"""after which a stream counts as stalled: apiservers send a bookmark about once a minute, up to a quarter later"""


class RateLimiter:
    """For one event loop; needs no lock because nothing awaits between reading and writing its state."""

    def __init__(self, *, qps: float, burst: int) -> None:
        if qps <= 0 or burst < 1:
            raise ValueError(f"qps {qps} and burst {burst} must be positive")
        self._interval = 1.0 / qps
        self._max_lag = (burst - 1) * self._interval
        """how far the schedule may lag behind the clock: the unused burst"""
        self._next = float("-inf")

    async def wait(self) -> None:
        """Return when the next request may be sent."""
        now = asyncio.get_running_loop().time()
        at = max(self._next, now - self._max_lag)
        self._next = at + self._interval
        if at > now:
            await asyncio.sleep(at - now)


class LineSplitter:
    """Holds the beginning of the line whose end has not arrived."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._held = 0

    @property
    def has_partial_line(self) -> bool:
        return self._held > 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """The lines that this chunk completes, without their line ends; blank lines are left out."""
        first, *others = chunk.split(b"\n")
        self._pieces.append(first)
        self._held += len(first)
        if self._held > MAX_LINE_BYTES:
            raise BadResponse(f"a line of the watch is longer than {MAX_LINE_BYTES >> 20} MiB")
        if not others:
            return []
        complete = [b"".join(self._pieces), *others[:-1]]
        self._pieces, self._held = [others[-1]], len(others[-1])
        return [line for line in complete if line.strip()]


class Transport:
    """The way to one apiserver. The rate limiter, if there is one, covers all requests."""

    def __init__(self, access: Access, *, timeout: float, limiter: RateLimiter | None, user_agent: str) -> None:
        """`timeout` is in seconds, for a request and its response."""
        self._access = access
        self._timeout = timeout
        self._limiter = limiter
        # In the cluster bandwidth is cheaper than the event loop's time.
        self._headers = {"User-Agent": user_agent, "Accept": "application/json", "Accept-Encoding": "identity"}
        self._pool: ConnectionPool | None = None

    def open(self) -> None:
        self._pool = ConnectionPool(self._access, headers=self._headers)

    async def close(self) -> None:
        if self._pool is not None:
            await self._pool.close()

    async def request(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        content_type: str = "application/json",
        query: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> bytes:
        """The body of the response. Raises ApiError for every status but 2xx."""
        # Outside the deadline: a plugin has its own, and a slow plugin must not look like a slow apiserver.
        headers = await self._access.headers()
        request = ApiRequest(method, _target(path, query), headers, body, content_type)
        pool = self._opened()
        try:
            async with asyncio.timeout(self._timeout if timeout is None else timeout):
                if self._limiter is not None:
                    await self._limiter.wait()
                response = await pool.round_trip(request)
                try:
                    data = await response.read()
                finally:
                    response.close()
        except OSError as error:
            raise _unreachable(f"{method} {path}", request, error) from error
        if response.status >= 300:
            raise self._refusal(response, data)
        return data

    async def stream_lines(
        self,
        path: str,
        *,
        query: Mapping[str, str],
        duration: float,
        on_bytes: Callable[[], None] | None = None,
        token_header: str = "",
        body: bytes | None = None,
    ) -> AsyncGenerator[list[bytes], None]:
        """The lines of a response that is written over time, as they arrive; `on_bytes` is called when something does.

        It must begin within the timeout of a request, and end before `duration` and that timeout have passed. If it
        is silent for too long it ends as if the server had ended it: nothing is lost, and nothing is wrong if the
        server had nothing to say."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + duration + self._timeout
        headers = await self._access.headers()
        scheme, _, token = headers.get("Authorization", "").partition(" ")
        if token_header and scheme == "Bearer":
            headers = {**headers, token_header: token}
        method = "GET" if body is None else "POST"
        request = ApiRequest(method, _target(path, query), headers, body)
        what = f"{'WATCH' if body is None else method} {path}"
        response = await self._begin_stream(what, request)
        silence = SilenceTimer(response.close, deadline)
        splitter, rate = LineSplitter(), LineRate(loop.time())
        try:
            while True:
                if on_bytes is not None:
                    on_bytes()
                silence.heard_at = loop.time()
                try:
                    chunk = await _read_chunk(response, splitter)
                except OSError as error:
                    raise _unreachable(what, request, TimeoutError() if loop.time() >= deadline else error) from error
                if not chunk:
                    if loop.time() >= deadline:
                        raise _unreachable(what, request, TimeoutError())
                    return
                lines = splitter.feed(chunk)
                if lines:
                    yield lines
                if rate.is_high(len(lines), loop.time()):
                    await asyncio.sleep(BATCH_S)
        finally:
            silence.cancel()
            response.close()

    async def _begin_stream(self, what: str, request: ApiRequest) -> ClientResponse:
        pool = self._opened()
        try:
            async with asyncio.timeout(self._timeout):
                if self._limiter is not None:
                    await self._limiter.wait()
                response = await pool.round_trip(request)
                if response.status == 200:
                    return response
                try:
                    data = await response.read()
                finally:
                    response.close()
        except OSError as error:
            raise _unreachable(what, request, error) from error
        if response.status >= 300:
            raise self._refusal(response, data)
        raise Unreachable(f"{what}: answered with status {response.status}", maybe_done=False)

    def _opened(self) -> ConnectionPool:
        if self._pool is None:
            raise RuntimeError("the client is not open: use it in `async with`")
        return self._pool

    def _refusal(self, response: ClientResponse, data: bytes) -> ApiError:
        if response.status == UNAUTHORIZED:
            self._access.on_unauthorized()
        return api_error(response.status, data, response.headers)


class SilenceTimer:
    """Calls `end` at the deadline, or when nothing was heard for too long; one timer, not one for each read."""

    def __init__(self, end: Callable[[], None], deadline: float) -> None:
        self._loop = asyncio.get_running_loop()
        self.heard_at = self._loop.time()
        self._end, self._deadline = end, deadline
        self._arm()

    def cancel(self) -> None:
        self._timer.cancel()

    def _arm(self) -> None:
        self._timer = self._loop.call_at(min(self.heard_at + SILENT_S, self._deadline), self._check)

    def _check(self) -> None:
        now = self._loop.time()
        if now >= self._deadline or now >= self.heard_at + SILENT_S:
            self._end()
        else:
            self._arm()


class LineRate:
    """Measures how many lines per second a stream has."""

    def __init__(self, now: float) -> None:
        self._since = now
        self._lines = 0
        self._is_high = False

    def is_high(self, lines: int, now: float) -> bool:
        """Whether reads should be batched, now that so many more lines have come."""
        self._lines += lines
        passed = now - self._since
        if passed >= RATE_WINDOW_S:
            self._is_high = self._lines >= BATCH_FROM_LINES_PER_SECOND * passed
            self._since, self._lines = now, 0
        return self._is_high


def _target(path: str, query: Mapping[str, str] | None) -> str:
    return f"{path}?{urlencode(query)}" if query else path


async def _read_chunk(response: ClientResponse, splitter: LineSplitter) -> bytes:
    """The next chunk; empty at an end that leaves no line unfinished."""
    try:
        chunk = await response.read_chunk()
    except IncompleteResponse:
        # An apiserver that stops ends the connection before the response. Between two lines nothing is lost.
        if splitter.has_partial_line:
            raise
        return b""
    if not chunk and splitter.has_partial_line:
        raise IncompleteResponse("the response ends in the middle of a line")
    return chunk


def _unreachable(what: str, request: ApiRequest, error: OSError) -> Unreachable:
    problem = "no answer in time" if isinstance(error, TimeoutError) else str(error) or type(error).__name__
    return Unreachable(f"{what}: {problem}", maybe_done=request.maybe_done)
