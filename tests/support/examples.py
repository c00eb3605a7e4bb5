"""How many random examples a property runs: a multiple of the number in the Hypothesis profile.

A fixed number would be the same in `make test`, where time is short, and in `make properties`, which looks for hours.
"""

from __future__ import annotations

from typing import Any

from hypothesis import settings

LEAST = 6
"""examples, however few the profile has"""


def examples(times: float, **others: Any) -> settings:
    """Settings with so many times the examples of the profile, cheap ones more and long lives fewer."""
    return settings(max_examples=max(round(settings().max_examples * times), LEAST), **others)
