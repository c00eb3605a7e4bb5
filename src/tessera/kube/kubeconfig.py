"""Reads kubeconfig files, merges them as kubectl does, and selects one context. It sends and runs nothing.

The first file that names a cluster, user or context owns that entry as a whole. Paths are relative to the file that
they are in. Errors are AccessErrors that name file and field.
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
from tessera.kube.errors import AccessError
from tessera.kube.tls import Pem


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
