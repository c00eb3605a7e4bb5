"""The value of `hami.io/mutex.lock` on a node: since when it is held, and for which pod.

A lock without an owner (HAMi v2.4, or empty names) can only expire. This module does not acquire or release locks.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime

from tessera.wire.errors import WireError
from tessera.wire.quotes import quoted, shortened

_OWNED = 3
"""parts of a value that names its pod: time, namespace, name"""
_RFC3339 = re.compile(
    r"[12][0-9]{3}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]+)?(?:Z|[+-][0-9]{2}:[0-9]{2})"
)
"""years near the ends of the calendar are refused, because arithmetic with them could overflow"""


@dataclass(frozen=True, slots=True)
class NodeLock:
    """Which pod holds a node, and since when."""

    time: datetime
    """aware"""
    namespace: str | None = None
    name: str | None = None
    """both None where the lock names no pod"""

    @property
    def owner(self) -> tuple[str, str] | None:
        """Namespace and name of the pod, or None."""
        return (self.namespace, self.name) if self.namespace and self.name else None


def decode_node_lock(text: str) -> NodeLock:
    time, *owner = text.split(",")
    if len(owner) not in (0, _OWNED - 1):
        raise WireError(
            f"malformed lock annotation: expected {_OWNED} parts, got {len(owner) + 1} from {shortened(text)}"
        )
    namespace, name = owner if all(owner) and owner else (None, None)
    return NodeLock(_rfc3339(time), namespace, name)


def encode_node_lock(lock: NodeLock) -> str:
    """In UTC and whole seconds; a lock without an owner is written in the legacy form."""
    time = lock.time.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    return time if lock.owner is None else ",".join((time, *lock.owner))


def _rfc3339(text: str) -> datetime:
    if _RFC3339.fullmatch(text) is None:
        raise WireError(f"malformed lock annotation: {quoted(text)} is not an RFC 3339 time")
    try:
        return datetime.fromisoformat(text)
    except ValueError as error:
        raise WireError(f"malformed lock annotation: {quoted(text)} is not a time: {error}") from error
