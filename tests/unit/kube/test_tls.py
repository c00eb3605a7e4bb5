from __future__ import annotations

import asyncio
import base64
import os
import ssl
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trustme
import yaml
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from tessera.kube.access import Access, load_access
from tessera.kube.client import KubeClient
from tessera.kube.credentials import ClientPair, Pem, TlsSettings
from tessera.kube.errors import AccessError, Unreachable
from tests.support.event_loops import in_fake_time, in_real_time
from tests.support.raw_server import RawServer, reply

CA = trustme.CA()
OTHER_CA = trustme.CA()


class Thing(msgspec.Struct):
    kind: str = ""


def serving(ca: trustme.CA, host: str = "127.0.0.1", *, clients: trustme.CA | None = None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.issue_cert(host).configure_cert(context)
    if clients is not None:
        clients.configure_trust(context)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def access_to(folder: Path, cluster: dict[str, Any], user: dict[str, Any] | None = None) -> Access:
    content = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": user or {}}],
    }
    (folder / "config").write_text(yaml.safe_dump(content))
    return load_access(kubeconfig=str(folder / "config"), context=None, environ={})


async def asked(access: Access) -> str:
    async with KubeClient(access) as client:
        return (await client.get("/api/v1/pods/x", Thing)).kind


ANSWER = reply(200, {"kind": "Pod"})
TRUST = {"certificate-authority-data": encoded(CA.cert_pem.bytes())}


@pytest.mark.parametrize(
    ("ca", "host", "settings", "reached"),
    [
        (CA, "127.0.0.1", TRUST, True),
        (CA, "127.0.0.1", {}, False),
        (OTHER_CA, "127.0.0.1", TRUST, False),
        (OTHER_CA, "127.0.0.1", {"insecure-skip-tls-verify": True}, True),
        (CA, "kubernetes.default", TRUST, False),
        (CA, "kubernetes.default", TRUST | {"tls-server-name": "kubernetes.default"}, True),
        (CA, "kubernetes.default", TRUST | {"tls-server-name": "other"}, False),
    ],
)
@in_real_time
async def test_only_the_right_server_is_talked_to(
    tmp_path: Path, ca: trustme.CA, host: str, settings: dict[str, Any], reached: bool
) -> None:
    async with RawServer(ANSWER, tls=serving(ca, host)) as server:
        access = access_to(tmp_path, {"server": server.url, **settings})
        if reached:
            assert await asked(access) == "Pod"
        else:
            with pytest.raises(Unreachable) as caught:
                await asked(access)
            assert not caught.value.maybe_done
            assert server.requests == []


@pytest.mark.parametrize("inline", [True, False])
@in_real_time
async def test_a_client_certificate_is_shown(tmp_path: Path, inline: bool) -> None:
    issued = CA.issue_cert("client")
    certificate, key = issued.cert_chain_pems[0].bytes(), issued.private_key_pem.bytes()
    user = {"client-certificate-data": encoded(certificate), "client-key-data": encoded(key)}
    if not inline:
        (tmp_path / "crt").write_bytes(certificate)
        (tmp_path / "key").write_bytes(key)
        user = {"client-certificate": "crt", "client-key": "key"}
    async with RawServer(ANSWER, tls=serving(CA, clients=CA)) as server:
        assert await asked(access_to(tmp_path, {"server": server.url, **TRUST}, user)) == "Pod"
        with pytest.raises(Unreachable):
            await asked(access_to(tmp_path, {"server": server.url, **TRUST}))
    assert len(server.requests) == 1


def touch(path: Path, data: bytes, moment: int) -> None:
    path.write_bytes(data)
    os.utime(path, (moment, moment))


@in_fake_time
async def test_an_authority_that_is_replaced_is_followed_within_a_minute(tmp_path: Path) -> None:
    path = tmp_path / "ca.crt"
    touch(path, CA.cert_pem.bytes(), 1)
    access = Access("https://h", tls=TlsSettings(authority=Pem("authority", path=path)))
    await access.headers()
    first = access.ssl
    touch(path, OTHER_CA.cert_pem.bytes(), 2)
    await access.headers()
    assert access.ssl is first
    await asyncio.sleep(60)
    await access.headers()
    second = access.ssl
    assert second is not first
    touch(path, b"half writ", 3)
    await asyncio.sleep(60)
    await access.headers()
    assert access.ssl is second
    path.unlink()
    await asyncio.sleep(60)
    await access.headers()
    assert access.ssl is second
    touch(path, CA.cert_pem.bytes(), 4)
    await asyncio.sleep(60)
    await access.headers()
    assert access.ssl is not second


def test_an_encrypted_key_is_refused_without_asking_for_a_passphrase() -> None:
    issued = CA.issue_cert("client")
    key = load_pem_private_key(issued.private_key_pem.bytes(), None)
    locked = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret"))
    pair = ClientPair(Pem("the certificate", data=issued.cert_chain_pems[0].bytes()), Pem("the key", data=locked))
    with pytest.raises(AccessError, match="the key: the key is encrypted"):
        Access("https://h", tls=TlsSettings(client=pair))
