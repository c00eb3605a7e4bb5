from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
import trustme
import yaml

from tessera.kube.access import Access, load_access
from tessera.kube.errors import AccessError
from tests.support.event_loops import in_fake_time

CA = trustme.CA()
CA_PEM = CA.cert_pem.bytes()
CLIENT = CA.issue_cert("client")
CERTIFICATE, KEY = CLIENT.cert_chain_pems[0].bytes(), CLIENT.private_key_pem.bytes()


def base64ed(data: bytes) -> str:
    return base64.b64encode(data).decode()


def config(
    cluster: Any = None, user: Any = None, *, name: str = "main", namespace: Any = None, current: str | None = "main"
) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "preferences": {},
        "current-context": current,
        "clusters": [{"name": f"{name}-cluster", "cluster": cluster or {"server": f"http://{name}:8080"}}],
        "users": [{"name": f"{name}-user", "user": user}],
        "contexts": [
            {
                "name": name,
                "context": {"cluster": f"{name}-cluster", "user": f"{name}-user", "namespace": namespace},
            }
        ],
    }


def written(path: Path, content: Any) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return str(path)


def pod_files(root: Path, *, token: str = "tok-1\n", namespace: str = "kube-system\n") -> dict[str, str]:
    root.mkdir(parents=True, exist_ok=True)
    (root / "token").write_text(token)
    (root / "ca.crt").write_bytes(CA_PEM)
    (root / "namespace").write_text(namespace)
    return {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}


def test_the_named_file_comes_first_then_the_variable_then_the_pod_then_the_home(tmp_path: Path) -> None:
    flag = written(tmp_path / "flag", config(name="flag", current="flag"))
    variable = written(tmp_path / "variable", config(name="variable", current="variable"))
    written(tmp_path / "home/.kube/config", config(name="home", current="home"))
    environ = {
        "HOME": str(tmp_path / "home"),
        "KUBECONFIG": variable,
        **pod_files(tmp_path / "pod"),
    }

    def server(kubeconfig: str | None = None, context: str | None = None, **without: None) -> str:
        left = {name: value for name, value in environ.items() if name not in without}
        return load_access(
            kubeconfig=kubeconfig, context=context, environ=left, service_account=tmp_path / "pod"
        ).server

    assert server(flag) == "http://flag:8080"
    assert server() == "http://variable:8080"
    assert server(KUBECONFIG=None) == "https://10.0.0.1:443"
    assert server(KUBECONFIG=None, context="home") == "http://home:8080"
    assert server(KUBECONFIG=None, KUBERNETES_SERVICE_HOST=None) == "http://home:8080"
    (tmp_path / "pod/token").unlink()
    assert server(KUBECONFIG=None) == "http://home:8080"


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({}, "KUBERNETES_SERVICE_HOST and _PORT are not set, HOME is not set"),
        ({"HOME": "/nowhere"}, "/nowhere/.kube/config does not exist"),
        ({"KUBERNETES_SERVICE_HOST": "h", "KUBERNETES_SERVICE_PORT": "1"}, "/nopod/token does not exist"),
        ({"KUBECONFIG": "/nowhere/a:/nowhere/b"}, "/nowhere/a:/nowhere/b: no such file"),
    ],
)
def test_nothing_to_go_by_says_what_was_tried(environ: dict[str, str], said: str) -> None:
    with pytest.raises(AccessError, match=said):
        load_access(kubeconfig=None, context=None, environ=environ, service_account=Path("/nopod"))


def test_a_context_that_is_named_needs_a_file() -> None:
    with pytest.raises(AccessError, match="no access to an apiserver"):
        load_access(kubeconfig=None, context="x", environ={}, service_account=Path("/nopod"))


@in_fake_time
async def test_a_pod_uses_its_service_account(tmp_path: Path) -> None:
    environ = pod_files(tmp_path)
    access = load_access(kubeconfig=None, context=None, environ=environ, service_account=tmp_path)
    assert (access.server, access.namespace) == ("https://10.0.0.1:443", "kube-system")
    assert access.ssl is not None
    assert [entry["subject"] for entry in access.ssl.get_ca_certs()]
    assert await access.headers() == {"Authorization": "Bearer tok-1"}


