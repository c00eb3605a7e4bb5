"""The user of a kubeconfig as credentials: which of the ways to authenticate it gives, and that it gives just one."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from tessera.kube.credentials import Credentials, FixedHeaders, TokenFile, basic, bearer
from tessera.kube.errors import AccessError
from tessera.kube.exec_plugin import API_VERSIONS, ExecPlugin, PluginSettings
from tessera.kube.kubeconfig import Choice, Entry, Exec, User
from tessera.kube.tls import ClientPair


def client_pair(user: Entry[User]) -> ClientPair | None:
    """The client certificate, if there is one."""
    value = user.value
    certificate = user.pem("client-certificate", value.client_certificate, value.client_certificate_data)
    key = user.pem("client-key", value.client_key, value.client_key_data)
    if certificate is not None and key is not None:
        return ClientPair(certificate, key)
    if certificate is None and key is None:
        return None
    missing = "client-key" if key is None else "client-certificate"
    raise AccessError(f"{user.where(missing)}: not set; a certificate and its key go together")


def credentials_of(choice: Choice, environ: Mapping[str, str]) -> Credentials:
    """What goes into the headers."""
    user, value = choice.user, choice.user.value
    _refuse_unknown(user)
    ways = {
        "token": bool(value.token or value.token_file),
        "username": bool(value.username or value.password),
        "exec": value.exec is not None,
    }
    given = [name for name, there in ways.items() if there]
    if len(given) > 1:
        raise AccessError(f"{user.where(given[1])}: more than one way to authenticate, {given[0]} is given too")
    if value.exec is not None:
        return ExecPlugin(_plugin(choice, value.exec, environ))
    if value.token_file:
        return TokenFile(user.resolved(value.token_file), where=user.where("tokenFile"))
    headers = {}
    if value.token:
        headers = bearer(value.token, user.where("token"))
    elif given:
        headers = basic(value.username or "", value.password or "")
    return FixedHeaders(headers)


def _refuse_unknown(user: Entry[User]) -> None:
    """What cannot be done is refused: to leave it out would be to act as somebody else."""
    value = user.value
    if value.auth_provider is not None:
        raise AccessError(f"{user.where('auth-provider')}: removed from Kubernetes in 1.26; use exec or a token")
    if value.act_as or value.as_uid or value.as_groups or value.as_user_extra:
        raise AccessError(f"{user.where('as')}: acting as somebody else is not supported")


def _plugin(choice: Choice, plugin: Exec, environ: Mapping[str, str]) -> PluginSettings:
    user = choice.user
    if plugin.api_version not in API_VERSIONS:
        expected = " or ".join(API_VERSIONS)
        raise AccessError(f"{user.where('exec.apiVersion')}: {plugin.api_version!r}, expected {expected}")
    if not plugin.command:
        raise AccessError(f"{user.where('exec.command')}: not set")
    if plugin.interactive_mode == "Always":
        raise AccessError(f"{user.where('exec.interactiveMode')}: Always needs a terminal, which there is none of")
    # A bare name is looked up in PATH; anything with a slash counts from the kubeconfig.
    command = str(user.resolved(plugin.command)) if "/" in plugin.command else plugin.command
    return PluginSettings(
        where=user.where("exec"),
        api_version=plugin.api_version,
        command=command,
        args=tuple(plugin.args or ()),
        env={**environ, **{item.name: item.value for item in plugin.env or ()}},
        install_hint=plugin.install_hint or "",
        cluster=_cluster_info(choice) if plugin.provide_cluster_info else None,
    )


def _cluster_info(choice: Choice) -> dict[str, Any]:
    cluster = choice.cluster.value
    info: dict[str, Any] = {"server": cluster.server}
    authority = choice.cluster.pem(
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
