"""Refusals of the API as `metav1.Status` objects, with kube-apiserver's codes, reasons and texts.

All of them are one exception; only `rest` looks inside, to turn it into the response.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from http import HTTPStatus

from tessera_lab.sandbox.api.kinds import Json, ResourceKind


@dataclass(frozen=True, slots=True)
class FieldProblem:
    """One thing wrong with one field of an object."""

    field: str
    text: str
    reason: str = "FieldValueInvalid"

    def __str__(self) -> str:
        return f"{self.field}: {self.text}"


class StatusError(Exception):
    """A request that is answered with a Status instead of an object."""

    def __init__(
        self, code: int, reason: str, message: str, *, details: Json | None = None, retry_after_s: int | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details
        self.retry_after_s = retry_after_s

    def status(self) -> Json:
        """The body of the response."""
        body: Json = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
        body["message"] = self.message
        if self.reason:
            body["reason"] = self.reason
        details = dict(self.details or {})
        if self.retry_after_s is not None:
            details["retryAfterSeconds"] = self.retry_after_s
        if details:
            body["details"] = details
        return body | {"code": self.code}


def success(kind: ResourceKind, *, name: str, uid: str, code: int | None = None) -> Json:
    """The response to a write that returns no object."""
    body: Json = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
    if code is not None:
        return body | {"code": code}
    return body | {"details": _naming(kind, name) | {"uid": uid}}


def not_found(kind: ResourceKind, name: str) -> StatusError:
    return StatusError(404, "NotFound", f'{kind.qualified} "{name}" not found', details=_naming(kind, name))


def no_such_path() -> StatusError:
    return StatusError(404, "NotFound", "the server could not find the requested resource", details={})


def already_exists(kind: ResourceKind, name: str) -> StatusError:
    return StatusError(409, "AlreadyExists", f'{kind.qualified} "{name}" already exists', details=_naming(kind, name))


MODIFIED = "the object has been modified; please apply your changes to the latest version and try again"


def conflict(kind: ResourceKind, name: str, why: str = MODIFIED, *, subresource: str = "") -> StatusError:
    what = f"{kind.plural}/{subresource}" + (f".{kind.group}" if kind.group else "") if subresource else kind.qualified
    details = _naming(kind, name)
    if subresource:
        details["kind"] = f"{kind.plural}/{subresource}"
    return StatusError(409, "Conflict", f'Operation cannot be fulfilled on {what} "{name}": {why}', details=details)


def failed_precondition(kind: ResourceKind, name: str, *, what: str, wanted: str, found: str) -> StatusError:
    why = f"Precondition failed: {what} in precondition: {wanted}, {what} in object meta: {found}"
    return conflict(kind, name, why)


def invalid(kind: ResourceKind, name: str, problems: Iterable[FieldProblem]) -> StatusError:
    found = list(problems)
    texts = [str(problem) for problem in found]
    listed = texts[0] if len(texts) == 1 else "[" + ", ".join(texts) + "]"
    causes = [{"reason": each.reason, "message": each.text, "field": each.field} for each in found]
    details = {"name": name, "kind": kind.kind, "causes": causes}
    if kind.group:
        details["group"] = kind.group
    return StatusError(422, "Invalid", f'{kind.kind} "{name}" is invalid: {listed}', details=details)


def bad_request(message: str) -> StatusError:
    return StatusError(400, "BadRequest", message)


def forbidden(kind: ResourceKind, name: str, why: str) -> StatusError:
    message = f'{kind.qualified} "{name}" is forbidden: {why}'
    return StatusError(403, "Forbidden", message, details=_naming(kind, name))


def unauthorized() -> StatusError:
    return StatusError(401, "Unauthorized", "Unauthorized")


def method_not_allowed() -> StatusError:
    return StatusError(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")


def unsupported_media(found: str, known: Iterable[str]) -> StatusError:
    message = f"the body of the request was in an unknown format - accepted media types include: {', '.join(known)}"
    return StatusError(415, "UnsupportedMediaType", f"{message} (not {found or 'nothing'})")


def too_old(version: int, oldest: int) -> StatusError:
    return StatusError(410, "Expired", f"too old resource version: {version} ({oldest})")


def expired_page() -> StatusError:
    message = (
        "The provided continue parameter is too old to display a consistent list result. "
        "You must start a new list without the continue parameter."
    )
    return StatusError(410, "Expired", message)


def too_large_version(version: int, current: int) -> StatusError:
    cause = {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}
    message = f"Timeout: Too large resource version: {version}, current: {current}"
    return StatusError(504, "Timeout", message, details={"causes": [cause]}, retry_after_s=1)


def too_large_body() -> StatusError:
    return StatusError(413, "RequestEntityTooLarge", "Request entity too large: limit is 3145728")


def unknown_error(message: str) -> StatusError:
    """An error without a status of its own: kube-apiserver answers 500 without a reason."""
    return StatusError(500, "", message)


def internal(message: str) -> StatusError:
    return StatusError(500, "InternalError", f"Internal error occurred: {message}")


def status_error(code: int, message: str = "injected fault", *, retry_after_s: int | None = None) -> StatusError:
    """A refusal with this code, for injected faults."""
    reasons = {
        400: "BadRequest",
        401: "Unauthorized",
        403: "Forbidden",
        404: "NotFound",
        409: "Conflict",
        410: "Expired",
        422: "Invalid",
        429: "TooManyRequests",
        500: "InternalError",
        503: "ServiceUnavailable",
        504: "Timeout",
    }
    phrase = reasons.get(code) or HTTPStatus(code).phrase.replace(" ", "")
    return StatusError(code, phrase, message, retry_after_s=retry_after_s)


def _naming(kind: ResourceKind, name: str) -> Json:
    naming: Json = {"name": name, "kind": kind.plural}
    if kind.group:
        naming["group"] = kind.group
    return naming
