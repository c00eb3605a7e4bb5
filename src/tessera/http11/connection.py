"""What both ends of a connection share: feeding httptools within limits, and pausing the transport."""

from __future__ import annotations

import asyncio
from typing import cast

import httptools


class HttpConnection(asyncio.Protocol):
    """Called by its transport and by httptools. A subclass defines the callbacks and sets `_parser` last.

    Bytes that complete neither a head nor a piece of a body are limited, whether they belong to a head, a trailer or
    a chunk extension."""

    max_stalled_bytes: int
    _parser: httptools.HttpRequestParser | httptools.HttpResponseParser
    _transport: asyncio.Transport

    def __init__(self) -> None:
        self.is_over = False
        """no more messages are parsed"""
        self._is_paused = False
        self._stalled_bytes = 0
        self._header_fields: dict[bytes, bytes] = {}
        # httptools calls this for every header, so it pays that it is not a Python function.
        self.on_header = self._header_fields.__setitem__

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclass.
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, error: Exception | None) -> None:
        # The connection and its parser refer to each other: without this they would wait for the garbage collector.
        del self._parser

    def pause_reading(self) -> None:
        if not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self._is_paused:
            self._is_paused = False
            if not self._transport.is_closing():
                self._transport.resume_reading()

    def abort(self) -> None:
        self._transport.abort()

    def _feed(self, data: bytes) -> None:
        self._stalled_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError:
            # A callback raises to stop the parser, after it has set `is_over`. Anything else is a bug.
            if not self.is_over:
                raise
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self.on_malformed(str(error))
        else:
            if self._stalled_bytes > self.max_stalled_bytes:
                self.on_stalled()

    def on_malformed(self, problem: str) -> None:
        """The bytes are not HTTP/1.1, or they ask for an upgrade."""
        raise NotImplementedError

    def on_stalled(self) -> None:
        """Too many bytes came that completed nothing."""
        raise NotImplementedError
