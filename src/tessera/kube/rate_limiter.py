"""A token bucket: a number of requests per second, with a burst, in the order of the calls."""

from __future__ import annotations

import asyncio


class RateLimiter:
    """For one event loop; needs no lock because nothing awaits between reading and writing its state."""

    def __init__(self, *, qps: float, burst: int) -> None:
        if qps <= 0 or burst < 1:
            raise ValueError(f"qps {qps} and burst {burst} must be positive")
        self._interval = 1.0 / qps
        self._max_lag = (burst - 1) * self._interval
        """how far the schedule may lag behind the clock: the unused burst"""
        self._next = float("-inf")

    async def wait(self) -> None:
        """Return when the next request may be sent."""
        now = asyncio.get_running_loop().time()
        at = max(self._next, now - self._max_lag)
        self._next = at + self._interval
        if at > now:
            await asyncio.sleep(at - now)
