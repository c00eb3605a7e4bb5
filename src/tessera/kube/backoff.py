"""What to do after a failure: how long to wait, and how to repeat what the apiserver refused or did not answer.

`Backoff` is exponential, capped, with full jitter; the caller counts failures and waits. `retry_on_error` repeats as
`retry.OnError` of client-go does. What is repeated reads what is there, compares it with what is wanted, and writes the
difference: a write that took effect without an answer is found by the next try.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from tessera.kube.errors import KubeError

_DOUBLINGS = 32
"""every sane cap is reached by then; keeps the power finite after days of failures"""

T = TypeVar("T")

MAX_RETRY_AFTER_S = 10.0
"""that a server may ask for: containers wait for some of these writes to start"""


@dataclass(frozen=True, slots=True)
class Backoff:
    """All values are in seconds."""

    initial: float = 0.5
    """the longest wait after the first failure"""
    cap: float = 30.0
    """the longest wait"""
    floor: float = 0.02
    """the shortest wait: small random numbers must not make a busy loop"""

    def ceiling(self, failures: int) -> float:
        """The longest wait after this many failures in a row (1 is the first)."""
        return max(self.floor, min(self.cap, self.initial * 2.0 ** min(max(failures - 1, 0), _DOUBLINGS)))

    def delay(self, failures: int) -> float:
        """A random time between floor and ceiling, so that many clients do not retry at the same moment."""
        return random.uniform(self.floor, self.ceiling(failures))


async def retry_on_error(
    write: Callable[[], Awaitable[T]],
    *,
    backoff: Backoff,
    is_retriable: Callable[[KubeError, int], bool],
    pause: Callable[[float], Awaitable[object]] = asyncio.sleep,
    max_retry_after: float = MAX_RETRY_AFTER_S,
) -> T:
    """`is_retriable` is told of each error and how many there were; the error that it does not take is raised."""
    failures = 0
    while True:
        try:
            return await write()
        except KubeError as error:
            failures += 1
            if not is_retriable(error, failures):
                raise
            seconds = max(backoff.delay(failures), min(error.retry_after or 0.0, max_retry_after))
        await pause(seconds)
