"""A connection of the HTTP listener against arbitrary bytes in any pieces: it answers or closes, and never raises."""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import Any

import atheris
import structlog

with atheris.instrument_imports(include=["tessera.http11"]):
    from tessera.http11.limits import Guard, ServerState
    from tessera.http11.router import Response, Route, Router
    from tessera.http11.server import ServerConnection
    from tessera.services.common_settings import ListenerLimits
    from tests.fuzz.transport import PipeTransport, pieces

ROUTES = [
    Route("GET", "/healthz", lambda _: Response(200)),
    Route("POST", "/filter", lambda request: Response(200, request.body)),
]


async def serve(data: bytes, guard: Guard | None) -> None:
    state = ServerState(Router(ROUTES), ListenerLimits(), guard=guard)
    connection = ServerConnection(state)
    transport = PipeTransport()
    connection.connection_made(transport)
    for piece in pieces(data):
        if transport.is_closing():
            break
        connection.data_received(piece)
    await asyncio.sleep(0)
    assert transport.written.startswith(b"HTTP/1.1 ") or not transport.written
    connection.connection_lost(None)
    assert not state.connections


async def serve_both(data: bytes) -> None:
    """A peer that is limited, and one that the guard admits."""
    await serve(data, None)
    await serve(data, lambda _: None)


def run(loop: asyncio.AbstractEventLoop) -> Any:
    return lambda data: loop.run_until_complete(serve_both(data))


if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    atheris.Setup(sys.argv, run(asyncio.new_event_loop()))
    atheris.Fuzz()
