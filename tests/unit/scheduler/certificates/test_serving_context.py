"""Real TLS connections over the loopback, and certificates from files that change."""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trustme
import uvloop
from aiohttp import web

from tessera.scheduler.certificates.authority import DAY, LEAF_S, BadCertificate, Pair, Renew, make_authority, renewed
from tessera.scheduler.certificates.serving_context import CertificateFiles, ServingContext
from tests.support.network import NAMES, NOW, fresh, renewal


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(100):
        writer.write(data)
    writer.close()


@contextlib.asynccontextmanager
async def listening(context: ssl.SSLContext) -> AsyncIterator[int]:
    server = await asyncio.start_server(_echo, "127.0.0.1", 0, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def connected(port: int, authority: bytes, client: trustme.LeafCert | None = None) -> Connection:
    context = ssl.create_default_context(cadata=authority.decode())
    if client is not None:
        client.configure_cert(context)
    return await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname="tessera.gpu.svc")


async def echoed(connection: Connection) -> str:
    """The end of the certificate that this connection was opened with, if the connection works."""
    reader, writer = connection
    writer.write(b"x")
    assert await reader.read(1) == b"x"
    return str(writer.get_extra_info("peercert")["notAfter"])


async def closed(connection: Connection) -> None:
    connection[1].close()
    with contextlib.suppress(ssl.SSLError, ConnectionError):
        await connection[1].wait_closed()


async def test_a_renewed_certificate_is_shown_to_new_connections_and_old_ones_live_on() -> None:
    now = time.time()
    first = fresh(now - 10 * DAY)
    second = renewed(renewal(first.data, now, NAMES | {"more.example"}), now=now, names=NAMES | {"more.example"})
    serving = ServingContext()
    serving.serve(first.leaf)
    async with listening(serving.context) as port:
        old = await connected(port, first.bundle)
        end = await echoed(old)
        serving.serve(second.leaf)
        new = await connected(port, first.bundle)
        assert await echoed(new) != end
        assert await echoed(old) == end
        await closed(old)
        await closed(new)


async def test_through_a_rotation_of_the_authority_the_bundle_covers_both_certificates() -> None:
    now = time.time()
    old = fresh(now)
    step = Renew("rotation", None, old.authorities, NAMES)
    new = renewed(step, now=now, names=NAMES)
    serving = ServingContext()
    async with listening(serving.context) as port:
        for leaf in (old.leaf, new.leaf):
            serving.serve(leaf)
            connection = await connected(port, new.bundle)
            await echoed(connection)
            await closed(connection)
        with pytest.raises(ssl.SSLCertVerificationError):
            await connected(port, old.bundle)


async def test_before_the_first_certificate_handshakes_fail() -> None:
    serving = ServingContext()
    async with listening(serving.context) as port:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await connected(port, make_authority(now=time.time()).certificate)


@pytest.mark.parametrize("kinds", [("ECDSA", "RSA"), ("RSA", "ECDSA")])
async def test_a_certificate_with_another_kind_of_key_takes_over_completely(kinds: tuple[str, str]) -> None:
    authority = trustme.CA()
    serving = ServingContext()
    async with listening(serving.context) as port:
        seen = []
        for kind in kinds:
            made = authority.issue_cert("tessera.gpu.svc", key_type=trustme.KeyType[kind], common_name=kind)
            serving.serve(Pair(made.cert_chain_pems[0].bytes(), made.private_key_pem.bytes()))
            connection = await connected(port, authority.cert_pem.bytes())
            subject = dict(pair[0] for pair in connection[1].get_extra_info("peercert")["subject"])
            seen.append(subject["commonName"])
            await closed(connection)
        assert seen == list(kinds)


