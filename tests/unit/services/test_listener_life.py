"""How the listener starts and stops, on raw sockets."""

from __future__ import annotations

import asyncio
import socket

import pytest

from tessera.services.listener import Listener
from tessera.services.value_types import Address
from tests.support.event_loops import in_fake_time, on_uvloop
from tests.support.listening import GRACE, either, get, post, serving
from tests.support.scheduler_process import until


@either
@on_uvloop
async def test_before_a_planned_end_every_response_ends_its_connection_and_none_is_cut(tls: bool) -> None:
    async with serving(tls=tls) as served:
        kept = await served.connect()
        kept.send(post("/echo", b"before"))
        assert await kept.answer() == (200, b"before")
        served.listener.announce_end()
        fresh = await served.connect()
        for client in (kept, fresh):
            client.send(post("/echo", b"after"))
            status, headers, body = await client.whole()
            assert (status, body, headers["Connection"]) == (200, b"after", "close")
            assert await client.ends()


@in_fake_time
async def test_stopping_needs_no_time_where_nothing_runs() -> None:
    async with serving() as served:
        idle, fresh = await served.connect(), await served.connect()
        idle.send(post("/echo"))
        await idle.answer()
        time = asyncio.get_running_loop().time
        began, at = time(), served.listener.address
        await served.listener.stop()
        assert time() == began
        assert await idle.ends()
        assert await fresh.ends()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(at.host, at.port)


@either
@on_uvloop
async def test_stopping_lets_requests_end_that_have_begun(tls: bool) -> None:
    async with serving(tls=tls) as served:
        running, arriving = await served.connect(), await served.connect()
        whole = post("/echo", b"abcdef")
        running.send(post("/later", b"abc"))
        arriving.send(post("/echo"), whole[:-3])
        await arriving.answer()
        await until(lambda: len(served.asked) == 2)
        stopping = asyncio.create_task(served.listener.stop())
        await asyncio.sleep(0)
        arriving.send(whole[-3:])
        served.gate.set()
        for client, body in ((running, b"abc"), (arriving, b"abcdef")):
            status, headers, found = await client.whole()
            assert (status, found, headers["Connection"]) == (200, body, "close")
            client.writer.close()
        await stopping


@in_fake_time
async def test_the_end_of_a_response_in_pieces_ends_its_connection_once_the_listener_stops() -> None:
    async with serving() as served:
        client = await served.connect()
        client.send(get("/followed"))
        assert (await client.reader.readuntil(b"begun")).startswith(b"HTTP/1.1 200")
        time = asyncio.get_running_loop().time
        began = time()
        stopping = asyncio.create_task(served.listener.stop())
        await asyncio.sleep(0)
        served.gate.set()
        await stopping
        assert time() == began
        assert await client.reader.read() == b"\r\n0\r\n\r\n"


@in_fake_time
async def test_what_does_not_end_within_the_grace_period_is_cut() -> None:
    async with serving() as served:
        running, arriving = await served.connect(), await served.connect()
        running.send(post("/later", b"abc"))
        arriving.send(post("/echo") + post("/echo", b"abcdef")[:-3])
        await arriving.answer()
        await until(lambda: len(served.asked) == 2)
        time = asyncio.get_running_loop().time
        began = time()
        await served.listener.stop()
        assert time() - began == GRACE
        assert await running.ends()
        assert await arriving.ends()
        assert served.ended == []


@in_fake_time
async def test_a_request_without_its_client_is_waited_for_too() -> None:
    async with serving() as served:
        client = await served.connect()
        client.send(post("/later", b"abc"))
        await until(lambda: served.asked)
        client.cut()
        asyncio.get_running_loop().call_later(GRACE / 2, served.gate.set)
        await served.listener.stop()
        assert served.ended == [b"abc"]


@on_uvloop
async def test_after_a_cut_no_response_is_sent_and_no_handler_runs() -> None:
    before = asyncio.all_tasks()
    async with serving() as served:
        client = await served.connect()
        client.send(post("/later", b"abc"))
        await until(lambda: served.asked)
        served.listener.cut()
        served.gate.set()
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await client.answer()
        await served.listener.stop()
        assert served.ended == []
        assert asyncio.all_tasks() == before


@on_uvloop
async def test_a_port_that_is_taken_is_a_fault_at_the_start() -> None:
    async with serving() as served:
        second = Listener(served.listener.address, [], grace=GRACE)
        with pytest.raises(OSError, match="address"):
            await second.start()
        await second.stop()


@pytest.mark.parametrize("host", ["", "0.0.0.0", "::1"])
@on_uvloop
async def test_a_listener_is_where_it_was_asked_to_be(host: str) -> None:
    if ":" in host and not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")
    async with serving(at=Address(host, 0)) as served:
        assert (served.listener.address.host, served.listener.address.port > 0) == (host, True)
        client = await served.connect()
        client.send(post("/echo", b"abc"))
        assert await client.answer() == (200, b"abc")
