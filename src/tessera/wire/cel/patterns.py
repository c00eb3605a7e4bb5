"""Regular expressions of `matches()`, searched in time that grows with text times pattern, whatever the pattern is.

Python's own `re` tries alternatives one after another, and a pattern can make that take years. Here all are followed at
once, as RE2 does, which is what an apiserver uses. The syntax is its usual part; the rest is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from tessera.wire.cel.costs import LETTER, PATTERN_CHARACTER, PATTERN_STATE, STATE, Meter

MAX_STATES = 1000
MAX_REPEATS = 100
MAX_NESTING = 16

Accepts = Callable[[str], bool]

_CLASSES: dict[str, Accepts] = {
    "d": lambda letter: letter.isascii() and letter.isdigit(),
    "w": lambda letter: letter.isascii() and (letter.isalnum() or letter == "_"),
    "s": lambda letter: letter in " \t\n\f\r",
}
_CONTROLS = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "a": "\a"}
_SIGNS: tuple[tuple[str, int, int | None], ...] = (("*", 0, None), ("+", 1, None), ("?", 0, 1))
_LIMITS = re.compile(r"\{([0-9]{1,4})(,([0-9]{1,4})?)?\}")


class BadPattern(Exception):
    """A pattern that is wrong or outside the part that is served."""


@dataclass(frozen=True, slots=True)
class _Letter:
    accepts: Accepts
    weight: int = 1
    """comparisons that it takes, at most"""


@dataclass(frozen=True, slots=True)
class _Anchor:
    sign: str


@dataclass(frozen=True, slots=True)
class _Sequence:
    parts: tuple[_Tree, ...]


@dataclass(frozen=True, slots=True)
class _Choice:
    parts: tuple[_Tree, ...]


@dataclass(frozen=True, slots=True)
class _Repeat:
    part: _Tree
    least: int
    most: int | None


_Tree = _Letter | _Anchor | _Sequence | _Choice | _Repeat


@dataclass(slots=True, eq=False)
class _State:
    accepts: Accepts | None = None
    """consumes one letter; None: none"""
    cost: int = STATE
    """of being there: of the comparison with a letter, and of following what comes next"""
    anchor: str = ""
    """goes on at the start (`^`) or at the end (`$`) only"""
    then: list[_State] = field(default_factory=list)


class Pattern:
    """A compiled pattern."""

    def __init__(self, tree: _Tree, meter: Meter) -> None:
        self._states = 0
        self._end = self._state(meter)
        self._start = self._build(tree, self._end, meter)

    def is_in(self, text: str, meter: Meter) -> bool:
        """Whether some part of the text matches. Each letter and each state that the search enters are charged, and no
        cache changes that."""
        size, end = len(text), self._end
        now: list[_State] = []
        """states that wait for the letter at `place`"""
        for place in range(size + 1):
            meter.spend(LETTER)
            waiting = [self._start, *now]
            seen: set[_State] = set()
            now = []
            while waiting:
                each = waiting.pop()
                meter.spend(each.cost)
                if each in seen or (each.anchor == "^" and place) or (each.anchor == "$" and place < size):
                    continue
                if each is end:
                    return True
                seen.add(each)
                if each.accepts is None:
                    waiting += each.then
                elif place < size and each.accepts(text[place]):
                    now += each.then
        return False

    def _state(
        self, meter: Meter, *then: _State, accepts: Accepts | None = None, weight: int = 0, anchor: str = ""
    ) -> _State:
        self._states += 1
        meter.spend(PATTERN_STATE)
        if self._states > MAX_STATES:
            raise BadPattern("it is too large")
        return _State(accepts, STATE * (1 + weight), anchor, list(then))

    def _build(self, tree: _Tree, end: _State, meter: Meter) -> _State:
        """The state from which a part leads to `end`."""
        match tree:
            case _Letter(accepts, weight):
                return self._state(meter, end, accepts=accepts, weight=weight)
            case _Anchor(sign):
                return self._state(meter, end, anchor=sign)
            case _Sequence(parts):
                for part in reversed(parts):
                    end = self._build(part, end, meter)
                return end
            case _Choice(parts):
                return self._state(meter, *(self._build(part, end, meter) for part in parts))
            case _Repeat(part, least, most):
                if most is None:
                    loop = self._state(meter, end)
                    loop.then.append(self._build(part, loop, meter))
                    start = loop
                else:
                    start = end
                    for _ in range(most - least):
                        start = self._state(meter, self._build(part, start, meter), end)
                for _ in range(least):
                    start = self._build(part, start, meter)
                return start


def compile_pattern(text: str, meter: Meter) -> Pattern:
    """Raises BadPattern."""
    meter.spend(PATTERN_CHARACTER * (1 + len(text)))
    return Pattern(_Reader(text).read(), meter)


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._place = 0
        self._nesting = 0
        self._ignores_case = self._accept("(?i)")

    def read(self) -> _Tree:
        """The tree of the whole pattern."""
        found = self._choice()
        if not self._at_end:
            raise BadPattern("a bracket is closed that was not opened")
        return found

    @property
    def _at_end(self) -> bool:
        return self._place >= len(self._text)

    def _take(self) -> str:
        if self._at_end:
            raise BadPattern("it ends too early")
        self._place += 1
        return self._text[self._place - 1]

    def _accept(self, sign: str) -> bool:
        if self._text.startswith(sign, self._place):
            self._place += len(sign)
            return True
        return False

    def _choice(self) -> _Tree:
        self._nesting += 1
        if self._nesting > MAX_NESTING:
            raise BadPattern("it is nested too deeply")
        parts = [self._sequence()]
        while self._accept("|"):
            parts.append(self._sequence())
        self._nesting -= 1
        return parts[0] if len(parts) == 1 else _Choice(tuple(parts))

    def _sequence(self) -> _Tree:
        parts: list[_Tree] = []
        while not self._at_end and self._text[self._place] not in "|)":
            parts.append(self._repeated(self._atom()))
        return _Sequence(tuple(parts))

    def _repeated(self, part: _Tree) -> _Tree:
        limits = self._limits()
        if limits is None:
            return part
        self._accept("?")  # The shortest match, or the longest: it matches all the same.
        if not self._at_end and (self._text[self._place] in "*+?" or _LIMITS.match(self._text, self._place)):
            raise BadPattern("two repetitions follow one another")
        if isinstance(part, _Anchor):
            raise BadPattern("an anchor is repeated")
        return _Repeat(part, *limits)

    def _limits(self) -> tuple[int, int | None] | None:
        """How often the part before is repeated, at least and at most; None: once."""
        for sign, least, most in _SIGNS:
            if self._accept(sign):
                return least, most
        found = _LIMITS.match(self._text, self._place)
        if found is None:
            return None
        self._place = found.end()
        least = int(found[1])
        most = least if found[2] is None else int(found[3]) if found[3] else None
        if max(least, most or 0) > MAX_REPEATS or (most is not None and most < least):
            raise BadPattern(f"the repetition {found[0]}")
        return least, most

    def _atom(self) -> _Tree:
        letter = self._take()
        if letter in "^$":
            return _Anchor(letter)
        if letter == "(":
            if self._accept("?") and not self._accept(":"):
                raise BadPattern("groups with flags or names")
            part = self._choice()
            if not self._accept(")"):
                raise BadPattern("a bracket is not closed")
            return part
        if letter == "[":
            return self._class()
        if letter == ".":
            return _Letter(lambda found: found != "\n")
        if letter == "\\":
            return _Letter(self._escape())
        if letter in "*+?":
            raise BadPattern("nothing is repeated")
        return _Letter(self._same(letter))

    def _same(self, letter: str) -> Accepts:
        if self._ignores_case:
            small = letter.lower()
            return lambda found: found.lower() == small
        return lambda found: found == letter

    def _escape(self) -> Accepts:
        letter = self._take()
        named = _CLASSES.get(letter.lower())
        if named is not None:
            return named if letter.islower() else lambda found: not named(found)
        return self._same(_escaped(letter))

    def _class(self) -> _Tree:
        is_negated = self._accept("^")
        letters: set[str] = set()
        others: list[Accepts] = []
        while not (letters or others) or not self._accept("]"):
            letter = self._take()
            if letter == "[" and self._accept(":"):
                raise BadPattern("classes by name")
            if letter == "\\":
                following = self._text[self._place : self._place + 1]
                if following.lower() in _CLASSES:
                    others.append(self._escape())
                    continue
                letter = _escaped(self._take())
            if (
                self._text[self._place : self._place + 1] == "-"
                and self._text[self._place + 1 : self._place + 2] != "]"
            ):
                self._place += 1
                last = self._take()
                last = _escaped(self._take()) if last == "\\" else last
                if last < letter:
                    raise BadPattern(f"the range {letter}-{last}")
                others.append(self._range(letter, last))
            else:
                letters.add(letter.lower() if self._ignores_case else letter)
        ignores_case = self._ignores_case

        def accepts(found: str) -> bool:
            is_member = (found.lower() if ignores_case else found) in letters
            return (is_member or any(other(found) for other in others)) != is_negated

        return _Letter(accepts, 2 + len(others))

    def _range(self, first: str, last: str) -> Accepts:
        if self._ignores_case:
            return lambda found: first <= found.lower() <= last or first <= found.upper() <= last
        return lambda found: first <= found <= last


def _escaped(letter: str) -> str:
    if letter in _CONTROLS:
        return _CONTROLS[letter]
    if letter.isascii() and not letter.isalnum():
        return letter
    raise BadPattern(f"the escape \\{letter}")