def test_a_pod_on_ipv6_and_without_a_namespace_file(tmp_path: Path) -> None:
    environ = pod_files(tmp_path) | {"KUBERNETES_SERVICE_HOST": "fd00::1"}
    (tmp_path / "namespace").unlink()
    access = load_access(kubeconfig=None, context=None, environ=environ, service_account=tmp_path)
    assert (access.server, access.namespace) == ("https://[fd00::1]:443", "default")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda root: (root / "ca.crt").unlink(), "certificate authority: cannot read .*ca.crt: No such file"),
        (lambda root: (root / "ca.crt").write_text("x"), "certificate authority: not a certificate in PEM"),
    ],
)
def test_a_pod_without_a_good_authority_is_refused(tmp_path: Path, change: Any, said: str) -> None:
    environ = pod_files(tmp_path)
    change(tmp_path)
    with pytest.raises(AccessError, match=said):
        load_access(kubeconfig=None, context=None, environ=environ, service_account=tmp_path)


def test_a_pod_with_a_strange_port_is_refused(tmp_path: Path) -> None:
    environ = pod_files(tmp_path) | {"KUBERNETES_SERVICE_PORT": "tcp://10.0.0.1:443"}
    with pytest.raises(AccessError, match="KUBERNETES_SERVICE_HOST and _PORT"):
        load_access(kubeconfig=None, context=None, environ=environ, service_account=tmp_path)


def test_files_are_merged_as_kubectl_does(tmp_path: Path) -> None:
    first = config({"server": "http://first:1"}, name="shared", namespace="one", current=None)
    second = config({"server": "http://second:2", "insecure-skip-tls-verify": True}, name="shared", namespace="two")
    second["clusters"].append({"name": "other", "cluster": {"server": "http://other:3"}})
    second["contexts"].append({"name": "other", "context": {"cluster": "other"}})
    second["current-context"] = "shared"
    third = config(name="third", current="third")
    paths = [written(tmp_path / name, content) for name, content in [("1", first), ("2", second), ("3", third)]]
    environ = {"KUBECONFIG": ":".join([paths[0], str(tmp_path / "missing"), "", *paths[1:]])}
    chosen = load_access(kubeconfig=None, context=None, environ=environ)
    assert (chosen.server, chosen.namespace) == ("http://first:1", "one")
    assert load_access(kubeconfig=None, context="other", environ=environ).server == "http://other:3"
    assert load_access(kubeconfig=None, context="third", environ=environ).server == "http://third:8080"


def test_paths_count_from_their_file(tmp_path: Path) -> None:
    user = {"client-certificate": "pki/client.crt", "client-key": "pki/client.key"}
    path = written(tmp_path / "a/config", config({"server": "https://h", "certificate-authority": "../ca.crt"}, user))
    (tmp_path / "ca.crt").write_bytes(CA_PEM)
    (tmp_path / "a/pki").mkdir()
    (tmp_path / "a/pki/client.crt").write_bytes(CERTIFICATE)
    (tmp_path / "a/pki/client.key").write_bytes(KEY)
    assert load_access(kubeconfig=path, context=None, environ={}).ssl is not None


@pytest.mark.parametrize(
    ("cluster", "verify"),
    [
        ({"server": "https://h", "certificate-authority-data": base64ed(CA_PEM)}, True),
        ({"server": "https://h"}, True),
        ({"server": "https://h", "insecure-skip-tls-verify": True}, False),
    ],
)
def test_certificates_are_checked_unless_told(tmp_path: Path, cluster: Any, verify: bool) -> None:
    access = load_access(kubeconfig=written(tmp_path / "c", config(cluster)), context=None, environ={})
    assert access.ssl is not None
    assert (access.ssl.check_hostname, bool(access.ssl.verify_mode)) == (verify, verify)


