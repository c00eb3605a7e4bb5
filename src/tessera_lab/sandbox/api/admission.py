"""Admission by webhooks: which are called, in which order, and what their responses do.

Mutating webhooks run one after the other, by the name of their configuration and their position in it; validating ones
run after them. Webhooks with side effects cannot be registered, so dry runs call all of them. Not supported:
matchConditions (a webhook with conditions is always called) and admission policies.

Every failure of a call is one exception, which the webhook's failurePolicy handles.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import ssl
from dataclasses import dataclass, field, replace
from typing import Any

import aiohttp
import msgspec
from yarl import URL

from tessera.wire.objects import Partial
from tessera_lab.sandbox.api.errors import StatusError, internal
from tessera_lab.sandbox.api.kinds import MUTATING_WEBHOOKS, NAMESPACES, VALIDATING_WEBHOOKS, Json, ResourceKind
from tessera_lab.sandbox.api.patches import apply_json_patch
from tessera_lab.sandbox.api.requests import convert, decode_json, read_object, without_nulls
from tessera_lab.sandbox.api.shapes import Rule, Webhook, WebhookConfiguration
from tessera_lab.sandbox.api.store import DECODE, ENCODE, Store

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

    def __init__(self) -> None:
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
        # There are no Services here: a webhook is reached by its URL.
        url = URL(webhook.client_config.url)
        if url.scheme != "https":
            raise WebhookCallError(f"{str(url)!r} is not an https URL")
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout())
        async with (
            asyncio.timeout(webhook.timeout_seconds),
            self._session.post(
                url.update_query(timeout=f"{webhook.timeout_seconds}s"),
                data=body,
                headers={"Content-Type": "application/json", "Accept": "application/json, */*"},
                ssl=self._context(webhook.client_config.ca_bundle),
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


VERB_OPTIONS = {"CREATE": "CreateOptions", "UPDATE": "UpdateOptions", "DELETE": "DeleteOptions"}


@dataclass(frozen=True, slots=True)
class ApiUser:
    """The user of a request."""

    username: str = "system:admin"
    groups: tuple[str, ...] = ("system:masters", "system:authenticated")


@dataclass(frozen=True, slots=True)
class Attributes:
    """One request, as admission sees it."""

    operation: str
    kind: ResourceKind
    namespace: str
    name: str
    content: Json | None
    old: Json | None = None
    subresource: str = ""
    dry_run: bool = False
    user: ApiUser = ApiUser()
    options: Json = field(default_factory=dict)
    subresource_kind: tuple[str, str] | None = None
    """group/version and kind of the body, if they are not those of the resource"""


@dataclass(frozen=True, slots=True)
class Admitted:
    """The object after all webhooks, and their warnings."""

    content: Json | None
    warnings: tuple[str, ...] = ()


class Admission:
    """Calls the webhooks whose configurations are in the store."""

    def __init__(self, store: Store, caller: WebhookClient) -> None:
        self._store = store
        self._caller = caller
        self._parsed: dict[ResourceKind, tuple[int, tuple[Webhook, ...]]] = {}

    async def admit(self, attributes: Attributes, *, uid: str) -> Admitted:
        if attributes.kind in (MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS):
            return Admitted(attributes.content)
        mutating = self._matching(MUTATING_WEBHOOKS, attributes)
        validating = self._matching(VALIDATING_WEBHOOKS, attributes)
        if not mutating and not validating:
            return Admitted(attributes.content)
        round_ = _AdmissionRound(self._caller, attributes, uid)
        await round_.mutate(mutating)
        for webhook in validating:
            if self._matches(webhook, round_.attributes):
                await round_.call(webhook, may_patch=False)
        return Admitted(round_.attributes.content, tuple(round_.warnings))

    def _matching(self, configurations: ResourceKind, attributes: Attributes) -> list[Webhook]:
        return [each for each in self._webhooks(configurations) if self._matches(each, attributes)]

    def _webhooks(self, configurations: ResourceKind) -> tuple[Webhook, ...]:
        version, webhooks = self._parsed.get(configurations, (-1, ()))
        if version != self._store.touched(configurations):
            read = [msgspec.convert(each.object, WebhookConfiguration) for each in self._store.list(configurations)]
            webhooks = tuple(webhook for each in read for webhook in each.webhooks)
            self._parsed[configurations] = (self._store.touched(configurations), webhooks)
        return webhooks

    def _matches(self, webhook: Webhook, attributes: Attributes) -> bool:
        if not any(_rule_matches(rule, attributes) for rule in webhook.rules):
            return False
        return self._namespace_matches(webhook, attributes) and _object_matches(webhook, attributes)

    def _namespace_matches(self, webhook: Webhook, attributes: Attributes) -> bool:
        if attributes.kind is NAMESPACES:
            labels = ((attributes.content or attributes.old or {}).get("metadata") or {}).get("labels") or {}
        elif attributes.kind.namespaced:
            held = self._store.get(NAMESPACES, "", attributes.namespace)
            labels = held.object["metadata"].get("labels", {}) if held is not None else {}
        else:
            return True
        return webhook.namespace_selector.matches(labels)


class _AdmissionRound:
    """The webhook calls for one request, and what they have changed so far."""

    def __init__(self, caller: WebhookClient, attributes: Attributes, uid: str) -> None:
        self.attributes = attributes
        self.warnings: list[str] = []
        self._caller = caller
        self._uid = uid

    async def mutate(self, webhooks: list[Webhook]) -> None:
        left_behind: list[bytes] = []
        for webhook in webhooks:
            await self.call(webhook, may_patch=True)
            left_behind.append(ENCODE(self.attributes.content))
        again = [
            webhook
            for webhook, left in zip(webhooks, left_behind, strict=True)
            if webhook.reinvocation_policy == "IfNeeded" and left != left_behind[-1]
        ]
        for webhook in again:
            await self.call(webhook, may_patch=True)

    async def call(self, webhook: Webhook, *, may_patch: bool) -> None:
        try:
            answer = await self._caller.call(webhook, _request(self.attributes, self._uid))
            content = self._patched(answer) if may_patch else self.attributes.content
        except WebhookCallError as failure:
            if webhook.failure_policy == "Ignore":
                return
            message = f'failed calling webhook "{webhook.name}": failed to call webhook: {failure}'
            raise internal(message) from failure
        self.warnings += answer.warnings
        if not answer.allowed:
            raise _denied(webhook, answer)
        self.attributes = replace(self.attributes, content=content)

    def _patched(self, answer: WebhookResponse) -> Json | None:
        if not answer.patch or not answer.allowed:
            return self.attributes.content
        if self.attributes.content is None:
            raise WebhookCallError("there is no object to patch")
        try:
            operations = decode_json(base64.b64decode(answer.patch, validate=True))
            fresh = DECODE(ENCODE(self.attributes.content))
            patched = apply_json_patch(fresh, operations)
            if self.attributes.subresource_kind is None:
                patched = read_object(self.attributes.kind, patched)
        except (binascii.Error, ValueError) as error:
            raise WebhookCallError(f"the patch is not base64: {error}") from error
        except StatusError as error:
            raise WebhookCallError(f"the patch does not apply: {error.message}") from error
        if not isinstance(patched, dict):
            raise WebhookCallError("the patch leaves no object")
        return patched


def _request(attributes: Attributes, uid: str) -> Json:
    kind = attributes.kind
    resource = {"group": kind.group, "version": kind.version, "resource": kind.plural}
    meant = {"group": kind.group, "version": kind.version, "kind": kind.kind}
    if attributes.subresource_kind is not None:
        group, _, version = attributes.subresource_kind[0].rpartition("/")
        meant = {"group": group, "version": version, "kind": attributes.subresource_kind[1]}
    request: Json = {"uid": uid, "kind": meant, "resource": resource}
    if attributes.subresource:
        request["subResource"] = attributes.subresource
    request |= {"requestKind": meant, "requestResource": resource}
    if attributes.subresource:
        request["requestSubResource"] = attributes.subresource
    if attributes.name:
        request["name"] = attributes.name
    if attributes.namespace:
        request["namespace"] = attributes.namespace
    options = {"kind": VERB_OPTIONS[attributes.operation], "apiVersion": "meta.k8s.io/v1"} | attributes.options
    return request | {
        "operation": attributes.operation,
        "userInfo": {"username": attributes.user.username, "groups": list(attributes.user.groups)},
        "object": attributes.content,
        "oldObject": attributes.old,
        "dryRun": attributes.dry_run,
        "options": options,
    }


def _denied(webhook: Webhook, answer: WebhookResponse) -> StatusError:
    """The webhook's own code and reason, but never a code that means success."""
    status = answer.status
    message, reason, code = (status.get(key) for key in ("message", "reason", "code"))
    by = f'admission webhook "{webhook.name}" denied the request'
    if isinstance(message, str) and message:
        text = f"{by}: {message}"
    elif isinstance(reason, str) and reason:
        text = f"{by}: {reason}"
    else:
        text = f"{by} without explanation"
    refused = isinstance(code, int) and 400 <= code <= 599
    return StatusError(code if refused and code else 400, reason if isinstance(reason, str) else "", text)


def _rule_matches(rule: Rule, attributes: Attributes) -> bool:
    kind = attributes.kind
    if not _listed(rule.operations, attributes.operation) or not _listed(rule.api_groups, kind.group):
        return False
    if not _listed(rule.api_versions, kind.version):
        return False
    # A namespace counts as cluster-scoped here, although requests about it have a namespace.
    if rule.scope not in ("*", "Namespaced" if kind.namespaced else "Cluster"):
        return False
    return any(_resource_matches(pattern, kind.plural, attributes.subresource) for pattern in rule.resources)


def _resource_matches(pattern: str, plural: str, subresource: str) -> bool:
    resource, _, sub = pattern.partition("/")
    return resource in ("*", plural) and sub in ("*", subresource)


def _listed(wanted: tuple[str, ...], found: str) -> bool:
    return "*" in wanted or found in wanted


def _object_matches(webhook: Webhook, attributes: Attributes) -> bool:
    for content in (attributes.content, attributes.old):
        labels = ((content or {}).get("metadata") or {}).get("labels") or {}
        if content is not None and webhook.object_selector.matches(labels):
            return True
    return False
