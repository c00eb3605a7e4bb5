"""The command `tessera mps-daemons`."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import structlog
from click.testing import CliRunner

from tessera.cli import main
from tessera.cli import mps_daemons as module


def test_it_runs_in_the_directory_of_pipes_and_ends_with_the_services_code(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Path] = []

    def run(root: Path, _environ: object) -> int:
        told.append(root)
        return 3

    monkeypatch.setitem(sys.modules, module.SERVICE, SimpleNamespace(run=run))
    try:
        assert CliRunner().invoke(main, ["mps-daemons", "--mps-dir=/x"]).exit_code == 3
    finally:
        structlog.reset_defaults()
    assert told == [Path("/x")]


def test_a_wrong_directory_ends_it_with_one_message_and_code_2() -> None:
    result = CliRunner().invoke(main, ["mps-daemons", "--mps-dir=x"])
    assert (result.exit_code, "--mps-dir" in result.output) == (2, True)
