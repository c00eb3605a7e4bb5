"""The scheduler's clocks, passed as one value so that tests can replace all of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import tzinfo


@dataclass(frozen=True, slots=True)
class Clock:
    """Wall clock for what is written to the API, monotonic clock for deadlines. Both in seconds."""

    now: Callable[[], float]
    """since the Unix epoch"""
    monotonic: Callable[[], float]
    zone: tzinfo
    """of timestamps that plugins write without one"""
