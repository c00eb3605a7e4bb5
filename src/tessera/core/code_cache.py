"""The codes of cards by their state: most cards that change get into a state in which others have been before.

Judging one column costs as many array operations as judging thousands, so what `screen.judge` said about a state is
looked up. The rule itself is not here. Codes that depend on a card's uuid are not remembered.
"""

from __future__ import annotations

import numpy as np

from tessera.core import screen
from tessera.core.arrays import CardArrays

STATES = 256
"""remembered for one request; when there are more, all are forgotten"""

State = tuple[int, ...]
"""of a card: everything that `screen.judge` reads about it"""


class KnownCodes:
    """For one request. Void when the rules change, as everything that is remembered of a shape."""

    def __init__(self, question: screen.Question) -> None:
        self._question = question
        self._known: dict[State, int] = {}
        self._any_card = not question.constraint.use_uuids and not question.constraint.avoid_uuids

    def of(self, arrays: CardArrays, column: int) -> list[int]:
        """The codes of the cards of one column."""
        if not self._any_card:
            return self._judge(arrays, column)
        numbers = (
            arrays.kind, arrays.slots, arrays.used, arrays.memory, arrays.used_memory, arrays.cores, arrays.used_cores,
            arrays.sick, arrays.cordoned,
        )  # fmt: skip
        states: list[State] = list(zip(*(array[:, column].tolist() for array in numbers), strict=True))
        try:
            return [self._known[state] for state in states]
        except KeyError:
            codes = self._judge(arrays, column)
        if len(self._known) + len(states) > STATES:
            self._known.clear()
        self._known.update(zip(states, codes, strict=True))
        return codes

    def _judge(self, arrays: CardArrays, column: int) -> list[int]:
        codes: list[int] = screen.judge(arrays, self._question, np.array([column], dtype=np.int64))[:, 0].tolist()
        return codes
