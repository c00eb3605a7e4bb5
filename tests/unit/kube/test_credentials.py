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

from tessera.kube import credentials
from tessera.kube.access import Access, load_access
from tessera.kube.client import KubeClient
from tessera.kube.credentials import ClientPair, ExecPlugin, Pem, PluginSettings, TlsSettings, TokenFile
from tessera.kube.errors import AccessError, ApiError, Unreachable
from tests.support.event_loops import in_fake_time, in_real_time
from tests.support.network import RawServer, refusal, reply


class Thing(msgspec.Struct):
    kind: str = ""


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@in_fake_time
async def test_a_token_that_rotates_is_followed_within_a_minute(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("first\n")
    tokens = TokenFile(path)
    assert await tokens.headers() == bearer("first")
    path.write_text("second")
    await asyncio.sleep(59)
    assert await tokens.headers() == bearer("first")
    await asyncio.sleep(1)
    assert await tokens.headers() == bearer("second")
    assert tokens.issued_pair() is None


@in_fake_time
async def test_a_token_that_is_refused_is_read_again_at_once(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("first")
    async with (
        RawServer(refusal(401, "Unauthorized"), reply(200, {"kind": "Pod"})) as server,
        KubeClient(Access(server.url, credentials=TokenFile(path))) as client,
    ):
        with pytest.raises(ApiError) as caught:
            await client.get("/x", Thing)
        assert caught.value.status == 401
        path.write_text("second")
        await client.get("/x", Thing)
    assert [request.headers["authorization"] for request in server.requests] == ["Bearer first", "Bearer second"]


@pytest.mark.parametrize("broken", [None, "", "two words", "\x00", "é"])
@in_fake_time
async def test_a_file_that_is_broken_for_a_moment_does_not_end_a_good_token(tmp_path: Path, broken: str | None) -> None:
    path = tmp_path / "token"
    path.write_text("first")
    tokens = TokenFile(path)
    await tokens.headers()
    if broken is None:
        path.unlink()
    else:
        path.write_text(broken)
    await asyncio.sleep(100)
    assert await tokens.headers() == bearer("first")
    path.write_text("second")
    assert await tokens.headers() == bearer("second")


@pytest.mark.parametrize(
    ("content", "said"),
    [(None, "cannot read .*: No such file"), ("", "not a token"), ("a b", "not a token"), ("a\nb", "not a token")],
)
@in_fake_time
async def test_a_file_that_never_held_a_token_is_refused(tmp_path: Path, content: str | None, said: str) -> None:
    path = tmp_path / "token"
    if content is not None:
        path.write_text(content)
    with pytest.raises(AccessError, match=said):
        await TokenFile(path).headers()


V1, V1BETA1 = "client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1"
ENVIRON = {"PATH": os.environ["PATH"], "SECRET": "from the environment"}


def script(path: Path, *lines: str) -> str:
    path.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    path.chmod(0o755)
    return str(path)


def credential(version: str = V1, **status: Any) -> str:
    return msgspec.json.encode({"apiVersion": version, "kind": "ExecCredential", "status": status}).decode()


def says(text: str) -> str:
    return f"cat <<'END'\n{text}\nEND"


def plugin(command: str, *, version: str = V1, now: list[float] | None = None, **settings: Any) -> ExecPlugin:
    chosen = PluginSettings(where="config: users[0].user.exec", api_version=version, command=command, **settings)
    return ExecPlugin(chosen, now=(lambda: now[0]) if now else (lambda: 0.0))


def loaded(folder: Path, section: dict[str, Any], cluster: dict[str, Any] | None = None) -> Access:
    content = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": "http://h:1", **(cluster or {})}}],
        "users": [{"name": "u", "user": {"exec": section}}],
    }
    (folder / "config").write_text(yaml.safe_dump(content))
    return load_access(kubeconfig=str(folder / "config"), context=None, environ=ENVIRON)


@pytest.mark.parametrize("version", [V1, V1BETA1])
@in_real_time
async def test_a_plugin_gives_the_token_and_gets_its_arguments_and_environment(tmp_path: Path, version: str) -> None:
    script(
        tmp_path / "plugin.sh",
        'echo "$@|$SECRET|$EXTRA" > "$0.seen"',
        'echo "$KUBERNETES_EXEC_INFO" > "$0.info"',
        says(credential(version, token="tok")),
    )
    section = {
        "apiVersion": version,
        "command": "./plugin.sh",
        "args": ["--cluster", "a b"],
        "env": [{"name": "EXTRA", "value": "é"}],
        "interactiveMode": "IfAvailable",
    }
    access = loaded(tmp_path, section)
    assert await access.headers() == {"Authorization": "Bearer tok"}
    assert (tmp_path / "plugin.sh.seen").read_text() == "--cluster a b|from the environment|é\n"
    info = msgspec.json.decode((tmp_path / "plugin.sh.info").read_bytes())
    assert info == {"apiVersion": version, "kind": "ExecCredential", "spec": {"interactive": False}}


@in_real_time
async def test_a_plugin_is_told_of_the_cluster_where_the_kubeconfig_says_so(tmp_path: Path) -> None:
    script(tmp_path / "plugin.sh", 'echo "$KUBERNETES_EXEC_INFO" > "$0.info"', says(credential(token="tok")))
    section = {"apiVersion": V1, "command": "./plugin.sh", "provideClusterInfo": True}
    (tmp_path / "ca").write_text("abc")
    cluster = {"certificate-authority": "ca", "tls-server-name": "k", "proxy-url": "http://p:1"}
    await loaded(tmp_path, section, cluster).headers()
    info = msgspec.json.decode((tmp_path / "plugin.sh.info").read_bytes())
    assert info["spec"]["cluster"] == {
        "server": "http://h:1",
        "certificate-authority-data": "YWJj",
        "tls-server-name": "k",
        "proxy-url": "http://p:1",
    }
    await loaded(tmp_path, section, {"insecure-skip-tls-verify": True}).headers()
    info = msgspec.json.decode((tmp_path / "plugin.sh.info").read_bytes())
    assert info["spec"]["cluster"] == {"server": "http://h:1", "insecure-skip-tls-verify": True}


def counting(path: Path, **status: Any) -> str:
    return script(path, 'echo x >> "$0.runs"', says(credential(**status)))


def runs(path: Path) -> int:
    return (path.parent / f"{path.name}.runs").read_text().count("x")


@in_real_time
async def test_credentials_are_kept_until_shortly_before_they_expire(tmp_path: Path) -> None:
    path = tmp_path / "plugin.sh"
    now = [1_793_880_000.0]  # 2026-11-05T12:00:00Z
    source = plugin(counting(path, token="tok", expirationTimestamp="2026-11-05T12:10:00Z"), now=now, env=ENVIRON)
    await asyncio.gather(*(source.headers() for _ in range(5)))
    now[0] += 589
    await source.headers()
    assert runs(path) == 1
    now[0] += 1
    await source.headers()
    assert runs(path) == 2


@in_real_time
async def test_credentials_without_an_end_are_kept_until_they_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "plugin.sh"
    now = [0.0]
    source = plugin(counting(path, token="tok"), now=now, env=ENVIRON)
    await source.headers()
    now[0] = 1e9
    await source.headers()
    assert runs(path) == 1
    source.forget()
    assert source.issued_pair() is None
    await source.headers()
    assert runs(path) == 2


@in_real_time
async def test_a_plugin_may_issue_a_client_certificate(tmp_path: Path) -> None:
    issued = trustme.CA().issue_cert("client")
    answer = credential(
        clientCertificateData=issued.cert_chain_pems[0].bytes().decode(),
        clientKeyData=issued.private_key_pem.bytes().decode(),
    )
    source = plugin(script(tmp_path / "plugin.sh", says(answer)), env=ENVIRON)
    access = Access("https://h", credentials=source)
    before = access.ssl
    assert await access.headers() == {}
    after = access.ssl
    assert after is not before
    await access.headers()
    assert access.ssl is after
    bad = credential(clientCertificateData="x", clientKeyData="y")
    broken = Access("https://h", credentials=plugin(script(tmp_path / "bad.sh", says(bad)), env=ENVIRON))
    with pytest.raises(AccessError, match=r"bad.sh: clientCertificateData: not a usable certificate"):
        await broken.headers()


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["echo 'no such profile' >&2", "exit 3"], "failed with exit status 3: no such profile"),
        (["exit 1"], "failed with exit status 1: it wrote no message"),
        (["kill -9 $$"], "failed with exit status -9"),
        (["echo nonsense"], "gave no ExecCredential"),
        (["true"], "gave no ExecCredential"),
        (
            [says(credential("client.authentication.k8s.io/v1beta1", token="x"))],
            "gave ExecCredential of .*v1beta1, exp",
        ),
        (["echo '{}'"], "gave nothing of no version"),
        ([says(credential())], "neither a token nor a client certificate"),
        ([says(credential(clientKeyData="x"))], "only one of clientCertificateData and clientKeyData"),
        ([says(credential(token="a b"))], "not a token"),
        ([says(credential(token="x", expirationTimestamp="soon"))], "gave no ExecCredential"),
        ([says(credential(token="x", expirationTimestamp="2026-11-05T12:00:00"))], "gave no ExecCredential"),
    ],
)
@in_real_time
async def test_a_plugin_that_fails_says_why(tmp_path: Path, lines: list[str], said: str) -> None:
    source = plugin(script(tmp_path / "plugin.sh", *lines), env=ENVIRON)
    with pytest.raises(AccessError, match=said) as caught:
        await source.headers()
    assert str(caught.value).startswith("config: users[0].user.exec: ")


@in_real_time
async def test_a_plugin_that_is_not_there_says_how_to_get_it() -> None:
    with pytest.raises(AccessError, match=r"no-such-plugin cannot be run: .*; install it with apt"):
        await plugin("no-such-plugin", install_hint="install it with apt", env=ENVIRON).headers()
    with pytest.raises(AccessError, match=r"cannot be run"):
        await plugin("nul\0byte", env=ENVIRON).headers()


@in_real_time
async def test_a_plugin_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credentials, "RUN_S", 0.2)
    path = script(tmp_path / "plugin.sh", 'echo $$ > "$0.pid"', "exec sleep 1000")
    with pytest.raises(AccessError, match=r"did not finish within 0.2 s"):
        await plugin(path, env=ENVIRON).headers()
    pid = int((tmp_path / "plugin.sh.pid").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


CA = trustme.CA()
OTHER_CA = trustme.CA()


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
