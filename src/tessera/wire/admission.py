"""AdmissionReview, v1 and v1beta1: what the apiserver sends to the webhook, and the responses that it accepts.

A response has the version of its request. The HTTP status is always 200; `code` inside the response says what happened.
This module decides nothing about pods.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import Raw

from tessera.core.model.requests import refuse_container_count
from tessera.wire.errors import WireError
from tessera.wire.objects import Partial, decode_object

MAX_BODY = 7 * 2**20
"""bytes; more than twice the apiserver's limit for an object (object and oldObject)"""
MAX_VALUES = 250_000
"""in one review. A value may need a hundred times the memory of its text, so that bytes alone limit nothing."""
MAX_POD_BYTES = 4 << 20
"""of JSON: an apiserver takes 3 MiB in a request, and etcd 1.5 MiB; escapes may make a pod longer"""
MAX_POD_VALUES = 30_000
"""in one pod: 10,000 variables, of which the policies of the apiserver allow some thousands. More would take the event
loop for longer than others may wait"""

CONTENT_TYPE = "application/json"
KIND = "AdmissionReview"
V1 = "admission.k8s.io/v1"
VERSIONS = (V1, "admission.k8s.io/v1beta1")

BAD_REQUEST = 400
FORBIDDEN = 403
TOO_LARGE = 413
FAULT = 500


@dataclass(frozen=True, slots=True)
class Review:
    api_version: str
    uid: str
    operation: str
    namespace: str
    name: str
    """empty where the apiserver will generate it"""
    username: str
    object: Raw
    dry_run: bool = False
    """whether nothing may be written"""

    @property
    def pod_name(self) -> str:
        """The name, or else the generateName; empty if neither can be read."""
        if self.name:
            return self.name
        try:
            metadata = decode_object(bytes(self.object), _Named).metadata
        except WireError:
            return ""
        return metadata.name or metadata.generate_name


@dataclass(frozen=True, slots=True)
class Verdict:
    """A response. Make one with `allowed`, `patched`, `denied` or `errored`."""

    allowed: bool
    code: int
    message: str = ""
    reason: str = ""
    patch: tuple[Mapping[str, Any], ...] = ()
    """operations of a JSON patch (RFC 6902)"""
    changed: Any = None
    """the object with the patch applied; None where it stays as it is"""
    warnings: tuple[str, ...] = ()
    """sentences that kubectl shows"""
    requires: Mapping[str, Any] | None = None
    """an object of the same namespace that must exist before the response is sent"""


def allowed(message: str = "", *, warnings: Sequence[str] = ()) -> Verdict:
    return Verdict(True, 200, message, warnings=tuple(warnings))


def patched(patch: Sequence[Mapping[str, Any]], *, changed: Any = None, warnings: Sequence[str] = ()) -> Verdict:
    """Allowed with changes, or unchanged if there are no operations. `changed` is the object after them."""
    return Verdict(True, 200, patch=tuple(patch), changed=changed, warnings=tuple(warnings))


def denied(message: str, *, warnings: Sequence[str] = ()) -> Verdict:
    return Verdict(False, FORBIDDEN, message, "Forbidden", warnings=tuple(warnings))


def errored(code: int, message: str) -> Verdict:
    return Verdict(False, code, message)


def content_refusal(content_type: str) -> Verdict | None:
    """Why a request with this content type is refused; empty if it is not."""
    if content_type == CONTENT_TYPE:
        return None
    return errored(BAD_REQUEST, f"contentType={content_type}, expected {CONTENT_TYPE}")


def size_refusal(body: bytes) -> Verdict | None:
    """Why a body is refused unread; empty if it is not."""
    if not body:
        return errored(BAD_REQUEST, "request body is empty")
    if len(body) > MAX_BODY:
        return errored(TOO_LARGE, f"request entity is too large; limit is {MAX_BODY} bytes")
    if _count_values(body) > MAX_VALUES:
        return errored(TOO_LARGE, f"request entity is too large; limit is {MAX_VALUES} values")
    return None


def pod_refusal(review: Review) -> Verdict | None:
    """Why a pod of this size is refused before it is read; empty if it is not, or if the object is not a pod."""
    data = bytes(review.object)
    if len(data) > MAX_POD_BYTES:
        return denied(f"the pod has {len(data)} bytes; at most {MAX_POD_BYTES}")
    values = _count_values(data)
    if values > MAX_POD_VALUES:
        return denied(f"the pod has {values} values (lists, objects and their members); at most {MAX_POD_VALUES}")
    try:
        spec = msgspec.json.decode(review.object, type=_ContainerLists).spec
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
    count = sum(len(each or ()) for each in (spec.containers, spec.init_containers, spec.ephemeral_containers))
    too_many = refuse_container_count(count)
    return denied(too_many) if too_many else None


def _count_values(data: bytes) -> int:
    """At most so many values are in a document: each but the first of a list or object follows a comma."""
    return data.count(b",") + data.count(b"[") + data.count(b"{")


def decode_review(body: bytes) -> Review:
    """A request; raises `WireError`, which the webhook answers as `errored(400, ...)`."""
    review = decode_object(body, AdmissionReview)
    if review.kind != KIND or review.api_version not in VERSIONS:
        raise WireError(
            f"expected {KIND} of {' or '.join(VERSIONS)}, found {review.kind[:64]!r} of {review.api_version[:64]!r}"
        )
    request = review.request
    if request is None:
        raise WireError("the AdmissionReview has no request")
    return Review(
        api_version=review.api_version,
        uid=request.uid,
        operation=request.operation,
        namespace=request.namespace,
        name=request.name,
        username=request.user_info.username,
        object=request.object,
        dry_run=request.dry_run is True,
    )


def encode_verdict(verdict: Verdict, review: Review | None) -> bytes:
    """Encode the response to `review`; in the newest version if the request could not be decoded."""
    response: dict[str, Any] = {
        "uid": review.uid if review else "",
        "allowed": verdict.allowed,
        "status": _status(verdict),
    }
    if verdict.patch:
        response["patchType"] = "JSONPatch"
        response["patch"] = base64.b64encode(msgspec.json.encode(verdict.patch)).decode("ascii")
    if verdict.warnings:
        response["warnings"] = verdict.warnings
    version = review.api_version if review else V1
    return msgspec.json.encode({"kind": KIND, "apiVersion": version, "response": response})


def _status(verdict: Verdict) -> dict[str, Any]:
    said = {"code": verdict.code, "reason": verdict.reason, "message": verdict.message}
    return {key: value for key, value in said.items() if value}


class _Name(Partial, frozen=True):
    name: str = ""
    generate_name: str = ""


class _Named(Partial, frozen=True):
    metadata: _Name = _Name()


class _ContainerSpec(Partial, frozen=True):
    containers: list[Raw] | None = None
    init_containers: list[Raw] | None = None
    ephemeral_containers: list[Raw] | None = None


class _ContainerLists(Partial, frozen=True):
    spec: _ContainerSpec = _ContainerSpec()


class _UserInfo(Partial, frozen=True):
    username: str = ""


class _Request(Partial, frozen=True):
    uid: str = ""
    operation: str = ""
    namespace: str = ""
    name: str = ""
    user_info: _UserInfo = _UserInfo()
    object: Raw = Raw()
    dry_run: bool | None = None


class AdmissionReview(Partial, frozen=True):
    kind: str = ""
    api_version: str = ""
    request: _Request | None = None
