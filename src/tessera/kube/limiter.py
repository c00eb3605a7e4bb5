"""A token bucket: so many requests a second, with a burst, in the order of asking."""

from __future__ import annotations

import asyncio


class Limiter:
    """Hands out moments to go. One loop only; needs no lock because nothing awaits between reading and writing."""

    def __init__(self, *, qps: float, burst: int) -> None:
        if qps <= 0 or burst < 1:
            raise ValueError(f"qps {qps} and burst {burst} must be positive")
        self._interval = 1.0 / qps
        self._lead = (burst - 1) * self._interval
        """how far the schedule may lag behind the clock, which is what an unused burst is"""
        self._next = float("-inf")

    async def take(self) -> None:
        """Wait for a turn."""
        now = asyncio.get_running_loop().time()
        turn = max(self._next, now - self._lead)
        self._next = turn + self._interval
        if turn > now:
            await asyncio.sleep(turn - now)