def test_other_settings_of_a_cluster_are_kept(tmp_path: Path) -> None:
    cluster = {"server": "http://h/k8s/c-1/", "tls-server-name": "kubernetes", "proxy-url": "http://proxy:3128"}
    access = load_access(kubeconfig=written(tmp_path / "c", config(cluster)), context=None, environ={})
    assert access.server == "http://h/k8s/c-1"
    assert (access.tls_server_name, access.proxy, access.ssl) == ("kubernetes", "http://proxy:3128", None)


@pytest.mark.parametrize(
    ("user", "headers"),
    [
        (None, {}),
        ({}, {}),
        ({"token": "abc.def-1"}, {"Authorization": "Bearer abc.def-1"}),
        ({"username": "admin", "password": "pä:ss"}, {"Authorization": f"Basic {base64ed('admin:pä:ss'.encode())}"}),
        ({"username": "admin"}, {"Authorization": f"Basic {base64ed(b'admin:')}"}),
    ],
)
@in_fake_time
async def test_a_user_is_known_by_its_headers(tmp_path: Path, user: Any, headers: dict[str, str]) -> None:
    access = load_access(kubeconfig=written(tmp_path / "c", config(user=user)), context=None, environ={})
    assert await access.headers() == headers
    access.on_unauthorized()
    assert await access.headers() == headers


