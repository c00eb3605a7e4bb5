"""How long to wait after a failure: exponential, capped, with full jitter. The caller counts failures and waits."""

from __future__ import annotations

import random
from dataclasses import dataclass

_DOUBLINGS = 32
"""every sane cap is reached by then; keeps the power finite after days of failures"""


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
