from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import click
import pytest
from click.testing import CliRunner

from tessera import __version__
from tessera.cli import LazyCommand, LazyGroup, main, plugin, run_plugin


def group(lazy: Mapping[str, LazyCommand]) -> LazyGroup:
    return LazyGroup(name="tool", lazy=lazy)


@pytest.fixture
def shelf(monkeypatch: pytest.MonkeyPatch) -> str:
    """A module that holds one command, as one file of the package would."""

    @click.command(help="A longer text that only the command's own help shows.")
    def greet() -> None:
        click.echo("hello")

    monkeypatch.setitem(sys.modules, "a_shelf_of_commands", SimpleNamespace(greet=greet, number=7))
    return "a_shelf_of_commands"


def test_the_version_is_one_line_with_the_name() -> None:
    result = CliRunner().invoke(main, ["--version"])
    assert (result.exit_code, result.output) == (0, f"tessera {__version__}\n")


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_the_help_says_what_it_is_and_shows_examples(flag: str) -> None:
    result = CliRunner().invoke(main, [flag])
    assert result.exit_code == 0
    assert "Share GPUs" in result.output
    assert "Examples:\n" in result.output


def test_an_unknown_command_fails_and_is_named() -> None:
    result = CliRunner().invoke(main, ["no-such-command"])
    assert result.exit_code == 2
    assert "no-such-command" in result.output


def test_the_module_runs_as_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "tessera", "--version"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, f"tessera {__version__}\n"), done.stderr


def test_the_kubectl_plugin_has_the_commands_for_people_under_its_own_name() -> None:
    shown = CliRunner().invoke(plugin, ["--help"], prog_name="kubectl tessera").output
    assert "Usage: kubectl tessera [OPTIONS] COMMAND" in shown
    assert "  kubectl tessera explain POD" in shown
    for name, is_there in (("explain", True), ("top", True), ("scheduler", False), ("device-plugin", False)):
        assert (f"\n  {name} " in shown) is is_there
    for arguments in (["explain"], ["top"], ["doctor"], ["snapshot"], ["simulate", "pod"]):
        result = CliRunner().invoke(plugin, [*arguments, "--help"], prog_name="kubectl tessera")
        assert result.exit_code == 0, result.output
        assert f"Usage: kubectl tessera {' '.join(arguments)} [OPTIONS]" in result.output
        assert f"\n    kubectl tessera {arguments[0]}" in result.output
        assert "\n    tessera " not in result.output
        plain = CliRunner().invoke(main, [*arguments, "--help"], prog_name="tessera").output
        assert f"\n    tessera {arguments[0]}" in plain


def test_kubectl_finds_the_plugin_by_the_name_of_its_program(monkeypatch: pytest.MonkeyPatch) -> None:
    scripts = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts == {"tessera": "tessera.cli:main", "kubectl-tessera": "tessera.cli:run_plugin"}
    monkeypatch.setattr(sys, "argv", ["kubectl-tessera", "--help"])
    with pytest.raises(SystemExit, match="0"):
        run_plugin()


def test_a_list_of_commands_imports_none_of_them() -> None:
    tool = group({"lost": LazyCommand("no.such.module:command", "would fail if it were imported")})
    result = CliRunner().invoke(tool, ["--help"])
    assert result.exit_code == 0
    assert "would fail if it were imported" in result.output


def test_a_listed_command_runs_when_it_is_named(shelf: str) -> None:
    tool = group({"greet": LazyCommand(f"{shelf}:greet", "say hello")})
    assert CliRunner().invoke(tool, ["greet"]).output == "hello\n"


def test_a_list_entry_that_is_no_command_is_a_fault(shelf: str) -> None:
    tool = group({"seven": LazyCommand(f"{shelf}:number", "not a command")})
    with pytest.raises(TypeError, match="is not a command"):
        tool.get_command(click.Context(tool), "seven")


@pytest.mark.parametrize("flags", [[], ["--help"], ["--interval", "5m", "--dry-run"]])
def test_defrag_run_says_where_it_went(flags: list[str]) -> None:
    result = CliRunner().invoke(main, ["defrag", "run", *flags])
    assert result.exit_code == 2
    assert "tessera scheduler --defrag" in result.output
    assert len(result.output.splitlines()) == 1
