"""Repeats what the apiserver refused or did not answer, as `retry.OnError` of client-go does.

What is repeated reads what is there, compares it with what is wanted, and writes the difference: a write that took
effect without an answer is found by the next try.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from tessera.kube.backoff import Backoff
from tessera.kube.errors import KubeError

T = TypeVar("T")

MAX_RETRY_AFTER_S = 10.0
"""that a server may ask for: containers wait for some of these writes to start"""


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
