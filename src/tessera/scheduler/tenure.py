"""Whether this replica decides, judged against the clock at every question and right before every write.

    not leading --(the lease is ours, or there is no election)--> taking over --(fenced, pods read again)--> deciding
         ^                                                              |                                       |
         '------------------ the lease moved, or was not renewed in time, or moved and came back ---------------'

A tenure is one uninterrupted time of leading. Nothing is remembered between two questions but its number. The fence is
the mark that the take-over left on every pod that was not bound.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

NOT_LEADING = "this replica is not the leader"
TAKEN_OVER = "another replica has taken over"


class Tenure:
    """One replica's right to decide."""

    def __init__(self, current: Callable[[], int | None]) -> None:
        """`current` numbers the tenures that the lease gives this replica; None while another one may lead."""
        self._current = current
        self._number: int | None = None
        self._touches = 0
        self.fence = ""
        """the last one that this replica wrote"""
        self.obstacle = ""
        """why the take-over is not finished"""

    @classmethod
    def unlimited(cls) -> Self:
        """Of a decider that has no predecessor, in tests and simulations."""
        tenure = cls(lambda: 0)
        tenure.begin(0, "0")
        return tenure

    @property
    def current(self) -> int | None:
        """The tenure that the lease gives this replica now."""
        return self._current()

    @property
    def number(self) -> int | None:
        """The tenure that has begun."""
        return self._number

    def is_held(self) -> bool:
        """Whether this replica decides now."""
        return self._number is not None and self._current() == self._number

    def missing(self) -> str:
        """Why it does not decide; empty if it does."""
        return "" if self.is_held() else self.obstacle or NOT_LEADING

    def begin(self, number: int, fence: str) -> None:
        """No write of an earlier decider can land any more."""
        self._number, self.fence, self.obstacle = number, fence, ""

    def end(self) -> None:
        self._number, self.obstacle = None, ""

    def next_touch(self) -> str:
        """A fence of this tenure that no pod has yet: a patch that changes nothing would leave the version as it is."""
        self._touches += 1
        return f"{self.fence}.{self._touches}"

    def is_taken_over(self, fence: str, *, known: str) -> bool:
        """Whether another replica has fenced the object since its `known` fence, even if the lease looks valid here:
        what shows it may be late."""
        return fence not in ("", known) and fence.partition(".")[0] != self.fence
