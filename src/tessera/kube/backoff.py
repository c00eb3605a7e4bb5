"""How long to wait after a failure: exponential, with full jitter, capped.

Pure: the caller counts the failures and does the waiting.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

_DOUBLINGS = 32
"""beyond this every sane cap is reached; keeps the power finite after days of failures"""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Settings; all in seconds."""

    initial: float = 0.5
    """the longest wait after the first failure"""
    cap: float = 30.0
    """the longest wait of all"""
    floor: float = 0.02
    """the shortest wait of all: a run of small random numbers is not a busy loop"""

    def ceiling(self, failures: int) -> float:
        """The longest wait after this many failures in a row (1 is the first)."""
        return max(self.floor, min(self.cap, self.initial * 2.0 ** min(max(failures - 1, 0), _DOUBLINGS)))

    def delay(self, failures: int, rng: random.Random) -> float:
        """Anywhere between floor and ceiling, so that many clients do not come back at the same moment."""
        return rng.uniform(self.floor, self.ceiling(failures))
