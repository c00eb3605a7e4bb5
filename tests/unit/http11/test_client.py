"""The client's end of a connection, without a socket. What travels is tested in `tests/unit/kube`."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest

from tessera.http11.client import ClientConnection, ClientResponse

PIECE = 1 << 20


class Pausing(asyncio.Transport):
    """A transport that only knows whether it reads."""

    def __init__(self) -> None:
        super().__init__()
        self.is_paused = False

    def write(self, _data: object) -> None:
        pass

    def abort(self) -> None:
        pass

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False


def sent(*data: bytes) -> tuple[ClientConnection, Pausing, ClientResponse]:
    """A connection that has sent a request and received `data`."""
    connection, transport = ClientConnection(None, lambda _: None), Pausing()
    connection.connection_made(transport)
    response = connection.send(b"GET / HTTP/1.1\r\n\r\n")
    for piece in data:
        connection.data_received(piece)
    return connection, transport, response


@pytest.mark.parametrize("whole", [False, True])
async def test_a_body_waits_for_its_reader_unless_all_of_it_is_wanted(whole: bool) -> None:
    connection, transport, response = sent(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (3 * PIECE))
    await response.wait_for_head()
    assert transport.is_paused
    reading = asyncio.create_task(response.read() if whole else response.read_chunk())
    await asyncio.sleep(0)
    assert not transport.is_paused
    connection.data_received(b"x" * PIECE)
    assert not transport.is_paused
    connection.data_received(b"x" * PIECE)
    assert transport.is_paused is not whole
    if whole:
        connection.data_received(b"x" * PIECE)
        assert len(await reading) == 3 * PIECE
    else:
        assert len(await reading) == 2 * PIECE
        more = asyncio.create_task(response.read_chunk())
        await asyncio.sleep(0)
        assert not transport.is_paused
        connection.data_received(b"x" * PIECE)
        assert len(await more) == PIECE
        assert await response.read_chunk() == b""


async def test_an_idle_connection_reads_so_that_it_notices_its_end() -> None:
    connection, transport, response = sent(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\na\r\n")
    assert transport.is_paused
    connection.data_received(b"0\r\n\r\n")
    assert not transport.is_paused
    assert (await response.read_chunk(), await response.read_chunk()) == (b"a", b"")


async def test_trailers_are_not_headers() -> None:
    head = b"HTTP/1.1 429 No\r\nRetry-After: 3\r\nTransfer-Encoding: chunked\r\n\r\n"
    _, _, response = sent(head + b"0\r\nRetry-After: 99\r\nX: y\r\n\r\n")
    assert await response.read() == b""
    assert response.headers == {"retry-after": "3", "transfer-encoding": "chunked"}


async def test_a_response_that_is_over_leaves_nothing_to_the_collector() -> None:
    _, _, response = sent(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
    seen = weakref.ref(response)
    gc.disable()
    try:
        del response, _
        assert seen() is None
    finally:
        gc.enable()
