"""Where the self-managed certificates live: a Secret, and the `caBundle` of a webhook configuration.

Every write names the version that it is based on, so that of several replicas exactly one wins; the others are told
(False) and read again. Nothing is decided or retried here. Fields that are not ours are written back as they were.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tessera.kube.client import KubeClient
from tessera.kube.errors import KubeError, is_conflict, is_gone
from tessera.kube.resources import MUTATING_WEBHOOKS, SECRETS
from tessera.scheduler.settings import SelfManaged

TLS_SECRET = "kubernetes.io/tls"


@dataclass(frozen=True, slots=True)
class StoredSecret:
    """A Secret as it was read."""

    data: Mapping[str, bytes]
    """what cannot be decoded is left out"""
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class StoredWebhook:
    """A webhook configuration as it was read."""

    bundles: tuple[bytes, ...]
    """one for every webhook in it; empty where there is none"""
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False)


class CertificateStore:
    """The API calls of certificate rotation. Faults are KubeErrors; a lost race is False."""

    def __init__(self, client: KubeClient, where: SelfManaged) -> None:
        self._client = client
        self._where = where

    async def read_secret(self) -> StoredSecret | None:
        found = await self._client.find(SECRETS.path(self._where.namespace, self._where.secret), dict)
        if found is None:
            return None
        encoded = _mapping(found.get("data"))
        decoded = {name: value for name, text in encoded.items() if (value := _decoded(text)) is not None}
        return StoredSecret(decoded, found)

    async def create_secret(self, data: Mapping[str, bytes]) -> bool:
        where = self._where
        body = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": where.secret, "namespace": where.namespace},
            "type": TLS_SECRET,
            "data": _encoded(data),
        }
        return await _wins(self._client.create(SECRETS.path(where.namespace), body), is_conflict)

    async def replace_secret(self, old: StoredSecret, data: Mapping[str, bytes]) -> bool:
        body = {**old.raw, "data": {**_mapping(old.raw.get("data")), **_encoded(data)}}
        path = SECRETS.path(self._where.namespace, self._where.secret)
        return await _wins(self._client.replace(path, body), is_gone)

    async def read_webhook(self) -> StoredWebhook | None:
        """None if there is no such configuration."""
        if not self._where.webhook_configuration:
            return None
        found = await self._client.find(MUTATING_WEBHOOKS.path(name=self._where.webhook_configuration), dict)
        if found is None:
            return None
        bundles = (_decoded(_client_config(webhook).get("caBundle")) or b"" for webhook in _webhooks(found))
        return StoredWebhook(tuple(bundles), found)

    async def patch_webhook(self, old: StoredWebhook, bundle: bytes) -> bool:
        text = base64.b64encode(bundle).decode()
        webhooks = [
            {**webhook, "clientConfig": {**_client_config(webhook), "caBundle": text}} for webhook in _webhooks(old.raw)
        ]
        version = _mapping(old.raw.get("metadata")).get("resourceVersion")
        # A merge patch replaces the whole list, so it carries the version that was read.
        body = {"metadata": {"resourceVersion": version}, "webhooks": webhooks}
        path = MUTATING_WEBHOOKS.path(name=self._where.webhook_configuration)
        return await _wins(self._client.patch(path, body), is_gone)


async def _wins(write: Awaitable[None], is_lost: Callable[[KubeError], bool]) -> bool:
    """Whether a write took effect; `is_lost` says of a refusal that another replica was first."""
    try:
        await write
    except KubeError as error:
        if is_lost(error):
            return False
        raise
    return True


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _webhooks(raw: Mapping[str, Any]) -> list[dict[str, Any]]:
    found = raw.get("webhooks")
    return [_mapping(webhook) for webhook in found] if isinstance(found, list) else []


def _client_config(webhook: Mapping[str, Any]) -> dict[str, Any]:
    return _mapping(webhook.get("clientConfig"))


def _decoded(text: Any) -> bytes | None:
    if not isinstance(text, str):
        return None
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None


def _encoded(data: Mapping[str, bytes]) -> dict[str, str]:
    return {name: base64.b64encode(value).decode() for name, value in data.items()}
