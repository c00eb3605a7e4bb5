"""The mutation tool itself: what it changes, and what it leaves alone."""

from __future__ import annotations

import ast

import pytest

from tools.mutation import GUARDED_BY, ROOT, SOURCES, Mutation, listed_as_equivalent


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


def test_every_module_and_every_test_of_the_table_is_there() -> None:
    for name, tests in GUARDED_BY.items():
        assert (SOURCES / f"{name}.py").is_file()
        assert all((ROOT / "tests" / each).exists() for each in tests)


def test_every_equivalent_change_still_exists_and_has_a_reason() -> None:
    for (module, what), reason in listed_as_equivalent().items():
        assert reason
        assert what in {str(each) for each in Mutation((SOURCES / f"{module}.py").read_text(encoding="utf-8")).found}
