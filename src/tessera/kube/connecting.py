"""The aiohttp session: connections that notice a dead peer, no hidden retries, and a note of whether a request left."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import aiohttp

KEEP_ALIVE_SECONDS = 15.0
"""idle connections are given up before the other side does it, which would fail the next request"""
CONNECTIONS = 256
"""at once; watches hold one each"""
READ_BUFFER_BYTES = 1 << 18
"""a page of a list is megabytes; the default of 64 KiB means four times the wake-ups"""

_PROBE_AFTER_SECONDS, _PROBE_EVERY_SECONDS, _PROBES = 20, 10, 3
"""a watch is silent for minutes; without probes a peer that vanished is noticed only by the deadline"""


@dataclass(slots=True)
class Departure:
    """Whether a request left this process."""

    left: bool = False


def open_session(user_agent: str) -> aiohttp.ClientSession:
    """Deadlines are the caller's, so none are set here."""
    tracing = aiohttp.TraceConfig()
    tracing.on_request_headers_sent.append(_note_departure)
    session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(
            limit=CONNECTIONS, keepalive_timeout=KEEP_ALIVE_SECONDS, socket_factory=_probed_socket
        ),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
        cookie_jar=aiohttp.DummyCookieJar(),
        trace_configs=[tracing],
        read_bufsize=READ_BUFFER_BYTES,
        # In the cluster bandwidth is cheaper than the event loop's time.
        headers={"User-Agent": user_agent, "Accept": "application/json", "Accept-Encoding": "identity"},
    )
    # aiohttp sends GET, PUT and DELETE again by itself after a lost answer; whether to is the caller's to decide.
    session._retry_connection = False
    return session


async def _note_departure(
    session: aiohttp.ClientSession, context: SimpleNamespace, params: aiohttp.TraceRequestHeadersSentParams
) -> None:
    departure: Departure = context.trace_request_ctx
    departure.left = True


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