async def test_a_bad_pair_leaves_the_old_certificate_in_use() -> None:
    good, other = fresh(time.time()), fresh(time.time())
    serving = ServingContext()
    serving.serve(good.leaf)
    for bad in (
        Pair(good.leaf.certificate, other.leaf.key),
        Pair(b"", b""),
        Pair(good.leaf.certificate + b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", good.leaf.key),
    ):
        with pytest.raises(BadCertificate):
            serving.serve(bad)
    assert serving.served == good.leaf
    async with listening(serving.context) as port:
        connection = await connected(port, good.bundle)
        await echoed(connection)
        await closed(connection)


def test_a_weak_certificate_that_tls_does_not_accept_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise ssl.SSLError("EE_KEY_TOO_SMALL")

    monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", refuse)
    with pytest.raises(BadCertificate, match="EE_KEY_TOO_SMALL"):
        ServingContext().serve(fresh().leaf)


def test_where_files_cannot_live_in_memory_a_temporary_one_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    serving, leaf = ServingContext(), fresh().leaf
    serving.serve(leaf)
    assert serving.served == leaf


async def test_clients_may_show_a_certificate_of_the_configured_authority_and_no_other() -> None:
    made = fresh(time.time())
    friends, strangers = trustme.CA(), trustme.CA()
    serving = ServingContext(client_ca=friends.cert_pem.bytes())
    seen: list[Any] = []

    async def answer(request: web.Request) -> web.Response:
        assert request.transport is not None
        seen.append(request.transport.get_extra_info("peercert"))
        return web.Response(text="ok")

    app = web.Application()
    app.router.add_get("/", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=serving.context)
    await site.start()
    port = runner.addresses[0][1]

    async def asked(client: trustme.LeafCert | None) -> bool:
        connection = await connected(port, made.bundle, client)
        connection[1].write(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        try:
            return b"200 OK" in await connection[0].read(1000)
        except (ssl.SSLError, ConnectionError):
            return False
        finally:
            await closed(connection)

    try:
        # Also after a change of the serving certificate.
        for leaf in (
            made.leaf,
            renewed(renewal(made.data, time.time(), NAMES | {"y"}), now=time.time(), names=NAMES).leaf,
        ):
            serving.serve(leaf)
            assert await asked(None)
            assert await asked(friends.issue_cert("friend.example"))
            assert not await asked(strangers.issue_cert("stranger.example"))
    finally:
        await runner.cleanup()
    names = [dict(one["subjectAltName"]) if one else None for one in seen]
    assert names == [None, {"DNS": "friend.example"}] * 2


@pytest.mark.parametrize("text", [b"nonsense", b"\xff\xfe", make_authority(now=NOW).key])
def test_a_client_authority_that_is_no_certificate_is_refused(text: bytes) -> None:
    with pytest.raises(BadCertificate, match="clients' authority"):
        ServingContext(client_ca=text)


def test_certificates_are_replaced_on_uvloop_too() -> None:
    first, second = fresh(time.time()), fresh(time.time())

    async def scene() -> None:
        serving = ServingContext()
        async with listening(serving.context) as port:
            for made in (first, second):
                serving.serve(made.leaf)
                connection = await connected(port, made.bundle)
                await echoed(connection)
                await closed(connection)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(scene())


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    return tmp_path / "tls.crt", tmp_path / "tls.key"


def write(files: tuple[Path, Path], pair: Pair) -> None:
    """As kubelet does it: new files take the place of the old ones."""
    for path, text in zip(files, (pair.certificate, pair.key), strict=True):
        other = path.with_suffix(".new")
        other.write_bytes(text)
        other.replace(path)


def follow(files: tuple[Path, Path], serving: ServingContext) -> CertificateFiles:
    return CertificateFiles(str(files[0]), str(files[1]), serving)


def test_files_are_loaded_and_followed(files: tuple[Path, Path]) -> None:
    serving = ServingContext()
    following = follow(files, serving)
    first, second = fresh().leaf, fresh(NOW + DAY).leaf
    write(files, first)
    assert following.read() == NOW + LEAF_S
    assert following.read() is None
    write(files, second)
    assert following.read() == NOW + DAY + LEAF_S
    assert serving.served == second
    write(files, second)
    assert following.read() is None
    assert following.read() is None


def test_files_may_come_later(files: tuple[Path, Path]) -> None:
    following = follow(files, ServingContext())
    for _ in range(2):
        with pytest.raises(BadCertificate, match=f"cannot read {files[0]}: No such file"):
            following.read()
    write(files, fresh().leaf)
    assert following.read() is not None


@pytest.mark.parametrize("half", [0, 1])
def test_a_half_written_pair_keeps_the_old_certificate_until_the_other_half_is_there(
    files: tuple[Path, Path], half: int
) -> None:
    serving = ServingContext()
    following = follow(files, serving)
    old, new = fresh().leaf, fresh().leaf
    write(files, old)
    following.read()
    halves = (new.certificate, new.key)
    files[half].write_bytes(halves[half])
    with pytest.raises(BadCertificate, match="does not belong"):
        following.read()
    assert serving.served == old
    files[1 - half].write_bytes(halves[1 - half])
    assert following.read() is not None
    assert serving.served == new


@pytest.mark.parametrize("text", [b"", b"nonsense"])
def test_bad_files_keep_the_old_certificate(files: tuple[Path, Path], text: bytes) -> None:
    serving = ServingContext()
    following = follow(files, serving)
    old = fresh().leaf
    write(files, old)
    following.read()
    files[0].write_bytes(text)
    for _ in range(2):
        with pytest.raises(BadCertificate, match=str(files[0])):
            following.read()
    assert serving.served == old
    write(files, old)
    assert following.read() is None
