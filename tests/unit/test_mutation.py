"""The mutation tool itself: what it changes, and what it leaves alone."""

from __future__ import annotations

import ast
import sys
from types import ModuleType
from typing import Any

import pytest

from tools.mutation import GUARDED_BY, ROOT, SOURCES, Mutation, change, listed_as_equivalent, statements


def changes(source: str) -> list[str]:
    found = Mutation(source).found
    for mutant in found:
        ast.parse(mutant.source)
    return [mutant.what for mutant in found]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("f(b < c)", ["f(b < c) -> pass", "b < c -> (b <= c)"]),
        ("if b is None: a = c", ["b is None -> (b is not None)"]),
        ("if b and not c: a = d", ["b and not c -> ((b) or (not c))", "not c -> (c)"]),
        ("def f(a=b + 1): ...", ["b + 1 -> (b - 1)", "1 -> 2"]),
        ("if a:\n    b()", ["a -> not (a)", "b() -> pass"]),
        ("def f():\n    return a", ["a -> None"]),
        ("def f():\n    a.b = c", ["a.b = c -> pass"]),
        ("del a[b]", ["del a[b] -> pass"]),
        ("raise Error('x', 1)", ["raise Error('x', 1) -> pass"]),
        ("if max(b) < c: ...", ["max(b) < c -> (max(b) <= c)", "max -> min"]),
        ("if 'ä' == b: ...", ["'ä' == b -> ('ä' != b)"]),
    ],
)
def test_one_thing_is_changed_at_a_time(source: str, expected: list[str]) -> None:
    assert changes(source) == expected


@pytest.mark.parametrize(
    "source",
    [
        '"""About it."""',
        "LIMIT_S = 2.5",
        "a: int = b",
        "log.info('x', count=1)",
        "a = f'{1} of {b < c}'",
        "assert a < 1",
        "@dataclass(frozen=True)\nclass A:\n    a: int",
        "def __repr__(self):\n    return str(1)",
    ],
)
def test_what_only_people_and_type_checkers_read_is_left_alone(source: str) -> None:
    assert changes(source) == []


MODULE = """
from dataclasses import dataclass
from enum import Enum
from functools import cache, cached_property
from typing import NamedTuple

class Kind(Enum):
    ONE = 1
    def __init__(self, number):
        self.wide = number > 5

class Base:
    limit = 1
    def __init__(self):
        self.made = 1

class Derived(Base):
    def __init__(self):
        super().__init__()
    @property
    def one(self):
        return 1
    @cached_property
    def two(self):
        return 1
    @staticmethod
    def three():
        return 1

@dataclass(frozen=True, slots=True)
class Record:
    size: int = 1

class Row(NamedTuple):
    length: int = 1

@cache
def known():
    return 1

def plain(number=1, *, other=1, kind=Kind.ONE):
    return number + other + (kind is Kind.ONE)
"""


@pytest.mark.parametrize(
    ("old", "new", "seen"),
    [
        ("number > 5", "number >= 1", lambda found: found["Kind"].ONE.wide),
        ("limit = 1", "limit = 2", lambda found: found["Derived"].limit == 2),
        ("self.made = 1", "self.made = 2", lambda found: found["Derived"]().made == 2),
        ("super().__init__()", "pass", lambda found: not hasattr(found["Derived"](), "made")),
        ("def one(self):\n        return 1", "def one(self): return 2", lambda found: found["Derived"]().one == 2),
        ("def two(self):\n        return 1", "def two(self): return 2", lambda found: found["Derived"]().two == 2),
        ("def three():\n        return 1", "def three(): return 2", lambda found: found["Derived"].three() == 2),
        ("size: int = 1", "size: int = 2", lambda found: found["Record"]().size == 2),
        ("length: int = 1", "length: int = 2", lambda found: found["Row"]().length == 2),
        ("def known():\n    return 1", "def known():\n    return 2", lambda found: found["known"]() == 2),
        ("number=1", "number=2", lambda found: found["plain"]() == 4),
        ("other=1", "other=2", lambda found: found["plain"]() == 4),
        ("number + other", "number - other", lambda found: found["plain"]() == 1),
    ],
)
def test_what_was_imported_from_a_module_changes_with_it(
    old: str, new: str, seen: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType("changed_module")
    module.__file__ = "changed_module.py"
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(MODULE, vars(module))
    imported = dict(vars(module))
    assert imported["known"]() == 1
    change(module, MODULE)
    assert not seen(imported)
    assert MODULE.count(old) == 1
    change(module, MODULE.replace(old, new))
    assert seen(imported)


def test_a_line_belongs_to_its_statement_and_the_head_of_a_function_to_all_of_it() -> None:
    source = "a = 1\nclass A:\n b = 2\n def c(\n  self, d=1\n ):\n  if (d and\n   a):\n   return (\n    d)\n"
    whole, head, result = range(4, 11), range(7, 9), range(9, 11)
    assert statements(source) == {4: whole, 5: whole, 6: whole, 7: head, 8: head, 9: result, 10: result}


def test_every_module_and_every_test_of_the_table_is_there() -> None:
    for name, tests in GUARDED_BY.items():
        assert (SOURCES / f"{name}.py").is_file()
        assert all((ROOT / "tests" / each).exists() for each in tests)


def test_every_equivalent_change_still_exists_and_has_a_reason() -> None:
    for (module, what), reason in listed_as_equivalent().items():
        assert reason
        assert what in {str(each) for each in Mutation((SOURCES / f"{module}.py").read_text(encoding="utf-8")).found}
