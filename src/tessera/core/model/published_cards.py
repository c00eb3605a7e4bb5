"""Which cards a claim's selectors accept, for all cards of the cluster at once.

Thousands of cards publish a few different things, apart from what no two have in common. So a filter is asked once for
each different thing that it reads, and for each card only if it reads what is the card's own. Answers are kept by
filter and follow the registrations. Asking may be done in parts, and a filter that takes too much work in all is asked
no more.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Hashable

import numpy as np
import numpy.typing as npt

from tessera.core.model.devices import Device, Published
from tessera.core.model.requests import CardFilter

KEPT_FILTERS = 128
"""filters whose answers are kept; of more, the one that was used longest ago is dropped. One that reads what is the
cards' own has five bytes for each card"""
CARD_COST = 20_000
"""units of work (`FilterAnswer.cost`) that the filters of a pod may take for one card, 2 ms: the plain rule may have to
ask them about all cards of a node"""
CLUSTER_COST = 24_000_000
"""units of work that the filters of a pod may take for all cards, 2.4 s in all: 600 for each of 40,000 cards, if all of
these are different to them"""
COST_AT_ONCE = 200_000
"""units of work without a pause: 20 ms"""
KNOWN_COST = 40
"""to find what a filter reads of a card"""

UNASKED, ACCEPTED, REFUSED, TOO_COSTLY = range(4)

Bools = npt.NDArray[np.bool_]
Codes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
Everything = tuple[Published, ...]
"""of a card: one for each MIG profile of it, or one"""


class PublishedCards:
    """What the cards publish, by their places in the arrays."""

    def __init__(self, shape: tuple[int, int]) -> None:
        """`shape`: of the arrays."""
        self._shape = shape
        self._numbers: dict[Everything, int] = {}
        self._kinds: list[Everything] = []
        """what cards publish without what is their own, by number"""
        self._cards: dict[int, dict[int, Everything]] = {}
        """all that is published, by column and place"""
        self._answers: OrderedDict[CardFilter, _KindAnswers | _CardAnswers] = OrderedDict()

    def put(self, place: int, row: int, device: Device) -> int:
        """Set what a card publishes. Returns the number of what it has in common with others, -1 for nothing."""
        if not device.published:
            return -1
        everything = tuple(published for _, published in device.published)
        self._cards.setdefault(row, {})[place] = everything
        for answers in self._answers.values():
            answers.note(row)
        common = tuple(published.shareable for published in everything)
        number = self._numbers.get(common)
        if number is None:
            number = self._numbers[common] = len(self._kinds)
            self._kinds.append(common)
        return number

    def clear(self, row: int) -> None:
        """The cards of a column are gone."""
        if self._cards.pop(row, None) is not None:
            for answers in self._answers.values():
                answers.clear(row)

    def resize(self, shape: tuple[int, int]) -> None:
        """The arrays have another size."""
        self._shape = shape
        self._answers.clear()

    def ask(self, accepts: CardFilter, most: float = math.inf) -> int:
        """Ask for the answers that are missing, until that has cost `most`; what it has cost."""
        return self._of(accepts).ask(most)

    def is_asked(self, accepts: CardFilter) -> bool:
        """Whether there is an answer for every card, or too much work was done for them."""
        answers = self._of(accepts)
        return answers.is_complete or answers.cost > CLUSTER_COST

    def cost(self, accepts: CardFilter) -> int:
        """Of the answers for all cards that there are, as far as they were asked for."""
        return self._of(accepts).cost

    def dearest(self, accepts: CardFilter) -> int:
        """The most that one answer has cost."""
        return self._of(accepts).dearest

    def codes(self, accepts: CardFilter, numbers: Ints, columns: Ints | slice) -> Codes:
        """Answers for the cards of some columns, whose numbers are given. What is missing is asked for; if that is too
        much for one moment, cards are unasked, which decisions see to before."""
        answers = self._of(accepts)
        answers.ask(COST_AT_ONCE)
        return answers.codes(numbers, columns)

    def _of(self, accepts: CardFilter) -> _KindAnswers | _CardAnswers:
        known = self._answers.get(accepts)
        if known is None:
            if len(self._answers) >= KEPT_FILTERS:
                self._answers.popitem(last=False)
            known = self._answers[accepts] = (
                _CardAnswers(accepts, self._cards, self._shape)
                if accepts.reads_own
                else _KindAnswers(accepts, self._kinds)
            )
        else:
            self._answers.move_to_end(accepts)
        return known


