"""The client's end of a connection, without a socket. What travels is tested in `tests/unit/kube`."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest

from tessera.http11.client import ClientConnection, ClientResponse

PIECE = 1 << 20
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


class Pausing(asyncio.Transport):
    """A transport that only knows whether it reads, and whether it was ended."""

    def __init__(self) -> None:
        super().__init__()
        self.is_paused = False
        self.is_aborted = False

    def write(self, _data: object) -> None:
        pass

    def abort(self) -> None:
        self.is_aborted = True

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
    connection, transport, response = sent(CHUNKED, b"1\r\na\r\n")
    assert transport.is_paused
    connection.data_received(b"0\r\n\r\n")
    assert not transport.is_paused
    assert (await response.read_chunk(), await response.read_chunk()) == (b"a", b"")


async def test_trailers_are_not_headers() -> None:
    head = b"HTTP/1.1 429 No\r\nRetry-After: 3\r\nTransfer-Encoding: chunked\r\n\r\n"
    _, _, response = sent(head + b"0\r\nRetry-After: 99\r\nX: y\r\n\r\n")
    assert await response.read() == b""
    assert response.headers == {"retry-after": "3", "transfer-encoding": "chunked"}


async def test_header_fields_of_earlier_responses_do_not_count() -> None:
    early = b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
    connection, _, response = sent(early + b"HTTP/1.1 200 OK\r\nX: y\r\nContent-Length: 0\r\n\r\n")
    assert response.headers == {"x": "y", "content-length": "0"}
    response = connection.send(b"GET / HTTP/1.1\r\n\r\n")
    connection.data_received(b"HTTP/1.1 204 No Content\r\n\r\n")
    assert (response.status, response.headers) == (204, {})


async def test_bytes_before_the_first_request_end_the_connection() -> None:
    connection, transport = ClientConnection(None, lambda _: None), Pausing()
    connection.connection_made(transport)
    connection.data_received(b"HTTP/1.1 408 Request Timeout\r\n\r\n")
    assert transport.is_aborted
    assert connection.is_over


async def test_a_second_response_to_one_request_ends_the_connection_and_is_not_read() -> None:
    connection, _, response = sent(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na" + CHUNKED)
    assert await response.read() == b"a"
    assert response.headers == {"content-length": "1"}
    assert connection.is_over


@pytest.mark.parametrize(
    ("complete", "stalled"),
    [
        pytest.param(b"", b"HTTP/1.1 200 OK\r\nX: ", id="head"),
        pytest.param(CHUNKED, b"1;", id="extension after the head"),
        pytest.param(CHUNKED + b"1\r\na\r\n", b"1;", id="extension after a chunk"),
    ],
)
async def test_a_mebibyte_may_arrive_that_completes_nothing(complete: bytes, stalled: bytes) -> None:
    connection, transport, response = sent(complete, stalled + b"x" * (PIECE - len(stalled)))
    assert (response.failure, transport.is_aborted) == ("", False)
    connection.data_received(b"x")
    assert "too large" in response.failure
    assert transport.is_aborted


async def test_a_connection_that_is_lost_is_released_and_leaves_nothing_to_the_collector() -> None:
    released = []
    connection = ClientConnection(None, lambda one: released.append((one.is_lost, one.is_leased)))
    connection.connection_made(Pausing())
    connection.connection_lost(None)
    assert released == [(True, False)]
    seen = weakref.ref(connection)
    gc.disable()
    try:
        del connection
        assert seen() is None
    finally:
        gc.enable()


async def test_a_response_that_is_over_leaves_nothing_to_the_collector() -> None:
    _, _, response = sent(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
    seen = weakref.ref(response)
    gc.disable()
    try:
        del response, _
        assert seen() is None
    finally:
        gc.enable()
