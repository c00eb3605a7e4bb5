"""A request on its way, and what carries it: one that is the same for a direct connection and for a proxy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

KEEP_ALIVE_SECONDS = 15.0
"""idle connections are given up before the other side does it, which would fail the next request"""
CONNECTIONS = 256
"""in use at once; watches hold one each"""


@dataclass(slots=True)
class Request:
    """Everything that is sent."""

    method: str
    target: str
    """path and query, as they go on the line"""
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    left: bool = False
    """it began to leave this process, so that it may have had its effect"""

    @property
    def maybe_done(self) -> bool:
        """Whether something may have changed; what has no body changes nothing."""
        return self.left and self.body is not None


class CutShort(ConnectionError):
    """The connection ended before the answer did."""


class Reply(Protocol):
    """An answer whose head is there."""

    @property
    def status(self) -> int: ...

    def headers(self) -> Mapping[str, str]:
        """Names in lower case."""
        ...

    async def read(self) -> bytes:
        """All of the body."""
        ...

    def gather(self, gathers: bool) -> None:
        """Whoever reads chunks takes breaks from now on, or no longer: what comes meanwhile is wanted in one piece."""
        ...

    async def chunk(self) -> bytes:
        """What came next of the body; empty at its end. Raises CutShort for an end that is none."""
        ...

    def close(self) -> None:
        """Nobody wants the rest. The connection is not used again, since the other side may still be sending."""
        ...


class Carrier(Protocol):
    """Brings requests to one server; no retries, no deadlines. Faults are OSErrors."""

    async def send(self, request: Request) -> Reply:
        """When the head of the answer is there. Whoever does not read to the end has to close."""
        ...

    async def close(self) -> None: ...
