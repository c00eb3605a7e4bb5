"""Annotations of pods whose values are a closed set of words, and what is wrong with any other value.

HAMi reads most unknown words as if the annotation were not there; such a value has no effect and the pod is warned
about it. A value that no card can ever match is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

from tessera.core.model.requests import MAX_ANNOTATION
from tessera.vendors import spelling
from tessera.wire.errors import quoted
from tessera.wire.golang import parse_bool

MAX_WORDS = 64
"""of one annotation that are looked at"""


@dataclass(frozen=True, slots=True)
class ValueProblem:
    """Why an annotation's value is not what its author means."""

    text: str
    is_refused: bool


def one_word(text: str) -> Sequence[str]:
    return (text,) if text else ()


def comma_list(text: str) -> Sequence[str]:
    """As HAMi reads lists: blanks do not count beside a comma, but they do where there is none."""
    return [part for each in text.split(",") if (part := each.strip())] if "," in text else one_word(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The words that one annotation may hold."""

    key: str
    words: tuple[str, ...]
    """what is advised"""
    accepts: Callable[[str], bool] | None = None
    """whether a word has its effect; None = only `words` have one"""
    split: Callable[[str], Iterable[str]] = one_word
    is_required: bool = False
    """a value of which no word is accepted can never be honoured"""

    def find_problem(self, text: str) -> ValueProblem | None:
        accepts = self.accepts or self.words.__contains__
        parts = list(islice(self.split(text[:MAX_ANNOTATION]), MAX_WORDS))
        unknown = [part for part in parts if not accepts(part)]
        if self.is_required and len(unknown) == len(parts):
            return ValueProblem(
                f"annotation {self.key}: {quoted(text)} cannot be honoured: {self._advice(text.strip())}", True
            )
        if not unknown:
            return None
        word = unknown[0]
        return ValueProblem(f"annotation {self.key}: {quoted(word)} has no effect: {self._advice(word)}", False)

    def _advice(self, word: str) -> str:
        meant = spelling.nearest(word.strip(), self.words)
        if meant is not None:
            return f"write {quoted(meant)}"
        *others, last = (quoted(each) for each in self.words)
        return f"write {', '.join(others)} or {last}" if others else f"only {last} has one"


def switch(key: str) -> Choice:
    """An annotation that is read as Go reads a bool."""
    return Choice(key=key, words=("true", "false"), accepts=lambda word: parse_bool(word) is not None)
