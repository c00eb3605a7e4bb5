"""Requests through a proxy, and through tunnels."""

from __future__ import annotations

import asyncio
import socket
import ssl
from typing import Any, Self

import pytest
import trustme

from tessera.http11.client import ClientConnection
from tessera.kube import connection_pool
from tessera.kube.access import Access
from tessera.kube.client import KubeClient
from tessera.kube.connection_pool import create_probed_socket
from tessera.kube.credentials import FixedHeaders, Pem, TlsSettings
from tessera.kube.errors import Unreachable
from tests.support.event_loops import in_fake_time, in_real_time, on_uvloop
from tests.support.network import Answer, Exchange, RawServer, close_at_once, raw, refusal, reply

THING = "/api/v1/namespaces/team/pods/a"

BODY = b'{"name":"a"}'

COMPLETE = b"HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\n" + BODY


def client_of(server: RawServer, **settings: Any) -> KubeClient:
    return KubeClient(Access(server.url), **settings)


async def byte_by_byte(exchange: Exchange) -> bool:
    for byte in COMPLETE:
        await exchange.send(bytes([byte]))
        await asyncio.sleep(0.001)
    return True


# -- proxies


@in_fake_time
async def test_a_proxy_gets_the_whole_address() -> None:
    async with RawServer(reply(200, {"name": "a"}), refusal(404), close_at_once) as proxy:
        access = Access("http://apiserver.test:6443/base", proxy=proxy.url, credentials=FixedHeaders({"X-As": "me"}))
        async with KubeClient(access) as client:
            assert await client.get(THING, dict[str, Any]) == {"name": "a"}
            with pytest.raises(Exception, match="404"):
                await client.get(THING, dict[str, Any])
            with pytest.raises(Unreachable) as caught:
                await client.create("/api/v1/pods", {"kind": "Pod"})
            assert caught.value.maybe_done
    first, _, last = proxy.requests
    assert first.target == f"http://apiserver.test:6443/base{THING}"
    assert first.headers["x-as"] == "me"
    assert (last.headers["content-type"], last.json) == ("application/json", {"kind": "Pod"})


@pytest.mark.parametrize("proxied", [False, True])
@in_fake_time
async def test_a_peer_that_vanishes_is_noticed_by_probes(proxied: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[socket.socket] = []

    def noted(address: Any) -> socket.socket:
        made.append(create_probed_socket(address))
        return made[-1]

    monkeypatch.setattr(connection_pool, "create_probed_socket", noted)
    async with RawServer(reply(200, {})) as server:
        access = Access("http://apiserver.test", proxy=server.url) if proxied else Access(server.url)
        async with KubeClient(access) as client:
            await client.get(THING, dict[str, Any])
            assert [one.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) for one in made] == [1]


@in_fake_time
async def test_a_connection_of_older_certificates_is_not_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with RawServer(reply(200, {})) as server, client_of(server) as client:
        await client.get(THING, dict[str, Any])
        # As after a rotation: the idle connection has an older context than the access.
        (idle,) = client._transport._pool._idle  # type: ignore[union-attr]
        monkeypatch.setattr(idle, "tls", object())
        await client.get(THING, dict[str, Any])
    assert server.connections == 2


@in_fake_time
async def test_a_watch_goes_through_a_proxy() -> None:
    lines = b'{"type":"ADDED","object":{"name":"a"}}\n{"type":"DEL'
    answer = raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n" % (len(lines), lines))
    async with RawServer(answer) as proxy, KubeClient(Access("http://apiserver.test", proxy=proxy.url)) as client:
        events = client.watch(THING, dict[str, Any], resource_version="1", timeout_seconds=9)
        assert (await anext(events)).object == {"name": "a"}
        with pytest.raises(Unreachable):
            await anext(events)


class TunnelProxy:
    """A proxy that opens a tunnel to `server`, whatever place is asked for."""

    def __init__(self, server: RawServer, *, tls: ssl.SSLContext | None = None, says: bytes = b"") -> None:
        self.places: list[str] = []
        self._server, self._tls, self._says = server, tls, says
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._listener = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls)
        port = self._listener.sockets[0].getsockname()[1]
        self.url = f"{'https' if self._tls else 'http'}://127.0.0.1:{port}"
        return self

    async def __aexit__(self, *error: object) -> None:
        self._listener.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        method, place, _ = (await reader.readuntil(b"\r\n\r\n")).split(b" ", 2)
        assert method == b"CONNECT"
        self.places.append(place.decode())
        back, forth = await asyncio.open_connection("127.0.0.1", self._server.port)
        writer.write(b"HTTP/1.1 200 Connection established\r\n" + self._says + b"\r\n")
        try:
            await asyncio.gather(_pass_on(reader, forth), _pass_on(back, writer))
        finally:
            forth.close()
            writer.close()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
    writer.close()


