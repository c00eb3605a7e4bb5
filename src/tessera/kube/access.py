"""Address and credentials of the apiserver, from a kubeconfig or from the pod's service account.

`load_access` reads files and refuses broken ones, but opens no connection. An Access follows the rotation of tokens and
certificates.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from tessera.kube.credentials import Credentials, FixedHeaders, Pem, RotatingContext, TlsSettings, TokenFile
from tessera.kube.errors import AccessError
from tessera.kube.kubeconfig import SelectedContext, client_pair, credentials_of, read_kubeconfig, select_context

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""where kubelet puts a pod's token, CA certificate and namespace"""


class Access:
    """One apiserver and the credentials for it. `Access("http://127.0.0.1:8001")` has neither TLS nor credentials."""

    def __init__(
        self,
        server: str,
        *,
        namespace: str = "default",
        tls: TlsSettings | None = None,
        tls_server_name: str | None = None,
        proxy: str | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        self.server = server.rstrip("/")
        self.namespace = namespace
        self.tls_server_name = tls_server_name
        """the name in the server's certificate, if it is not the host of `server`"""
        self.proxy = proxy
        self._credentials = credentials or FixedHeaders()
        self._tls = RotatingContext(tls or TlsSettings()) if self.server.startswith("https://") else None

    @property
    def ssl(self) -> ssl.SSLContext | None:
        """None for plain HTTP. It changes with the certificates, so read it again for every request."""
        return self._tls.context if self._tls else None

    async def headers(self) -> dict[str, str]:
        """The headers that authenticate the next request. May read files and run a plugin, for a bounded time."""
        headers = await self._credentials.headers()
        if self._tls is not None:
            self._tls.refresh(now=asyncio.get_running_loop().time(), issued=self._credentials.issued_pair())
        return headers

    def on_unauthorized(self) -> None:
        """The apiserver responded with 401: these credentials are not used again."""
        self._credentials.forget()


def load_access(
    *,
    kubeconfig: str | None = None,
    context: str | None = None,
    environ: Mapping[str, str],
    service_account: Path = SERVICE_ACCOUNT,
) -> Access:
    """From the first of: the file `kubeconfig`, the files in KUBECONFIG, the service account, ~/.kube/config.

    A named context is in a file, so the service account is not used then."""
    if kubeconfig:
        return _from_files([Path(kubeconfig)], context, environ)
    listed = [Path(part) for part in environ.get("KUBECONFIG", "").split(":") if part]
    if listed:
        return _from_files(listed, context, environ)
    reasons = ["KUBECONFIG is not set"]
    host, port = environ.get("KUBERNETES_SERVICE_HOST", ""), environ.get("KUBERNETES_SERVICE_PORT", "")
    if host and port and not context:
        if (service_account / "token").exists():
            return _in_cluster(host, port, service_account)
        reasons.append(f"{service_account / 'token'} does not exist")
    elif not context:
        reasons.append("KUBERNETES_SERVICE_HOST and _PORT are not set")
    default = Path(environ.get("HOME", "")) / ".kube" / "config"
    if environ.get("HOME") and default.exists():
        return _from_files([default], context, environ)
    reasons.append(f"{default} does not exist" if environ.get("HOME") else "HOME is not set")
    raise AccessError(f"no access to an apiserver is configured; name a kubeconfig ({', '.join(reasons)})")


def _from_files(paths: list[Path], context: str | None, environ: Mapping[str, str]) -> Access:
    config = read_kubeconfig(paths)
    if not config.files:
        raise AccessError(f"{':'.join(map(str, paths))}: no such file")
    return _from_context(select_context(config, context), environ)


def _from_context(selected: SelectedContext, environ: Mapping[str, str]) -> Access:
    entry, cluster = selected.cluster, selected.cluster.value
    server = _url(cluster.server, entry.where("server"), ("http", "https"))
    authority = entry.pem("certificate-authority", cluster.certificate_authority, cluster.certificate_authority_data)
    insecure = bool(cluster.insecure_skip_tls_verify)
    if insecure and authority is not None:
        raise AccessError(f"{entry.where('insecure-skip-tls-verify')}: cannot be combined with certificate-authority")
    return Access(
        server,
        namespace=selected.namespace,
        tls=TlsSettings(authority=authority, client=client_pair(selected.user), verify=not insecure),
        tls_server_name=cluster.tls_server_name or None,
        proxy=_url(cluster.proxy_url, entry.where("proxy-url"), ("http", "https")) if cluster.proxy_url else None,
        credentials=credentials_of(selected, environ),
    )


def _in_cluster(host: str, port: str, root: Path) -> Access:
    place = f"[{host}]" if ":" in host else host
    server = _url(f"https://{place}:{port}", "KUBERNETES_SERVICE_HOST and _PORT", ("https",))
    try:
        namespace = (root / "namespace").read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        namespace = ""
    return Access(
        server,
        namespace=namespace or "default",
        tls=TlsSettings(authority=Pem("in-cluster: certificate authority", path=root / "ca.crt")),
        credentials=TokenFile(root / "token", where="in-cluster: token"),
    )


def _url(text: str | None, where: str, schemes: tuple[str, ...]) -> str:
    expected = " or ".join(f"{scheme}://" for scheme in schemes)
    try:
        parts = urlsplit(text or "")
        is_valid = parts.scheme in schemes and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        is_valid = False
    if not text or not is_valid:
        raise AccessError(f"{where}: {text!r} is not an address; expected {expected}host:port")
    if parts.username is not None or parts.query or parts.fragment:
        raise AccessError(f"{where}: expected only {expected}host:port and an optional path")
    return text
