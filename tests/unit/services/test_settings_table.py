"""Tables of settings: precedence, errors, and complete rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pytest

from tessera.monitor.settings import TABLE as MONITOR
from tessera.node.settings import TABLE as DEVICE_PLUGIN
from tessera.scheduler.settings import TABLE as SCHEDULER
from tessera.services.settings_table import (
    MAX_PROBLEMS,
    FileText,
    Flags,
    Group,
    Setting,
    SettingsError,
    Sources,
    describe,
    nested,
    rows_of,
    setting,
    shared,
)
from tessera.services.value_types import AMOUNT, DURATION, FILE, LABELS, SWITCH, TEXT, FlagKind

ROWS = {row.flag: row for row in (*SCHEDULER, *DEVICE_PLUGIN, *MONITOR)}


@dataclass(frozen=True, slots=True)
class Inner:
    amount: int = setting(Group.CARDS, "amount", AMOUNT, 3, "How many.", env=("AMOUNT", "OLD_AMOUNT"))
    wait: float = setting(Group.CARDS, "wait", DURATION, 60.0, "How long.", env=("WAIT",), env_warns=True)


@dataclass(frozen=True, slots=True)
class Outer:
    inner: Inner = nested(Inner)
    is_on: bool = setting(
        Group.OPERATION,
        "on",
        SWITCH,
        False,
        "Whether.",
        env=("ON",),
        parse_env=lambda text: text == "yes",
        aliases=("switched-on",),
    )
    labels: Mapping[str, str] = setting(Group.OPERATION, "labels", LABELS, {}, "Which.", default_text="all")
    file: str = setting(Group.FILES, "file", FILE, "", "Where.", needed="write one", expands_home=True)
    computed: int = 0


@dataclass(frozen=True, slots=True)
class Other:
    amount: int = shared(Inner, "amount")


def load(flags: Flags, environ: Mapping[str, str] | None = None, **from_file: str) -> tuple[Outer, Sources]:
    written = {flag: FileText(text, f"f.yaml:1: {flag}") for flag, text in from_file.items()}
    sources = Sources({"file": "/f", **flags}, environ or {}, written)
    return sources.load(Outer), sources


@pytest.mark.parametrize(
    ("flags", "environ", "from_file", "amount"),
    [
        ({}, {}, {}, 3),
        ({}, {}, {"amount": "4"}, 4),
        ({}, {"OLD_AMOUNT": "5"}, {"amount": "4"}, 5),
        ({}, {"AMOUNT": "6", "OLD_AMOUNT": "5"}, {"amount": "4"}, 6),
        ({}, {"AMOUNT": "", "OLD_AMOUNT": "5"}, {}, 5),
        ({"amount": "7"}, {"AMOUNT": "6"}, {"amount": "4"}, 7),
        ({"amount": "7"}, {"AMOUNT": "nonsense"}, {}, 7),
    ],
)
def test_a_flag_wins_over_its_variables_which_win_over_the_file(
    flags: Flags, environ: dict[str, str], from_file: dict[str, str], amount: int
) -> None:
    found, sources = load(flags, environ, **from_file)
    assert found.inner.amount == amount
    sources.check()


def test_what_cannot_be_read_is_a_problem_that_names_its_source_and_the_default_holds() -> None:
    found, sources = load({"on": "perhaps"}, {"AMOUNT": "x"}, labels="?")
    assert found == Outer(file="/f")
    with pytest.raises(SettingsError) as caught:
        sources.check()
    assert [text.partition(" expected")[0] for text in caught.value.problems] == [
        "AMOUNT:",
        "--on:",
        "f.yaml:1: labels:",
    ]


def test_a_lenient_variable_is_only_a_warning() -> None:
    found, sources = load({}, {"WAIT": "soon"})
    assert found.inner.wait == 60.0
    assert sources.problems == []
    assert sources.warnings[0].endswith("; 1m holds")
    _, sources = load({"wait": "soon"}, {})
    assert len(sources.problems) == 1


def test_a_variable_may_be_read_in_its_own_way() -> None:
    assert load({}, {"ON": "yes"})[0].is_on
    assert not load({}, {"ON": "true"})[0].is_on


def test_what_is_needed_and_not_given_is_a_problem() -> None:
    sources = Sources({}, {})
    sources.load(Outer)
    assert sources.problems == ["--file: is needed; write one"]


@pytest.mark.parametrize(
    ("path", "home", "found"),
    [("~/k", "/home/x", "/home/x/k"), ("~", "/home/x", "/home/x"), ("~/k", "", "~/k"), ("~y/k", "/home/x", "~y/k")],
)
def test_the_home_directory_is_filled_in_where_no_shell_did(path: str, home: str, found: str) -> None:
    assert load({"file": path}, {"HOME": home})[0].file == found


def test_fields_that_are_known_already_are_not_read() -> None:
    sources = Sources({"amount": "x"}, {})
    found = sources.load(Outer, inner=Inner(9), file="/f", computed=2)
    assert (found.inner.amount, found.computed, sources.problems) == (9, 2, [])


def test_a_table_is_described_by_its_flags() -> None:
    found = describe(Outer(inner=Inner(4, 90.0), labels={"b": "c", "a": ""}))
    assert found == {"amount": 4, "wait": "1m30s", "on": False, "labels": "a=,b=c", "file": ""}
    assert tuple(found) == tuple(row.flag for row in rows_of(Outer))


def test_two_tables_can_share_a_row() -> None:
    assert rows_of(Other)[0] is rows_of(Inner)[0]
    assert Sources({}, {"AMOUNT": "8"}).load(Other) == Other(amount=8)


@pytest.mark.parametrize(
    ("row", "text"),
    [
        (rows_of(Inner)[0], "How many. Default: 3. [AMOUNT, OLD_AMOUNT]"),
        (rows_of(Outer)[2], "Whether. Default: false. [ON]"),
        (rows_of(Outer)[3], "Which. Default: all."),
        (rows_of(Outer)[4], "Where. Needed."),
        (Setting("x", TEXT, None, Group.FILES, "Which."), "Which."),
    ],
)
def test_the_help_says_default_and_variables(row: Setting, text: str) -> None:
    assert row.help_text == text


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_every_row_has_a_help_and_a_default_that_its_flag_can_say(row: Setting) -> None:
    assert row.help.endswith(".")
    if row.default is not None and not row.needed:
        shown = row.type.show(row.default)
        if row.type.kind is not FlagKind.SET and row.group is not Group.IGNORED:
            text = str(shown).lower() if isinstance(shown, bool) else str(shown)
            assert row.type.parse(text) == row.default


def test_a_message_does_not_grow_without_bound() -> None:
    lines = str(SettingsError(f"problem {i}" for i in range(MAX_PROBLEMS + 7))).splitlines()
    assert (lines[-1], len(lines)) == ("and 7 more problems", MAX_PROBLEMS + 1)
