"""Everything that can go wrong with the apiserver, as one small tree.

Errors of libraries (aiohttp, ssl, msgspec, yaml, OSError) never leave this package: they are the `__cause__` of these.
"""

from __future__ import annotations


class KubeError(Exception):
    """Base of all faults of this package."""


class ApiError(KubeError):
    """The apiserver answered, and the answer is no."""

    def __init__(self, *, status: int, reason: str = "", message: str = "", retry_after: float | None = None) -> None:
        super().__init__(status, reason, message)
        self.status = status
        """HTTP status, or the code of an ERROR event"""
        self.reason = reason
        """machine-readable, as in metav1.Status: NotFound, AlreadyExists, Conflict, Expired, ..."""
        self.message = message
        self.retry_after = retry_after
        """seconds that the server asks to wait, if it does"""

    def __str__(self) -> str:
        return f"{self.status} {self.reason}: {self.message}" if self.reason else f"{self.status}: {self.message}"

    @property
    def expired(self) -> bool:
        """The resourceVersion or the continue token is too old (or from another history): list again."""
        return self.status == 410 or self.reason in ("Expired", "Gone")


class Unreachable(KubeError):
    """No complete answer."""

    def __init__(self, message: str, *, maybe_done: bool) -> None:
        super().__init__(message)
        self.maybe_done = maybe_done
        """True where the request left this process, so that it may have taken effect; False where it never did"""


class BadAnswer(Unreachable):
    """An answer came but makes no sense, so that its effect is as unknown as that of a lost one."""

    def __init__(self, message: str) -> None:
        super().__init__(message, maybe_done=True)


class AccessError(KubeError):
    """No way to reach or to convince the apiserver: bad kubeconfig, key, token or plugin. Names file and field."""


class BadName(KubeError, ValueError):
    """A name that cannot be part of a request path."""
