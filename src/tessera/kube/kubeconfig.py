"""Reads kubeconfig files, merges them as kubectl does, selects one context, and turns its user into credentials.

The first file that names a cluster, user or context owns that entry as a whole. Paths are relative to the file that
they are in. Users with none or several ways to authenticate are refused. Errors are AccessErrors that name file and
field. Nothing is sent or run here.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from tessera.files.documents import DocumentError, read_documents
from tessera.files.reader import MAX_SMALL_BYTES, read_file
from tessera.kube.credentials import (
    API_VERSIONS,
    ClientPair,
    Credentials,
    ExecPlugin,
    FixedHeaders,
    Pem,
    PluginSettings,
    TokenFile,
    basic,
    bearer,
)
from tessera.kube.errors import AccessError


class KubeconfigCluster(msgspec.Struct, frozen=True, rename="kebab"):
    server: str | None = None
    certificate_authority: str | None = None
    certificate_authority_data: str | None = None
    insecure_skip_tls_verify: bool | None = None
    tls_server_name: str | None = None
    proxy_url: str | None = None


class ExecEnvVar(msgspec.Struct, frozen=True):
    name: str
    value: str = ""


class ExecConfig(msgspec.Struct, frozen=True, rename="camel"):
    api_version: str = ""
    command: str = ""
    args: list[str] | None = None
    env: list[ExecEnvVar] | None = None
    install_hint: str | None = None
    provide_cluster_info: bool | None = None
    interactive_mode: str | None = None


class AuthInfo(msgspec.Struct, frozen=True, rename="kebab"):
    client_certificate: str | None = None
    client_certificate_data: str | None = None
    client_key: str | None = None
    client_key_data: str | None = None
    token: str | None = None
    token_file: str | None = msgspec.field(default=None, name="tokenFile")
    username: str | None = None
    password: str | None = None
    exec: ExecConfig | None = None
    auth_provider: Any = None
    act_as: str | None = msgspec.field(default=None, name="as")
    as_uid: str | None = None
    as_groups: list[str] | None = None
    as_user_extra: dict[str, list[str]] | None = None


class KubeconfigContext(msgspec.Struct, frozen=True):
    cluster: str | None = None
    user: str | None = None
    namespace: str | None = None


class _NamedCluster(msgspec.Struct):
    name: str
    cluster: KubeconfigCluster | None = None


class _NamedUser(msgspec.Struct):
    name: str
    user: AuthInfo | None = None


class _NamedContext(msgspec.Struct):
    name: str
    context: KubeconfigContext | None = None


class _KubeconfigFile(msgspec.Struct, rename="kebab"):
    clusters: list[_NamedCluster] | None = None
    users: list[_NamedUser] | None = None
    contexts: list[_NamedContext] | None = None
    current_context: str | None = None


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Entry(Generic[T]):
    """A named part of a kubeconfig, and where it is."""

    file: Path
    field: str
    """such as `users[2].user`"""
    value: T

    def where(self, name: str) -> str:
        return f"{self.file}: {self.field}.{name}"

    def resolve(self, path: str) -> Path:
        return self.file.parent / path

    def pem(self, name: str, path: str | None, data: str | None) -> Pem | None:
        """A certificate or key, inline (which wins) or from a file."""
        if data:
            where = self.where(f"{name}-data")
            try:
                return Pem(where, data=base64.b64decode("".join(data.split()), validate=True))
            except (binascii.Error, ValueError) as error:
                raise AccessError(f"{where}: not base64: {error}") from error
        return Pem(self.where(name), path=self.resolve(path)) if path else None


@dataclass(slots=True)
class Kubeconfig:
    """All files, merged."""

    files: list[Path] = field(default_factory=list)
    clusters: dict[str, Entry[KubeconfigCluster]] = field(default_factory=dict)
    users: dict[str, Entry[AuthInfo]] = field(default_factory=dict)
    contexts: dict[str, Entry[KubeconfigContext]] = field(default_factory=dict)
    current: str = ""

    def __str__(self) -> str:
        return ":".join(map(str, self.files))


@dataclass(frozen=True, slots=True)
class SelectedContext:
    """One context with the cluster and user that it names."""

    cluster: Entry[KubeconfigCluster]
    user: Entry[AuthInfo]
    namespace: str


def read_kubeconfig(paths: Sequence[Path]) -> Kubeconfig:
    """Merge the files in order. Files that do not exist are skipped, as kubectl does with KUBECONFIG."""
    merged = Kubeconfig()
    for path in paths:
        parsed = _read(path)
        if parsed is None:
            continue
        merged.files.append(path)
        merged.current = merged.current or parsed.current_context or ""
        clusters = [(item.name, item.cluster or KubeconfigCluster()) for item in parsed.clusters or ()]
        users = [(item.name, item.user or AuthInfo()) for item in parsed.users or ()]
        contexts = [(item.name, item.context or KubeconfigContext()) for item in parsed.contexts or ()]
        _merge(merged.clusters, path, "clusters", "cluster", clusters)
        _merge(merged.users, path, "users", "user", users)
        _merge(merged.contexts, path, "contexts", "context", contexts)
    return merged


def select_context(config: Kubeconfig, context: str | None) -> SelectedContext:
    """The named context, or the current one."""
    name = context or config.current
    known = ", ".join(sorted(config.contexts)) or "none"
    if not name:
        raise AccessError(f"{config}: current-context: not set; name a context (there are: {known})")
    if name not in config.contexts:
        asked = "no context" if context else "current-context: no context"
        raise AccessError(f"{config}: {asked} {name!r} (there are: {known})")
    entry = config.contexts[name]
    return SelectedContext(
        cluster=_named(config.clusters, entry, "cluster", entry.value.cluster),
        user=_named(config.users, entry, "user", entry.value.user)
        if entry.value.user
        else Entry(entry.file, f"{entry.field}.user", AuthInfo()),
        namespace=entry.value.namespace or "default",
    )


def _named(
    entries: Mapping[str, Entry[T]], context: Entry[KubeconfigContext], name: str, wanted: str | None
) -> Entry[T]:
    if not wanted:
        raise AccessError(f"{context.where(name)}: not set")
    if wanted not in entries:
        raise AccessError(f"{context.where(name)}: no {name} {wanted!r} in the kubeconfig")
    return entries[wanted]


def _merge(into: dict[str, Entry[T]], file: Path, plural: str, single: str, items: Sequence[tuple[str, T]]) -> None:
    own: dict[str, Entry[T]] = {}
    for index, (name, value) in enumerate(items):
        if name in own:
            raise AccessError(f"{file}: {plural}[{index}].name: {name!r} appears twice")
        own[name] = Entry(file, f"{plural}[{index}].{single}", value)
    for name, entry in own.items():
        into.setdefault(name, entry)


def _read(path: Path) -> _KubeconfigFile | None:
    try:
        documents = read_documents(read_file(path, limit=MAX_SMALL_BYTES))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise AccessError(f"{path}: cannot be read: {error.strerror}") from error
    except DocumentError as error:
        raise AccessError(f"{path}: {error}") from error
    if len(documents) > 1:
        raise AccessError(f"{path}: has {len(documents)} documents; a kubeconfig is one")
    try:
        return msgspec.convert(documents[0] if documents else {}, type=_KubeconfigFile)
    except msgspec.ValidationError as error:
        what, _, place = str(error).rpartition(" - at `$")
        place = place.removesuffix("`").lstrip(".")
        raise AccessError(f"{path}: {place}: {what}" if what and place else f"{path}: {error}") from error


def client_pair(user: Entry[AuthInfo]) -> ClientPair | None:
    """The client certificate and its key, if there are any."""
    value = user.value
    certificate = user.pem("client-certificate", value.client_certificate, value.client_certificate_data)
    key = user.pem("client-key", value.client_key, value.client_key_data)
    if certificate is not None and key is not None:
        return ClientPair(certificate, key)
    if certificate is None and key is None:
        return None
    missing = "client-key" if key is None else "client-certificate"
    raise AccessError(f"{user.where(missing)}: not set; a certificate needs its key and the other way round")


def credentials_of(selected: SelectedContext, environ: Mapping[str, str]) -> Credentials:
    user, value = selected.user, selected.user.value
    _refuse_unsupported(user)
    ways = {
        "token": bool(value.token or value.token_file),
        "username": bool(value.username or value.password),
        "exec": value.exec is not None,
    }
    given = [name for name, there in ways.items() if there]
    if len(given) > 1:
        raise AccessError(f"{user.where(given[1])}: more than one way to authenticate, {given[0]} is set too")
    if value.exec is not None:
        return ExecPlugin(_plugin(selected, value.exec, environ))
    if value.token_file:
        return TokenFile(user.resolve(value.token_file), where=user.where("tokenFile"))
    headers = {}
    if value.token:
        headers = bearer(value.token, user.where("token"))
    elif given:
        headers = basic(value.username or "", value.password or "")
    return FixedHeaders(headers)


def _refuse_unsupported(user: Entry[AuthInfo]) -> None:
    """Ignoring these fields would mean acting as a different user."""
    value = user.value
    if value.auth_provider is not None:
        raise AccessError(f"{user.where('auth-provider')}: removed from Kubernetes in 1.26; use exec or a token")
    if value.act_as or value.as_uid or value.as_groups or value.as_user_extra:
        raise AccessError(f"{user.where('as')}: impersonation is not supported")


def _plugin(selected: SelectedContext, plugin: ExecConfig, environ: Mapping[str, str]) -> PluginSettings:
    user = selected.user
    if plugin.api_version not in API_VERSIONS:
        expected = " or ".join(API_VERSIONS)
        raise AccessError(f"{user.where('exec.apiVersion')}: {plugin.api_version!r}, expected {expected}")
    if not plugin.command:
        raise AccessError(f"{user.where('exec.command')}: not set")
    if plugin.interactive_mode == "Always":
        raise AccessError(f"{user.where('exec.interactiveMode')}: Always needs a terminal, and there is none")
    # A plain name is looked up in PATH; a path is relative to the kubeconfig.
    command = str(user.resolve(plugin.command)) if "/" in plugin.command else plugin.command
    return PluginSettings(
        where=user.where("exec"),
        api_version=plugin.api_version,
        command=command,
        args=tuple(plugin.args or ()),
        env={**environ, **{item.name: item.value for item in plugin.env or ()}},
        install_hint=plugin.install_hint or "",
        cluster=_cluster_info(selected) if plugin.provide_cluster_info else None,
    )


def _cluster_info(selected: SelectedContext) -> dict[str, Any]:
    cluster = selected.cluster.value
    info: dict[str, Any] = {"server": cluster.server}
    authority = selected.cluster.pem(
        "certificate-authority", cluster.certificate_authority, cluster.certificate_authority_data
    )
    if authority is not None:
        info["certificate-authority-data"] = base64.b64encode(authority.read()).decode()
    if cluster.insecure_skip_tls_verify:
        info["insecure-skip-tls-verify"] = True
    if cluster.tls_server_name:
        info["tls-server-name"] = cluster.tls_server_name
    if cluster.proxy_url:
        info["proxy-url"] = cluster.proxy_url
    return info
