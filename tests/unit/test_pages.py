"""What the pages name is there: files and headings that they link to, modules, pages, commands with their options."""

from __future__ import annotations

import ast
import json
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click
import pytest

from tessera.cli import main

ROOT = Path(__file__).parents[2]
PAGES = [
    path
    for pattern in ("*.md", "docs/*.md", "docs/adr/*.md", "bench/*.md", "tests/fuzz/*.md")
    for path in sorted(ROOT.glob(pattern))
]
PACKAGES = [ROOT / "src/tessera", ROOT / "src/tessera_lab"]
_TOP = "|".join(path.name for place in (ROOT, *PACKAGES) for path in place.iterdir() if path.is_dir())
CODE = re.compile(rf"`((?:{_TOP}|[a-z0-9_]+(?=/[a-z0-9_/]+\.py))/(?:[a-zA-Z0-9_./-]+\.py|(?:[a-zA-Z0-9_.-]+/)*))`")
"""of what is quoted: modules in any folder, and folders inside those of the repository and of the packages"""
FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
CALL = re.compile(r"(?:^ *|\$ |`|kubectl )tessera ([a-z][^`|#&\n]*)", re.MULTILINE)
"""a call of the command: in a block or quoted in a sentence"""
MODULE = re.compile(r"\bpython -m ([a-z0-9_]+(?:\.[a-z0-9_]+)+)")
VERB = re.compile(r"(?:\$ |`)make ([a-z0-9]+)")

by_name = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


@cache
def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


@cache
def anchors(page: Path) -> frozenset[str]:
    """Of the headings, as GitHub and the site make them."""
    found: dict[str, int] = {}
    names = set()
    for heading in re.findall(r"^#+ (.+)$", FENCE.sub("", text_of(page)), re.MULTILINE):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        number = found.get(slug, 0)
        found[slug] = number + 1
        names.add(f"{slug}-{number}" if number else slug)
    return frozenset(names)


@by_name
def test_every_link_leads_to_a_file_and_to_a_heading_of_it(page: Path) -> None:
    wrong = []
    for target, heading in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)", FENCE.sub("", text_of(page))):
        if "://" in target:
            continue
        file = page.parent / target if target else page
        if not file.exists() or (heading and heading not in anchors(file)):
            wrong.append(f"{target}#{heading}")
    assert wrong == []


@by_name
def test_every_module_and_folder_that_a_page_names_exists(page: Path) -> None:
    """Names are relative to the repository or to a package; `<name>` is a placeholder."""
    named = set(CODE.findall(text_of(page)))
    assert sorted(name for name in named if not any((place / name).exists() for place in (ROOT, *PACKAGES))) == []


def test_every_page_that_a_file_names_exists() -> None:
    """In messages of commands, in the chart's comments, in docstrings."""
    found = subprocess.run(
        ["git", "grep", "-I", "--only-matching", "--extended-regexp", r"\bdocs/[a-z0-9/-]+\.md"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    lines = [line.partition(":") for line in found.stdout.splitlines()]
    assert len(lines) > 20
    assert [f"{file}: {page}" for file, _, page in lines if not (ROOT / page).is_file()] == []


@by_name
def test_blocks_of_json_and_python_can_be_read(page: Path) -> None:
    for _, language, text in FENCE.findall(text_of(page)):
        if language == "json":
            json.loads(text)
        elif language == "python":
            ast.parse(text)


def calls(page: Path) -> Iterator[list[str]]:
    for call in CALL.findall(text_of(page).replace("\\\n", " ")):
        yield call.replace("[", " ").replace("]", " ").split()


def command_of(words: list[str]) -> tuple[click.Command | None, list[str]]:
    """The command that is called and what follows; None if there is none of that name."""
    command: click.Command | None = main
    context = click.Context(main)
    while isinstance(command, click.Group) and words and re.fullmatch("[a-z-]+", words[0]):
        command, words = command.get_command(context, words[0]), words[1:]
    return command, words


@by_name
def test_every_command_and_option_that_a_page_shows_exists(page: Path) -> None:
    wrong = []
    for words in calls(page):
        command, rest = command_of(words)
        known = {"--help"} if command is None else {"--help", *options_of(command)}
        asked = {name for word in rest if (name := word.partition("=")[0].rstrip(".,;:)")).startswith("--")}
        if command is None or asked - known:
            wrong.append(" ".join(words))
    assert wrong == []


def options_of(command: click.Command) -> Iterator[str]:
    for each in command.params:
        yield from (*each.opts, *each.secondary_opts)


def test_calls_are_found_in_blocks_and_sentences() -> None:
    assert sum(1 for page in PAGES for _ in calls(page)) > 100


@by_name
def test_every_verb_and_module_that_a_page_runs_exists(page: Path) -> None:
    verbs = set(re.findall(r"^([a-z0-9]+):", text_of(ROOT / "Makefile"), re.MULTILINE))
    assert set(VERB.findall(text_of(page))) <= verbs
    for module in MODULE.findall(text_of(page)):
        places = [place / module.replace(".", "/") for place in (ROOT, ROOT / "src")]
        assert any(place.is_dir() or place.with_suffix(".py").is_file() for place in places), module
