"""The aiohttp session: connections that notice a dead peer, no hidden retries, and a note of whether a request left."""

from __future__ import annotations

import socket
from typing import Any

import aiohttp
from aiohttp.abc import AbstractStreamWriter

KEEP_ALIVE_SECONDS = 15.0
"""idle connections are given up before the other side does it, which would fail the next request"""
CONNECTIONS = 256
"""at once; watches hold one each"""
READ_BUFFER_BYTES = 1 << 18
"""a page of a list is megabytes; the default of 64 KiB means four times the wake-ups"""

_PROBE_AFTER_SECONDS, _PROBE_EVERY_SECONDS, _PROBES = 20, 10, 3
"""a watch is silent for minutes; without probes a peer that vanished is noticed only by the deadline"""


class Body(aiohttp.BytesPayload):
    """What a request sends, and whether it began to leave this process: then it may have had its effect."""

    left = False

    def __init__(self, content: bytes, content_type: str) -> None:
        super().__init__(content, content_type=content_type)

    async def write_with_length(self, writer: AbstractStreamWriter, content_length: int | None) -> None:
        # The head waits for the body, so nothing has left before.
        self.left = True
        await super().write_with_length(writer, content_length)


def open_session(user_agent: str) -> aiohttp.ClientSession:
    """Deadlines are the caller's, so none are set here."""
    session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(
            limit=CONNECTIONS, keepalive_timeout=KEEP_ALIVE_SECONDS, socket_factory=_probed_socket
        ),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
        cookie_jar=aiohttp.DummyCookieJar(),
        read_bufsize=READ_BUFFER_BYTES,
        # In the cluster bandwidth is cheaper than the event loop's time.
        headers={"User-Agent": user_agent, "Accept": "application/json", "Accept-Encoding": "identity"},
    )
    # aiohttp sends GET, PUT and DELETE again by itself after a lost answer; whether to is the caller's to decide.
    session._retry_connection = False
    return session


def _probed_socket(address: tuple[Any, ...]) -> socket.socket:
    family, kind, protocol = address[0], address[1], address[2]
    made = socket.socket(family=family, type=kind, proto=protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    options = {
        "TCP_KEEPIDLE": _PROBE_AFTER_SECONDS,
        "TCP_KEEPINTVL": _PROBE_EVERY_SECONDS,
        "TCP_KEEPCNT": _PROBES,
        # Milliseconds, and for data that is never acknowledged, which probes do not cover.
        "TCP_USER_TIMEOUT": 1000 * (_PROBE_AFTER_SECONDS + _PROBES * _PROBE_EVERY_SECONDS),
    }
    # Not every system knows every one of them.
    known = {getattr(socket, name): value for name, value in options.items() if hasattr(socket, name)}
    for option, value in known.items():
        made.setsockopt(socket.IPPROTO_TCP, option, value)
    return made
