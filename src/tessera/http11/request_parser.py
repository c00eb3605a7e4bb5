"""The requests of one connection, and what is refused while they are parsed.

A refusal is the last request of a connection: nothing after it is looked at. A body that no handler will see is
counted, not kept.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import httptools

from tessera.http11.connection import MessageParser
from tessera.http11.router import Handler, Response, Route

MAX_BODY_BYTES = 8 * 2**20
"""a filter request names every node of the cluster"""
MAX_HEAD_BYTES = 64 * 2**10
"""kube-scheduler's heads have a few hundred"""

USUAL_HEADERS = frozenset({b"Host", b"User-Agent", b"Content-Length", b"Content-Type", b"Accept-Encoding"})
"""what kube-scheduler sends; only if there are others are names converted to lower case"""

NOT_HTTP = Response(400, b"this is not HTTP/1.1\n")
NO_UPGRADE = Response(400, b"there is nothing to upgrade to\n")
BODY_TOO_LARGE = Response(413, f"a body has at most {MAX_BODY_BYTES} bytes\n".encode())
HEAD_TOO_LARGE = Response(431, f"a head has at most {MAX_HEAD_BYTES} bytes\n".encode())


class IncomingRequest(NamedTuple):
    """A request that is complete, or was refused before it was."""

    handle: Handler | Response
    target: bytes = b""
    body: bytes = b""
    keeps_connection: bool = False
    confirms_keep_alive: bool = False
    """HTTP/1.0 asks for it, and expects a header that confirms it"""
    is_head: bool = False
    is_complete: bool = True


class _Refused(Exception):
    """Stops the parser."""


class RequestParser(MessageParser):
    """Appends to `requests`; guarded routes respond with `refusal`, if there is one."""

    max_stalled_bytes = MAX_HEAD_BYTES
    _parser: httptools.HttpRequestParser

    def __init__(self, *, find: Callable[[bytes, bytes], Route | Response], refusal: Response | None) -> None:
        super().__init__()
        self.requests: deque[IncomingRequest] = deque()
        self.is_reading = False
        """a request has begun and is not complete"""
        self.expects_continue = False
        """the client waits for permission to send its body"""
        self._find = find
        self._refusal = refusal
        self._url: list[bytes] = []
        self.on_url = self._url.append
        self._parser = httptools.HttpRequestParser(self)

    def end(self) -> None:
        """Forget the requests that have no response yet."""
        self.is_over, self.is_reading, self.expects_continue = True, False, False
        self.requests.clear()

    def _refuse(self, response: Response) -> _Refused:
        self.is_over, self.is_reading, self.expects_continue = True, False, False
        self.requests.append(IncomingRequest(response, is_complete=False))
        return _Refused()

    # -- called by the parser

    def on_malformed(self, problem: str) -> None:
        self._refuse(NOT_HTTP)

    def on_stalled(self) -> None:
        self._refuse(HEAD_TOO_LARGE)

    def on_message_begin(self) -> None:
        self.is_reading = True
        self._url.clear()
        self._header_fields.clear()
        self._body: bytes | bytearray = b""
        self._body_bytes = 0

    def on_headers_complete(self) -> None:
        self._stalled_bytes = 0
        parser, headers = self._parser, self._header_fields
        if not headers.keys() <= USUAL_HEADERS:
            headers = {name.lower(): value for name, value in headers.items()}
        self._confirms_keep_alive = b"connection" in headers
        self._target = self._url[0] if len(self._url) == 1 else b"".join(self._url)
        self._method = parser.get_method()
        found = self._find(self._method, self._target)
        self._handle: Handler | Response
        if not isinstance(found, Route):
            self._handle = found
        elif found.guarded and self._refusal is not None:
            self._handle = self._refusal
        else:
            self._handle = found.handle
        if parser.should_upgrade():
            raise self._refuse(NO_UPGRADE)
        if int(headers.get(b"Content-Length") or headers.get(b"content-length") or 0) > MAX_BODY_BYTES:
            raise self._refuse(BODY_TOO_LARGE)
        if headers.get(b"expect", b"").lower() == b"100-continue" and parser.get_http_version() == "1.1":
            if isinstance(self._handle, Response):
                raise self._refuse(self._handle)
            self.expects_continue = True

    def on_body(self, piece: bytes) -> None:
        self._stalled_bytes = 0
        self._body_bytes += len(piece)
        if self._body_bytes > MAX_BODY_BYTES:
            raise self._refuse(BODY_TOO_LARGE)
        if isinstance(self._handle, Response):
            return
        if not self._body:
            # Most bodies come in one piece, which is not copied.
            self._body = piece
            return
        if isinstance(self._body, bytes):
            self._body = bytearray(self._body)
        self._body += piece

    def on_message_complete(self) -> None:
        self._stalled_bytes = 0
        self.is_reading = self.expects_continue = False
        self.requests.append(
            IncomingRequest(
                self._handle,
                target=self._target,
                body=bytes(self._body),
                keeps_connection=self._parser.should_keep_alive(),
                confirms_keep_alive=self._confirms_keep_alive,
                is_head=self._method == b"HEAD",
            )
        )
        self._body = b""
