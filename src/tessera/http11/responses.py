"""What the server answers by itself, and the heads of all responses."""

from __future__ import annotations

from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from typing import NamedTuple

from tessera.http11.router import Handler, Request, Response

MAX_BODY_BYTES = 8 * 2**20
"""A filter request has a pod and the names of all nodes: 5000 names of the longest kind are 1.3 MB. A review has the
object, at most 3 MiB in a request to the apiserver, and perhaps the object before it. Whole Node objects (an extender
that is not nodeCacheCapable) fit for some hundred nodes."""
MAX_HEAD_BYTES = 16 * 2**10
"""kube-scheduler's and the apiserver's heads have a few hundred; a token may have some thousand"""
MAX_HEADERS = 100

NOT_HTTP = Response(400, b"this is not HTTP/1.1\n")
NO_UPGRADE = Response(400, b"there is nothing to upgrade to\n")
BODY_TOO_LARGE = Response(413, f"a body has at most {MAX_BODY_BYTES} bytes\n".encode())
TOO_MANY_AHEAD = Response(400, b"too many requests sent ahead\n")
HEAD_TOO_LARGE = Response(431, f"a head has at most {MAX_HEAD_BYTES} bytes and {MAX_HEADERS} fields\n".encode())
OVERLOADED = Response(503, b"this address sends too much at once\n")
PHRASES = {int(status): status.phrase for status in HTTPStatus}
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
INTERNAL_ERROR = Response(500, b"internal error, see the log\n")


class IncomingRequest(NamedTuple):
    """A request that is complete, or was refused before it was."""

    handle: Handler | Response
    request: Request = Request()
    keeps_connection: bool = False
    """never with HTTP/1.0"""
    is_head: bool = False
    is_chunkable: bool = True
    """HTTP/1.0 does not know chunks"""
    is_complete: bool = True


def body_too_large(most: int) -> Response:
    return BODY_TOO_LARGE if most == MAX_BODY_BYTES else Response(413, f"a body has at most {most} bytes\n".encode())


def response_head(incoming: IncomingRequest, response: Response, *, keeps: bool, second: int, headers: bytes) -> bytes:
    """`keeps` the connection; `second` since the epoch; `headers` are further lines."""
    extra = b"" if keeps else b"Connection: close\r\n"
    if response.pieces is None:
        length = b"Content-Length: %d\r\n" % len(response.body)
    else:
        length = b"Transfer-Encoding: chunked\r\n" if incoming.is_chunkable else b""
    start = _head_start(response.status, response.content_type)
    return b"%s%sDate: %s\r\n%s%s%s\r\n" % (start, length, _date(second), extra, headers, response.headers)


@lru_cache(maxsize=1)
def _date(second: int) -> bytes:
    return formatdate(second, usegmt=True).encode()


@lru_cache(maxsize=64)
def _head_start(status: int, content_type: str) -> bytes:
    return f"HTTP/1.1 {status} {PHRASES[status]}\r\nContent-Type: {content_type}\r\n".encode()
