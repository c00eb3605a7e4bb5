"""The client's end of a connection against arbitrary bytes in any pieces: a response, or a failure with a text."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import atheris

with atheris.instrument_imports(include=["tessera.http11"]):
    from tessera.http11.client import ClientConnection
    from tests.fuzz.transport import PipeTransport, pieces


async def exchange(data: bytes) -> None:
    released: list[ClientConnection] = []
    connection = ClientConnection(None, released.append)
    transport = PipeTransport()
    connection.connection_made(transport)
    response = connection.send(b"GET / HTTP/1.1\r\n\r\n")
    response.is_read_whole = True
    for piece in pieces(data):
        if transport.is_closing():
            break
        connection.data_received(piece)
    connection.connection_lost(None)
    assert response.is_complete != bool(response.failure)
    assert released
    assert 200 <= response.status < 1000 or not response.is_complete
    _ = response.headers


def run(loop: asyncio.AbstractEventLoop) -> Any:
    return lambda data: loop.run_until_complete(exchange(data))


if __name__ == "__main__":
    atheris.Setup(sys.argv, run(asyncio.new_event_loop()))
    atheris.Fuzz()
