"""A write that is valid for one version of an object: a Binding for a pod, a status for a ResourceClaim.

    answered                      its end
    no answer                     looked up; sent again if it has not landed
    refused for now (429, 5xx)    sent again after a pause
    another version (409)         looked up; sent again for that version, if the writer takes it
    refused                       looked up; not sent again

Of all that were sent for one version only one can land, so sending it again is safe. Whether one may land that was not
answered is the writer's to find out in the end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, Protocol, TypeVar

from tessera.kube.backoff import Backoff, retry_on_error
from tessera.kube.errors import ApiError, KubeError, Unreachable, is_conflict, is_throttled

ATTEMPTS = 4
PAUSES = Backoff(initial=0.4, cap=3.0)

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class NotSent(KubeError):
    """The write must not be sent; the text says why."""


class VersionedWrite(Protocol[R_co]):
    """One write and its end; it knows the object in the version that it is sent for next."""

    @property
    def version(self) -> str: ...

    def send(self) -> Awaitable[Any]:
        """Raises NotSent if it must not be sent any more. No coroutine where every pod passes: each frame costs."""

    def on_written(self, answer: Any) -> R_co:
        """Its end, from what `send` returned."""

    def on_unanswered(self) -> None:
        """What was sent may have taken effect, or may yet."""

    async def read(self, error: str) -> R_co | None:
        """Its end as the API shows it; None if it may be sent for the version that the object has now."""

    async def give_up(self, error: str, *, may_land: bool) -> R_co:
        """Its end, if it is not there as far as the API shows. `may_land`: an answer is missing."""


async def write_version(write: VersionedWrite[R]) -> R:
    """Send it until it has an end, or a few times. Raises KubeError if it cannot be looked up."""
    error, may_land, pause = "", False, 0.0
    for attempt in range(1, ATTEMPTS + 1):
        if pause:
            await asyncio.sleep(pause)
        pause, version = PAUSES.delay(attempt), write.version
        try:
            return write.on_written(await write.send())
        except ApiError as refusal:
            error = str(refusal)
            if refusal.is_transient:
                pause = max(pause, min(refusal.retry_after or 0.0, PAUSES.cap))
                if not is_throttled(refusal):
                    may_land = True
                    write.on_unanswered()
                continue
            end = await look_up(write, error)
            if end is not None:
                return end
            if not is_conflict(refusal) or write.version == version:
                break
            pause = 0.0
        except Unreachable as fault:
            error = str(fault)
            if fault.maybe_done:
                may_land = True
                write.on_unanswered()
                end = await look_up(write, error)
                if end is not None:
                    return end
        except KubeError as fault:
            error = str(fault)
            break
    return await write.give_up(error, may_land=may_land)


async def look_up(write: VersionedWrite[R], error: str) -> R | None:
    """`read`, tried a few times. Raises Unreachable with the text of `error` if the API never answers."""
    try:
        return await retry_on_error(
            lambda: write.read(error),
            backoff=PAUSES,
            is_retriable=lambda _, failures: failures < ATTEMPTS,
            max_retry_after=PAUSES.cap,
        )
    except KubeError as fault:
        raise Unreachable(error, maybe_done=True) from fault
