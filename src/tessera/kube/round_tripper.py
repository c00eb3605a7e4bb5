"""The interface between the transport and what carries a request: a direct connection, or a proxy.

A round tripper sends each request once. It has no deadlines and no retries, and reports every fault as an OSError.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

KEEP_ALIVE_SECONDS = 15.0
"""idle connections are closed before the server does it, which would fail the next request"""
MAX_CONNECTIONS = 256
"""in use at once; a watch holds one"""
_PROBE_AFTER_SECONDS, _PROBE_EVERY_SECONDS, _PROBES = 20, 10, 3
"""a watch is silent for minutes; without probes a peer that vanished is noticed only at the deadline"""


@dataclass(slots=True)
class ApiRequest:
    """One request to the apiserver."""

    method: str
    target: str
    """path and query, as they appear on the request line"""
    headers: Mapping[str, str]
    body: bytes | None = None
    content_type: str = "application/json"
    """of the body"""
    was_sent: bool = False
    """it began to leave this process, so it may have taken effect"""

    @property
    def maybe_done(self) -> bool:
        """Whether it may have changed something; a request without a body changes nothing."""
        return self.was_sent and self.body is not None


class ApiResponse(Protocol):
    """A response whose head has arrived. Reading raises IncompleteResponse if the connection ends too early."""

    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> Mapping[str, str]:
        """Names are in lower case."""
        ...

    async def read(self) -> bytes:
        """The whole body."""
        ...

    async def read_chunk(self) -> bytes:
        """What arrived since the last call; empty at the end of the body."""
        ...

    def close(self) -> None:
        """Drop the rest. A connection with an incomplete response is not used again."""
        ...


class RoundTripper(Protocol):
    async def round_trip(self, request: ApiRequest) -> ApiResponse:
        """Returns when the head of the response has arrived. The caller reads the response to its end or closes it."""
        ...

    async def close(self) -> None: ...


def create_probed_socket(address: tuple[Any, ...]) -> socket.socket:
    """A socket that notices a peer which vanished."""
    family, kind, protocol = address[0], address[1], address[2]
    created = socket.socket(family=family, type=kind, proto=protocol)
    created.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    options = {
        "TCP_KEEPIDLE": _PROBE_AFTER_SECONDS,
        "TCP_KEEPINTVL": _PROBE_EVERY_SECONDS,
        "TCP_KEEPCNT": _PROBES,
        # Milliseconds; for data that is never acknowledged, which probes do not cover.
        "TCP_USER_TIMEOUT": 1000 * (_PROBE_AFTER_SECONDS + _PROBES * _PROBE_EVERY_SECONDS),
    }
    # Not every system knows all of them.
    known = {getattr(socket, name): value for name, value in options.items() if hasattr(socket, name)}
    for option, value in known.items():
        created.setsockopt(socket.IPPROTO_TCP, option, value)
    return created
