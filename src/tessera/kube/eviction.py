"""Evicts one pod through the Eviction API, which keeps its disruption budgets.

Who is evicted, in which order, and when one is tried again that stays, is the caller's to decide: preemption, drain and
defragmentation have this in common. An eviction names the pod's uid, so that another pod of the same name is safe.
"""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from tessera.kube.errors import ApiError, KubeError, is_gone

CONCURRENT = 8
"""evictions that one caller has under way at once"""
RETRY_S = 5.0
"""before an eviction is tried again, at least, as `kubectl drain` waits"""


class EvictionResult(Enum):
    """What became of an eviction."""

    EVICTED = "evicted"
    GONE = "gone"
    REFUSED = "refused"
    UNANSWERED = "unanswered"
    """it may be evicted all the same; then it is found leaving"""


@dataclass(frozen=True, slots=True)
class EvictionAnswer:
    """The apiserver's answer to an eviction."""

    result: EvictionResult
    reason: str = ""
    """why the pod stays, as far as is known: which budget refuses it"""
    is_final: bool = False
    """it would be refused again"""
    retry_after: float | None = None
    """seconds that the apiserver asks for"""

    @property
    def retry_s(self) -> float:
        """Seconds before it is tried again."""
        return max(RETRY_S, self.retry_after or 0.0)


class EvictionApi(Protocol):
    """What sends an eviction. Raises KubeError."""

    def evict(self, namespace: str, name: str, *, uid: str, dry_run: bool = False) -> Awaitable[None]: ...


async def evict_pod(api: EvictionApi, namespace: str, name: str, *, uid: str, dry_run: bool = False) -> EvictionAnswer:
    """Evict the pod if it still has this uid; as a `dry_run` only ask whether it would be evicted."""
    try:
        await api.evict(namespace, name, uid=uid, dry_run=dry_run)
    except ApiError as error:
        if is_gone(error):
            return EvictionAnswer(EvictionResult.GONE)
        reason = "; ".join(error.causes) or error.message
        is_final = not error.is_transient
        return EvictionAnswer(EvictionResult.REFUSED, reason, is_final=is_final, retry_after=error.retry_after)
    except KubeError as error:
        return EvictionAnswer(EvictionResult.UNANSWERED, str(error), is_final=not error.is_transient)
    return EvictionAnswer(EvictionResult.EVICTED)
