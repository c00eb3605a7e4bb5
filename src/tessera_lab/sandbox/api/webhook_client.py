"""Calls an admission webhook over HTTPS and reads its response.

Every failure is one exception; the caller handles it by the webhook's failurePolicy.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import ssl
from collections.abc import Callable
from typing import Any

import aiohttp
import msgspec
from yarl import URL

from tessera.wire.objects import Partial
from tessera_lab.sandbox.api.errors import StatusError
from tessera_lab.sandbox.api.kinds import Json
from tessera_lab.sandbox.api.request_bodies import convert, decode_json, without_nulls
from tessera_lab.sandbox.api.shapes import ServiceReference, Webhook
from tessera_lab.sandbox.api.store import ENCODE

Resolver = Callable[[ServiceReference], tuple[str, int] | None]
"""host and port of a Service on this machine"""

GROUP = "admission.k8s.io"
MAX_CONTEXTS = 64
"""how many TLS contexts are kept, one per caBundle; certificates rotate, so old ones are dropped"""


class WebhookResponse(Partial, frozen=True):
    """The `response` of an AdmissionReview."""

    uid: str
    allowed: bool
    patch: str = ""
    patch_type: str = ""
    warnings: tuple[str, ...] = ()
    status: Json = msgspec.field(default_factory=dict)


class WebhookCallError(Exception):
    """There is no usable response."""


class WebhookClient:
    """Keeps connections open, as kube-apiserver does."""

    def __init__(self, resolver: Resolver | None) -> None:
        self._resolver = resolver
        self._session: aiohttp.ClientSession | None = None
        self._contexts: dict[str, ssl.SSLContext] = {}

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def call(self, webhook: Webhook, request: Json) -> WebhookResponse:
        """The response to one review."""
        version = f"{GROUP}/{next(v for v in webhook.admission_review_versions if v in ('v1', 'v1beta1'))}"
        review = {"kind": "AdmissionReview", "apiVersion": version, "request": request}
        try:
            body = await self._post(webhook, ENCODE(review))
            answer = without_nulls(decode_json(body))
            return _checked(answer, version=version, uid=request["uid"])
        except TimeoutError as error:
            raise WebhookCallError("context deadline exceeded") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise WebhookCallError(str(error)) from error
        except StatusError as error:
            raise WebhookCallError(f"could not read the response: {error.message}") from error

    async def _post(self, webhook: Webhook, body: bytes) -> bytes:
        url, server_name = self._address(webhook)
        url = url.update_query(timeout=f"{webhook.timeout_seconds}s")
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout())
        async with (
            asyncio.timeout(webhook.timeout_seconds),
            self._session.post(
                url,
                data=body,
                headers={"Content-Type": "application/json", "Accept": "application/json, */*"},
                ssl=self._context(webhook.client_config.ca_bundle),
                server_hostname=server_name,
                allow_redirects=False,
            ) as response,
        ):
            found = await response.read()
            if response.status != 200:
                said = found[:200].decode(errors="replace").strip()
                raise WebhookCallError(
                    f"an error on the server ({said!r}, {response.status}) has prevented the request"
                )
            return found

    def _address(self, webhook: Webhook) -> tuple[URL, str | None]:
        client = webhook.client_config
        if client.service is None:
            url = URL(client.url)
            if url.scheme != "https":
                raise WebhookCallError(f"{client.url!r} is not an https URL")
            return url, None
        service = client.service
        place = self._resolver(service) if self._resolver is not None else None
        if place is None:
            raise WebhookCallError(f'no endpoints available for service "{service.name}" in {service.namespace}')
        url = URL.build(scheme="https", host=place[0], port=place[1], path="/" + service.path.lstrip("/"))
        return url, f"{service.name}.{service.namespace}.svc"

    def _context(self, ca_bundle: str) -> ssl.SSLContext:
        if ca_bundle not in self._contexts:
            while len(self._contexts) >= MAX_CONTEXTS:
                del self._contexts[next(iter(self._contexts))]
            self._contexts[ca_bundle] = _new_context(ca_bundle)
        return self._contexts[ca_bundle]


def _new_context(ca_bundle: str) -> ssl.SSLContext:
    if not ca_bundle:
        return ssl.create_default_context()
    try:
        return ssl.create_default_context(cadata=base64.b64decode(ca_bundle, validate=True).decode("ascii"))
    except (binascii.Error, ValueError, ssl.SSLError) as error:
        raise WebhookCallError(f"unable to load root certificates: {error}") from error


def _checked(answer: Any, *, version: str, uid: str) -> WebhookResponse:
    if not isinstance(answer, dict) or "response" not in answer:
        raise WebhookCallError("webhook response did not include response")
    if answer.get("kind") != "AdmissionReview" or answer.get("apiVersion") != version:
        found = f"{answer.get('apiVersion')}, Kind={answer.get('kind')}"
        raise WebhookCallError(f"expected webhook response of {version}, Kind=AdmissionReview, got {found}")
    response = convert(answer["response"], WebhookResponse)
    if response.uid != uid:
        raise WebhookCallError(f"expected response.uid={uid!r}, got {response.uid!r}")
    if response.patch and response.patch_type != "JSONPatch":
        raise WebhookCallError(f"invalid response.patchType {response.patch_type!r}")
    return response
