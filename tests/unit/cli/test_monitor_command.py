"""The command `tessera monitor`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import structlog
from click.testing import CliRunner, Result

from tessera.cli import main
from tessera.cli import monitor as module
from tessera.monitor.settings import TABLE, MonitorSettings


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[MonitorSettings]]:
    """What the service is started with; it ends with code 3."""
    settings: list[MonitorSettings] = []

    def run(given: MonitorSettings) -> int:
        settings.append(given)
        return 3

    monkeypatch.setitem(sys.modules, module.SERVICE, SimpleNamespace(run=run))
    for variable in {name for row in TABLE for name in row.env}:
        monkeypatch.delenv(variable, raising=False)
    yield settings
    structlog.reset_defaults()


def monitor(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["monitor", *arguments])


def test_it_runs_with_its_settings_and_ends_with_the_services_code(told: list[MonitorSettings]) -> None:
    result = monitor("--node-name=n1", "--hook-path=/x", "--legacy-metrics", "-v=4")
    assert result.exit_code == 3
    assert [(each.node_name, each.legacy_metrics) for each in told] == [("n1", True)]


def test_missing_variables_end_it_with_one_message_and_code_2(told: list[MonitorSettings]) -> None:
    result = monitor()
    assert result.exit_code == 2
    assert "NODE_NAME" in result.output
    assert "HOOK_PATH" in result.output
    assert not told


def test_help_names_every_flag(told: list[MonitorSettings]) -> None:
    output = monitor("--help").output
    for row in TABLE:
        assert f"--{row.flag}" in output