class _KindAnswers:
    """Of a filter that does not read what is the cards' own: by number. Each different thing is asked about once."""

    def __init__(self, accepts: CardFilter, kinds: list[Everything]) -> None:
        self._accepts = accepts
        self._kinds = kinds
        self._by_number: list[int] = []
        self._by_reads: dict[Hashable, int] = {}
        self.cost = self.dearest = 0

    @property
    def is_complete(self) -> bool:
        return len(self._by_number) == len(self._kinds)

    def note(self, row: int) -> None:
        """A card of a column is new."""

    def clear(self, row: int) -> None:
        """The cards of a column are gone."""

    def ask(self, most: float) -> int:
        spent = 0
        while not self.is_complete and spent < most and self.cost <= CLUSTER_COST:
            kind = self._kinds[len(self._by_number)]
            reads = tuple([self._accepts.reads(published) for published in kind])
            code = self._by_reads.get(reads)
            spent += KNOWN_COST * len(kind)
            if code is None:
                code, cost = _ask(self._accepts, kind)
                self._by_reads[reads] = code
                self.cost, self.dearest, spent = self.cost + cost, max(self.dearest, cost), spent + cost
            self._by_number.append(code)
        return spent

    def codes(self, numbers: Ints, columns: Ints | slice) -> Codes:
        unasked = [UNASKED] * (len(self._kinds) - len(self._by_number))
        # The last one is for cards without a number (-1).
        found: Codes = np.array([*self._by_number, *unasked, REFUSED], dtype=np.uint8)[numbers]
        return found


class _CardAnswers:
    """Of a filter that reads what is the cards' own: by place and column."""

    def __init__(self, accepts: CardFilter, cards: dict[int, dict[int, Everything]], shape: tuple[int, ...]) -> None:
        self._accepts = accepts
        self._cards = cards
        self._codes = np.zeros(shape, dtype=np.uint8)
        self._costs = np.zeros(shape, dtype=np.int32)
        self._unasked = dict.fromkeys(cards)
        """columns with cards that are new"""
        self.cost = self.dearest = 0

    @property
    def is_complete(self) -> bool:
        return not self._unasked

    def note(self, row: int) -> None:
        self._unasked[row] = None

    def clear(self, row: int) -> None:
        self._unasked.pop(row, None)
        self.cost -= int(self._costs[:, row].sum())
        self._codes[:, row] = UNASKED
        self._costs[:, row] = 0

    def ask(self, most: float) -> int:
        spent = 0
        while self._unasked and spent < most and self.cost <= CLUSTER_COST:
            row = next(iter(self._unasked))
            new = (place for place in self._cards[row] if self._codes[place, row] == UNASKED)
            place = next(new, None)
            if place is None:
                del self._unasked[row]
                continue
            code, cost = _ask(self._accepts, self._cards[row][place])
            self._codes[place, row], self._costs[place, row] = code, cost
            self.cost, self.dearest, spent = self.cost + cost, max(self.dearest, cost), spent + cost
        return spent

    def codes(self, numbers: Ints, columns: Ints | slice) -> Codes:
        codes: Codes = self._codes[:, columns]
        return codes


def _ask(accepts: CardFilter, everything: Everything) -> tuple[int, int]:
    """The answer for a card that publishes all this, and its cost."""
    answers = [accepts.answer(published) for published in everything]
    cost = sum(answer.cost for answer in answers)
    if any(answer.accepts for answer in answers):
        return ACCEPTED, cost
    return TOO_COSTLY if any(answer.is_too_costly for answer in answers) else REFUSED, cost
