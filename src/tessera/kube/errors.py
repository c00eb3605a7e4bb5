"""The errors of this package, as one small tree.

Errors of libraries (aiohttp, ssl, msgspec, yaml, OSError) never leave it: they are the `__cause__` of these.
"""

from __future__ import annotations

UNAUTHORIZED, FORBIDDEN, NOT_FOUND, CONFLICT = 401, 403, 404, 409
EXPIRED, INVALID, TOO_MANY_REQUESTS = 410, 422, 429
TRANSIENT = frozenset({TOO_MANY_REQUESTS, 500, 502, 503, 504})
"""status codes of refusals that are about the server, not about the request"""


class KubeError(Exception):
    """Base of all errors of this package."""

    retry_after: float | None = None
    """seconds that the server asks the client to wait, if it does"""

    @property
    def is_transient(self) -> bool:
        """The same request may succeed later."""
        return False


class ApiError(KubeError):
    """The apiserver refused the request."""

    def __init__(
        self,
        *,
        status: int,
        reason: str = "",
        message: str = "",
        retry_after: float | None = None,
        causes: tuple[str, ...] = (),
    ) -> None:
        super().__init__(status, reason, message)
        self.status = status
        """HTTP status, or the code of an ERROR event"""
        self.reason = reason
        """as in metav1.Status: NotFound, AlreadyExists, Conflict, Expired, ..."""
        self.message = message
        self.retry_after = retry_after
        self.causes = causes
        """more about the refusal, e.g. which disruption budget refuses an eviction"""

    def __str__(self) -> str:
        return f"{self.status} {self.reason}: {self.message}" if self.reason else f"{self.status}: {self.message}"

    @property
    def is_transient(self) -> bool:
        return self.status in TRANSIENT

    @property
    def expired(self) -> bool:
        """The resourceVersion or the continue token is too old, or from before a restored backup: list again."""
        return self.status == EXPIRED or self.reason in ("Expired", "Gone")


def is_not_found(error: BaseException) -> bool:
    """Whether the apiserver says that there is no such object, as apierrors.IsNotFound in client-go."""
    return isinstance(error, ApiError) and error.status == NOT_FOUND


def is_forbidden(error: BaseException) -> bool:
    """Whether the caller lacks the right to do it."""
    return isinstance(error, ApiError) and error.status == FORBIDDEN


def is_conflict(error: BaseException) -> bool:
    """Whether the object is not what the caller expected, or exists already."""
    return isinstance(error, ApiError) and error.status == CONFLICT


def is_gone(error: BaseException) -> bool:
    """Whether there is no such object, or another one of its name: the answers to a request that names a uid."""
    return is_not_found(error) or is_conflict(error)


def is_invalid(error: BaseException) -> bool:
    """Whether the object that it would become is not valid, e.g. with annotations that are too large, or a uid that it
    does not have."""
    return isinstance(error, ApiError) and error.status == INVALID


def is_throttled(error: BaseException) -> bool:
    """Whether the request was turned away unread because there are too many, or a disruption budget refuses it."""
    return isinstance(error, ApiError) and error.status == TOO_MANY_REQUESTS


class Unreachable(KubeError):
    """No complete response arrived."""

    def __init__(self, message: str, *, maybe_done: bool) -> None:
        super().__init__(message)
        self.maybe_done = maybe_done
        """whether the request was sent, so that it may have taken effect"""

    @property
    def is_transient(self) -> bool:
        return True


class BadResponse(Unreachable):
    """The response makes no sense, so the effect of the request is as unknown as with a lost response."""

    def __init__(self, message: str) -> None:
        super().__init__(message, maybe_done=True)


class AccessError(KubeError):
    """A bad kubeconfig, key, token or plugin. The message names file and field."""


class BadName(KubeError, ValueError):
    """A name that cannot be part of a request path."""
