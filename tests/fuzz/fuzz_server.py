"""A connection of the HTTP listener against arbitrary bytes in any pieces: it answers or closes, and never raises."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import atheris

with atheris.instrument_imports(include=["tessera.http11"]):
    from tessera.http11.router import Response, Route, Router
    from tessera.http11.server import ServerConnection, ServerState
    from tests.fuzz.transport import PipeTransport, pieces

ROUTES = [Route("GET", "/healthz", lambda _: Response(200)), Route("POST", "/filter", lambda body: Response(200, body))]


async def serve(data: bytes) -> None:
    state = ServerState(Router(ROUTES), lambda _: None)
    connection = ServerConnection(state)
    transport = PipeTransport()
    connection.connection_made(transport)
    for piece in pieces(data):
        if transport.is_closing():
            break
        connection.data_received(piece)
    assert transport.written.startswith(b"HTTP/1.1 ") or not transport.written
    connection.connection_lost(None)
    assert not state.connections


def run(loop: asyncio.AbstractEventLoop) -> Any:
    return lambda data: loop.run_until_complete(serve(data))


if __name__ == "__main__":
    atheris.Setup(sys.argv, run(asyncio.new_event_loop()))
    atheris.Fuzz()
