"""Plugins are shell scripts that really run, in real time; what expires does so by a clock of the test's own."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trustme
import yaml

from tessera.kube import credentials
from tessera.kube.access import Access, load_access
from tessera.kube.credentials import ExecPlugin, PluginSettings
from tessera.kube.errors import AccessError
from tests.support.event_loops import in_real_time

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