def tls_pair(authority: trustme.CA, name: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(name).configure_cert(context)
    return context


def access_through(proxy: str, authority: trustme.CA, server: str = "https://apiserver.test:6443/base") -> Access:
    tls = TlsSettings(authority=Pem("test", data=authority.cert_pem.bytes()))
    return Access(server, proxy=proxy, tls=tls, credentials=FixedHeaders({"X-As": "me"}))


@pytest.mark.parametrize("says", [b"", b"Content-Length: 0\r\n"])
@pytest.mark.parametrize("is_secure", [False, True])
@pytest.mark.parametrize("on_loop", [in_real_time, on_uvloop])
def test_tls_with_the_server_goes_through_a_tunnel_of_the_proxy(on_loop: Any, is_secure: bool, says: bytes) -> None:
    async def check() -> None:
        authority = trustme.CA()
        proxy_tls = tls_pair(authority, "127.0.0.1") if is_secure else None
        async with (
            RawServer(reply(200, {"name": "a"}), tls=tls_pair(authority, "apiserver.test")) as server,
            TunnelProxy(server, tls=proxy_tls, says=says) as proxy,
            KubeClient(access_through(proxy.url, authority)) as client,
        ):
            for _ in range(2):
                assert await client.get(THING, dict[str, Any]) == {"name": "a"}
            assert proxy.places == ["apiserver.test:6443"], "the tunnel is used again"
            assert [(each.target, each.headers["x-as"]) for each in server.requests] == [(f"/base{THING}", "me")] * 2

    on_loop(check)()


@pytest.mark.parametrize("on_loop", [in_real_time, on_uvloop])
def test_a_server_behind_a_tunnel_has_to_show_its_certificate(on_loop: Any) -> None:
    async def check() -> None:
        authority = trustme.CA()
        async with (
            RawServer(reply(200, {}), tls=tls_pair(authority, "other.test")) as server,
            TunnelProxy(server) as proxy,
            KubeClient(access_through(proxy.url, authority)) as client,
        ):
            with pytest.raises(Unreachable, match=r"port 6443 through the proxy.*certificate") as caught:
                await client.create("/api/v1/pods", {})
            assert not caught.value.maybe_done
            assert server.requests == []

    on_loop(check)()


@pytest.mark.parametrize("on_loop", [in_real_time, on_uvloop])
def test_a_request_cancelled_as_its_tls_handshake_completes_leaves_its_socket_to_the_transport(
    on_loop: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Were the socket closed under the transport, the next one would get its number, and the loop refuses that."""

    async def check() -> None:
        authority = trustme.CA()
        async with RawServer(reply(200, {"name": "a"}), tls=tls_pair(authority, "127.0.0.1")) as server:
            tls = TlsSettings(authority=Pem("test", data=authority.cert_pem.bytes()))
            async with KubeClient(Access(server.url, tls=tls)) as client:
                asking = asyncio.create_task(client.get(THING, dict[str, Any]))
                with monkeypatch.context() as patched:
                    made = ClientConnection.connection_made

                    def made_and_cancelled(self: ClientConnection, transport: asyncio.BaseTransport) -> None:
                        made(self, transport)
                        asking.cancel()

                    patched.setattr(ClientConnection, "connection_made", made_and_cancelled)
                    with pytest.raises(asyncio.CancelledError):
                        await asking
                found = await asyncio.gather(*(client.get(THING, dict[str, Any]) for _ in range(3)))
                assert found == [{"name": "a"}] * 3

    on_loop(check)()


@pytest.mark.parametrize("on_loop", [in_real_time, on_uvloop])
def test_a_request_cancelled_during_its_tls_handshake_ends_its_connection(on_loop: Any) -> None:
    async def check() -> None:
        has_begun, has_ended = asyncio.Event(), asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(1)
            has_begun.set()
            while await reader.read(1 << 16):
                pass
            has_ended.set()
            writer.close()

        listener = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with listener:
            port = listener.sockets[0].getsockname()[1]
            async with KubeClient(Access(f"https://127.0.0.1:{port}")) as client:
                asking = asyncio.create_task(client.get(THING, dict[str, Any]))
                await has_begun.wait()
                asking.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await asking
                await has_ended.wait()

    on_loop(check)()


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (reply(407), "the proxy answered with status 407"),
        (close_at_once, "the connection ended"),
        (raw(b"220 ready\r\n"), "not HTTP"),
    ],
)
@in_fake_time
async def test_a_proxy_that_opens_no_tunnel_is_a_fault_and_nothing_was_sent(answer: Answer, problem: str) -> None:
    authority = trustme.CA()
    async with RawServer(answer) as proxy, KubeClient(access_through(proxy.url, authority)) as client:
        for _ in range(2):
            with pytest.raises(Unreachable, match=f"through the proxy: .*{problem}") as caught:
                await client.create("/api/v1/pods", {"kind": "Pod"})
            assert not caught.value.maybe_done
    assert [each.method for each in proxy.requests] == ["CONNECT", "CONNECT"]


@in_fake_time
async def test_the_address_of_a_server_in_a_tunnel_may_be_of_ipv6() -> None:
    authority = trustme.CA()
    async with (
        RawServer(reply(407)) as proxy,
        KubeClient(access_through(proxy.url, authority, "https://[::1]")) as client,
    ):
        with pytest.raises(Unreachable):
            await client.get(THING, dict[str, Any])
    assert (proxy.requests[0].target, proxy.requests[0].headers["host"]) == ("[::1]:443", "[::1]:443")
