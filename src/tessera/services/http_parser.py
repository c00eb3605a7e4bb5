"""Bytes in, requests out: what httptools parses of one connection, and what is refused while it is parsed.

A refusal is the last request of a connection: nothing after it is looked at. A body that will not be used is counted,
not kept. Nothing is sent here, and no clock is read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, NamedTuple

import httptools

from tessera.services.listener import MAX_BODY
from tessera.services.responses import Answer

MAX_SILENT = 64 * 2**10
"""bytes that complete neither a head nor a piece of a body; kube-scheduler's heads have a few hundred"""

USUAL = frozenset({b"Host", b"User-Agent", b"Content-Length", b"Content-Type", b"Accept-Encoding"})
"""what kube-scheduler sends; with others, and other spellings, names are compared in lower case"""

NOT_HTTP = Answer(400, b"this is not HTTP/1.1\n")
NO_UPGRADE = Answer(400, b"there is nothing to upgrade to\n")
TOO_LARGE = Answer(413, f"a body has at most {MAX_BODY} bytes\n".encode())
HEAD_TOO_LARGE = Answer(431, f"a head has at most {MAX_SILENT} bytes\n".encode())

Handler = Callable[[bytes], Answer | Coroutine[Any, Any, Answer]]
"""of a body; an answer now, or a coroutine that ends with one"""


@dataclass(frozen=True, slots=True)
class Route:
    """What answers a method of a path; a guarded one answers only whom the listener's guard lets in."""

    method: str
    path: str
    handle: Handler
    guarded: bool = False


class Request(NamedTuple):
    """One that is complete, or refused before it was."""

    handle: Handler | Answer
    target: bytes = b""
    body: bytes = b""
    keep: bool = False
    """the connection, for the next request"""
    says_keep: bool = False
    """HTTP/1.0 asks for it, and wants it confirmed"""
    is_head: bool = False
    is_complete: bool = True


class _Refused(Exception):
    """Stops the parser."""


class Reader:
    """Completes `requests` with what it is fed; `refusal` is the answer of guarded routes, if any."""

    def __init__(self, *, find: Callable[[bytes, bytes], Route | Answer], refusal: Answer | None) -> None:
        self.requests: deque[Request] = deque()
        self.is_reading = False
        """a request that has begun and is not complete"""
        self.is_over = False
        """nothing more is taken as a request"""
        self.expects = False
        """the client waits to be told that it may send its body"""
        self._find = find
        self._refusal = refusal
        self._silent = 0
        self._url: list[bytes] = []
        self._raw: dict[bytes, bytes] = {}
        # Called for every header of every request, so that it pays to be none of Python's own functions.
        self.on_url = self._url.append
        self.on_header = self._raw.__setitem__
        self._parser = httptools.HttpRequestParser(self)

    def feed(self, data: bytes) -> None:
        self._silent += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError:
            if not self.is_over:
                raise
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._refuse(NOT_HTTP)
        else:
            if self._silent > MAX_SILENT:
                self._refuse(HEAD_TOO_LARGE)

    def end(self) -> None:
        """Forget what is not answered yet."""
        self.is_over, self.is_reading, self.expects = True, False, False
        self.requests.clear()

    def release(self) -> None:
        """It and its parser point at each other: without this every connection would wait for the collector."""
        self.end()
        del self._parser

    def _refuse(self, answer: Answer) -> _Refused:
        self.is_over, self.is_reading, self.expects = True, False, False
        self.requests.append(Request(answer, is_complete=False))
        return _Refused()

    # -- called by the parser

    def on_message_begin(self) -> None:
        self.is_reading = True
        self._url.clear()
        self._raw.clear()
        self._body: bytes | bytearray = b""
        self._size = 0

    def on_headers_complete(self) -> None:
        self._silent = 0
        parser, headers = self._parser, self._raw
        if not headers.keys() <= USUAL:
            headers = {name.lower(): value for name, value in headers.items()}
        self._headers = headers
        self._target = self._url[0] if len(self._url) == 1 else b"".join(self._url)
        self._method = parser.get_method()
        found = self._find(self._method, self._target)
        self._handle: Handler | Answer
        if not isinstance(found, Route):
            self._handle = found
        elif found.guarded and self._refusal is not None:
            self._handle = self._refusal
        else:
            self._handle = found.handle
        if parser.should_upgrade():
            raise self._refuse(NO_UPGRADE)
        if int(headers.get(b"Content-Length") or headers.get(b"content-length") or 0) > MAX_BODY:
            raise self._refuse(TOO_LARGE)
        if b"expect" in headers and headers[b"expect"].lower() == b"100-continue":
            if parser.get_http_version() != "1.1":
                return
            if isinstance(self._handle, Answer):
                raise self._refuse(self._handle)
            self.expects = True

    def on_body(self, piece: bytes) -> None:
        self._silent = 0
        self._size += len(piece)
        if self._size > MAX_BODY:
            raise self._refuse(TOO_LARGE)
        if isinstance(self._handle, Answer):
            return
        if not self._body:
            # Most bodies come in one piece, which is not copied again.
            self._body = piece
            return
        if isinstance(self._body, bytes):
            self._body = bytearray(self._body)
        self._body += piece

    def on_message_complete(self) -> None:
        self._silent = 0
        self.is_reading = self.expects = False
        self.requests.append(
            Request(
                self._handle,
                target=self._target,
                body=bytes(self._body),
                keep=self._parser.should_keep_alive(),
                says_keep=b"connection" in self._headers,
                is_head=self._method == b"HEAD",
            )
        )
        self._body = b""