@in_fake_time
async def test_a_token_file_wins_over_a_token(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("from-file\n")
    user = {"token": "inline", "tokenFile": "token"}
    access = load_access(kubeconfig=written(tmp_path / "c", config(user=user)), context=None, environ={})
    assert await access.headers() == {"Authorization": "Bearer from-file"}


def test_a_context_without_a_user_has_no_credentials(tmp_path: Path) -> None:
    content = config()
    del content["contexts"][0]["context"]["user"]
    assert load_access(kubeconfig=written(tmp_path / "c", content), context=None, environ={}).namespace == "default"


def changed(**values: Any) -> dict[str, Any]:
    return config() | {name.replace("_", "-"): value for name, value in values.items()}


PAIR = {"client-certificate-data": base64ed(CERTIFICATE), "client-key-data": base64ed(KEY)}
OTHER_KEY = base64ed(CA.issue_cert("other").private_key_pem.bytes())
HTTPS = {"server": "https://h"}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "not valid JSON"),
        ("a: *b", "line 1: .* not defined before"),
        ("a\x00b", "not valid YAML"),
        ("[" * 2000, "nested more than 100 levels deep"),
        ("just words", "Expected `object`, got `str`"),
        ("", r"current-context: not set; name a context \(there are: none\)"),
        (changed(clusters=5), r"clusters: Expected `array \| null`, got `int`"),
        (changed(clusters=[{"cluster": {}}]), r"clusters\[0\]: Object missing required field `name`"),
        (config({"server": ["x"]}), r"clusters\[0\].cluster.server: Expected `str \| null`, got `array`"),
        (config(user={"token": 123}), r"users\[0\].user.token: Expected `str \| null`, got `int`"),
        (changed(clusters=[{"name": "a"}, {"name": "a"}]), r"clusters\[1\].name: 'a' appears twice"),
        (config(current=None), r"current-context: not set; name a context \(there are: main\)"),
        (config(current="nope"), "current-context: no context 'nope'"),
        (changed(contexts=[{"name": "main"}]), r"contexts\[0\].context.cluster: not set"),
        (changed(clusters=None), r"contexts\[0\].context.cluster: no cluster 'main-cluster'"),
        (changed(users=None), r"contexts\[0\].context.user: no user 'main-user'"),
        (config({"insecure-skip-tls-verify": True}), r"cluster.server: None is not an address"),
        (config({"server": "h:6443"}), r"cluster.server: 'h:6443' is not an address; expected http:// or https://"),
        (config({"server": "https://h:99999"}), "is not an address"),
        (config({"server": "https://[::1"}), "is not an address"),
        (config({"server": "https://"}), "is not an address"),
        (config({"server": "https://me:pw@h"}), "and an optional path"),
        (config({"server": "https://h?x=y"}), "and an optional path"),
        (config({"server": "http://h", "proxy-url": "socks5://p:1"}), "cluster.proxy-url: 'socks5://p:1'"),
        (config(HTTPS | {"certificate-authority": "nope.crt"}), "certificate-authority: cannot read .*nope.crt"),
        (config(HTTPS | {"certificate-authority-data": "%%%"}), "certificate-authority-data: not base64"),
        (config(HTTPS | {"certificate-authority-data": "é"}), "certificate-authority-data: not base64"),
        (
            config(HTTPS | {"certificate-authority-data": base64ed(b"x")}),
            "certificate-authority-data: not a certificate in PEM",
        ),
        (
            config(HTTPS | {"certificate-authority": "x", "insecure-skip-tls-verify": True}),
            "insecure-skip-tls-verify: cannot be combined with certificate-authority",
        ),
        (config(HTTPS, {"client-certificate": "x"}), "user.client-key: not set"),
        (config(HTTPS, {"client-key": "x"}), "user.client-certificate: not set"),
        (config(HTTPS, PAIR | {"client-key-data": OTHER_KEY}), "the key does not belong to the certificate"),
        (config(HTTPS, PAIR | {"client-certificate-data": base64ed(b"x")}), "not a usable certificate and key"),
        (config(user={"token": "a b"}), r"users\[0\].user.token: not a token"),
        (config(user={"token": "a\r\nX: y"}), "not a token"),
        (config(user={"token": "a", "username": "b"}), "user.username: more than one way .* token is set too"),
        (config(user={"auth-provider": {"name": "gcp"}}), "user.auth-provider: removed from Kubernetes"),
        (config(user={"as": "root"}), "user.as: impersonation is not supported"),
        (config(user={"as-groups": ["system:masters"]}), "user.as: impersonation"),
        (config(user={"exec": {"command": "x"}}), "user.exec.apiVersion: '', expected client.authentication"),
        (
            config(user={"exec": {"apiVersion": "client.authentication.k8s.io/v1alpha1", "command": "x"}}),
            "user.exec.apiVersion",
        ),
        (config(user={"exec": {"apiVersion": "client.authentication.k8s.io/v1"}}), "user.exec.command: not set"),
        (
            config(
                user={
                    "exec": {
                        "apiVersion": "client.authentication.k8s.io/v1",
                        "command": "x",
                        "interactiveMode": "Always",
                    }
                }
            ),
            "user.exec.interactiveMode: Always needs a terminal",
        ),
        (config(user={"exec": {"env": [{"value": "x"}]}}), r"exec.env\[0\]: Object missing required field `name`"),
    ],
)
def test_a_broken_kubeconfig_is_refused_with_file_and_field(tmp_path: Path, content: Any, said: str) -> None:
    path = written(tmp_path / "broken", content)
    with pytest.raises(AccessError, match=said) as caught:
        load_access(kubeconfig=path, context=None, environ={})
    assert str(caught.value).startswith(path)


def test_a_context_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "c", config())
    with pytest.raises(AccessError, match=r"no context 'prod' \(there are: main\)"):
        load_access(kubeconfig=path, context="prod", environ={})


def test_what_is_no_kubeconfig_at_all_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AccessError, match="cannot be read: Is a directory"):
        load_access(kubeconfig=str(tmp_path), context=None, environ={})
    with pytest.raises(AccessError, match="cannot be read: has more than 4 MiB"):
        load_access(kubeconfig=written(tmp_path / "big", "#" * (5 << 20)), context=None, environ={})
    with pytest.raises(AccessError, match="no such file"):
        load_access(kubeconfig=str(tmp_path / "missing"), context=None, environ={})


@in_fake_time
async def test_access_without_any_checks_needs_only_an_address() -> None:
    access = Access("http://127.0.0.1:8001/")
    assert (access.server, access.ssl, access.namespace) == ("http://127.0.0.1:8001", None, "default")
    assert await access.headers() == {}
