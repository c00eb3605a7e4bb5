"""How often, and after which pauses, a write of a bind is sent again."""

from __future__ import annotations

import random

ATTEMPTS = 4
FIRST_PAUSE = 0.2
"""seconds; doubled each time, with jitter"""
LONGEST_PAUSE = 3.0
NOT_FOUND = 404
CONFLICT = 409
TOO_MANY = 429
TAKEN_OVER = "another replica has taken over"


def pause_before(attempt: int) -> float:
    """Back-off with full jitter, so that writes that failed together do not return together."""
    return random.uniform(0, min(FIRST_PAUSE * 2**attempt, LONGEST_PAUSE))
