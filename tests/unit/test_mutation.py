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
        ("a = b < c", ["b < c -> (b <= c)"]),
        ("a = b is None", ["b is None -> (b is not None)"]),
        ("a = b and not c", ["b and not c -> ((b) or (not c))", "not c -> (c)"]),
        ("a = b + 1", ["b + 1 -> (b - 1)", "1 -> 2"]),
        ("if a:\n    b()", ["a -> not (a)", "b() -> pass"]),
        ("def f():\n    return a", ["a -> None"]),
        ("a.b = c", ["a.b = c -> pass"]),
        ("del a[b]", ["del a[b] -> pass"]),
        ("raise Error('x', 1)", ["raise Error('x', 1) -> pass"]),
        ("a = max(b)", ["max -> min"]),
        ("a = 'ä' == b", ["'ä' == b -> ('ä' != b)"]),
    ],
)
def test_one_thing_is_changed_at_a_time(source: str, expected: list[str]) -> None:
    assert changes(source) == expected


@pytest.mark.parametrize(
    "source",
    [
        '"""About it."""',
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
        assert what in {each.what for each in Mutation((SOURCES / f"{module}.py").read_text(encoding="utf-8")).found}
