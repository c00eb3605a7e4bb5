"""Purity of the core, as far as import-linter's contracts in pyproject.toml cannot say it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import tessera.core

CORE = Path(tessera.core.__file__).parent

ALLOWED = frozenset(
    {
        "__future__",
        "abc",
        "bisect",
        "collections",
        "contextlib",
        "copy",
        "dataclasses",
        "enum",
        "fractions",
        "functools",
        "heapq",
        "itertools",
        "math",
        "numpy",
        "operator",
        "re",
        "string",
        "tessera",
        "types",
        "typing",
        "weakref",
    }
)
"""a short list of what may be used says more than a long list of what may not"""

IMPURE_CALLS = frozenset({"open", "print", "input", "exec", "eval", "__import__", "breakpoint"})


def imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield "." * node.level + (node.module or "")


def called(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield node.func.id


@pytest.mark.parametrize("path", sorted(CORE.rglob("*.py")), ids=lambda path: str(path.relative_to(CORE)))
def test_a_module_of_the_core_is_pure(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    strangers = {name for name in imported(tree) if name.split(".")[0] not in ALLOWED}
    ours = {name for name in imported(tree) if name.split(".")[0] == "tessera"}
    assert not strangers
    assert all(name == "tessera.core" or name.startswith("tessera.core.") for name in ours)
    assert not IMPURE_CALLS & set(called(tree))
