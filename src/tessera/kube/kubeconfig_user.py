"""Turns the user of a kubeconfig into credentials, and refuses users with none or several ways to authenticate."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from tessera.kube.credentials import Credentials, FixedHeaders, TokenFile, basic, bearer
from tessera.kube.errors import AccessError
from tessera.kube.exec_plugin import API_VERSIONS, ExecPlugin, PluginSettings
from tessera.kube.kubeconfig import AuthInfo, Entry, ExecConfig, SelectedContext
from tessera.kube.tls import ClientPair


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
