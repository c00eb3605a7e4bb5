from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import structlog
import yaml
from click.testing import CliRunner, Result

from tessera import __version__
from tessera.cli import device_plugin as module
from tessera.cli import main
from tessera.node.settings import TABLE, Configuration


class Service:
    """Stands in for the agent; remembers what it was told."""

    def __init__(self, code: int = 0) -> None:
        self.code = code
        self.told: list[Configuration] = []

    def run(self, configuration: Configuration, reload: Callable[[], Configuration]) -> int:
        self.told.append(configuration)
        self.reload = reload
        return self.code


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    stand_in = Service()
    monkeypatch.setitem(sys.modules, module.SERVICE, SimpleNamespace(run=stand_in.run))
    for variable in {name for row in TABLE for name in row.env}:
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("NODE_NAME", "n1")
    yield stand_in
    structlog.reset_defaults()


def agent(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["device-plugin", *arguments])


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, ...]:
    """Flags that keep the test away from the machine's own files."""
    (tmp_path / "device-config.yaml").write_text("nvidia: {deviceSplitCount: 4}\n")
    return (
        f"--config-file={tmp_path / 'device-config.yaml'}",
        f"--node-config-file={tmp_path / 'config.json'}",
        f"--state-dir={tmp_path}",
    )


def test_the_agent_runs_with_what_flags_environment_and_files_say(
    service: Service, files: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.json").write_text('{"nodeconfig": [{"name": "n1", "operatingmode": "mps"}]}')
    monkeypatch.setenv("HOOK_PATH", "/opt")
    service.code = 3
    result = agent(*files, "--pass-device-specs", "--device-list-strategy=envvar", "--device-list-strategy", "cdi-cri")
    assert (result.exit_code, result.stdout) == (3, "")
    (told,) = service.told
    assert (told.settings.node.mode, told.settings.node.split_count) == ("mps", 4)
    assert (str(told.settings.paths.hook), told.settings.pass_device_specs) == ("/opt", True)
    assert {each.value for each in told.settings.strategies} == {"envvar", "cdi-cri"}


def test_files_are_read_again_with_the_same_flags(service: Service, files: tuple[str, ...], tmp_path: Path) -> None:
    assert agent(*files, "--gds-enabled").exit_code == 0
    (tmp_path / "device-config.yaml").write_text("nvidia: {deviceSplitCount: 5}\n")
    again = service.reload()
    assert (again.settings.node.split_count, again.settings.gds) == (5, True)
    (tmp_path / "device-config.yaml").write_text("nvidia: 3\n")
    with pytest.raises(ValueError, match="expected a table"):
        service.reload()


def test_it_starts_as_hamis_chart_starts_its_plugin(service: Service, files: tuple[str, ...]) -> None:
    result = agent(*files, "--mig-strategy=none", "--disable-core-limit=false", "-v=4")
    assert result.exit_code == 0
    assert len(service.told) == 1


def test_every_flag_and_alias_of_hamis_plugin_is_accepted(service: Service, files: tuple[str, ...]) -> None:
    arguments = [
        "--mig-strategy=none",
        "--fail-on-init-error=true",
        "--nvidia-driver-root=/",
        "--dev-root=/",
        "--nvidia-dev-root=/",
        "--driver-root-ctr-path=/driver-root",
        "--container-driver-root=/driver-root",
        "--pass-device-specs=false",
        "--device-list-strategy=envvar",
        "--device-id-strategy=uuid",
        "--cdi-annotation-prefix=cdi.k8s.io/",
        "--nvidia-cdi-hook-path=/usr/bin/nvidia-ctk",
        "--nvidia-ctk-path=/usr/bin/nvidia-ctk",
        "--gdrcopy-enabled=false",
        "--gds-enabled=false",
        "--mofed-enabled=false",
        "--kubelet-socket=/k.sock",
        "--device-discovery-strategy=auto",
        "--imex-channel-ids=0",
        "--imex-required=false",
        "-v=4",
        "--node-name=n1",
        "--device-split-count=2",
        "--device-memory-scaling=1.0",
        "--device-cores-scaling=1.0",
        "--disable-core-limit=false",
        "--resource-name=nvidia.com/gpu",
    ]
    assert agent(*files, *arguments).exit_code == 0
    assert service.told[0].settings.node.split_count == 4


def test_one_line_at_start_says_what_is_not_the_default(service: Service, files: tuple[str, ...]) -> None:
    result = agent(*files, "--metrics-bind=none", "--imex-required")
    (line,) = result.stderr.splitlines()
    event = json.loads(line)
    assert (event["message"], event["ignored"]) == ("starting", ["--imex-required"])
    settings = event["settings"]
    assert (settings["devicesplitcount"], settings["metrics-bind-address"], settings["node-name"]) == (4, "none", "n1")


def test_a_bad_configuration_is_one_message_and_nothing_is_started(service: Service, tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("nvidia: {deviceSplitCount: many}\n")
    result = agent("--config-file", str(tmp_path / "bad.yaml"), "--hook-path=x", "--inventory", "perhaps")
    assert (result.exit_code, service.told, result.stdout) == (2, [], "")
    first, *rest = result.stderr.splitlines()
    assert first == "Error: the configuration cannot be used"
    assert len(rest) == 3
    assert all(line.startswith("  ") for line in rest)


def test_a_broken_node_file_does_not_stop_the_agent_but_fails_a_check(
    service: Service, files: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text("{")
    assert agent(*files).exit_code == 0
    assert len(service.told) == 1
    result = agent(*files, "--print-config")
    assert result.exit_code == 2
    assert "config.json" in result.stderr
    assert yaml.safe_load(result.stdout)["nodeconfig"][0]["operatingmode"] == "hami-core"


def test_the_configuration_can_be_printed_instead_of_used(service: Service, files: tuple[str, ...]) -> None:
    result = agent(*files, "--print-config", "--mofed-enabled")
    assert (result.exit_code, service.told) == (0, [])
    assert yaml.safe_load(result.stdout)["device-plugin"]["mofed-enabled"] is True
    assert all(line.startswith("Warning: ") for line in result.stderr.splitlines())


def test_an_unknown_flag_is_answered_with_the_nearest(service: Service) -> None:
    result = agent("--hook-pth=/x")
    assert (result.exit_code, service.told) == (2, [])
    assert "--hook-path" in result.stderr


def test_the_version_is_one_line(service: Service) -> None:
    result = agent("--version")
    assert (result.exit_code, result.output) == (0, f"tessera device-plugin {__version__}\n")


def test_the_help_has_headings_examples_and_every_flag() -> None:
    text = agent("--help").output
    for row in TABLE:
        assert f"\n{row.group.value}:\n" in text
        assert f"--{row.flag}" in text
        assert all(variable in text for variable in row.env)
    assert "Examples:\n" in text


def test_the_help_needs_nothing_of_the_service() -> None:
    code = """
import sys
from tessera.cli import main
try:
    main(["device-plugin", "--help"])
finally:
    heavy = {"numpy", "msgspec", "aiohttp", "structlog", "yaml", "grpc", "pynvml"} & set(sys.modules)
    print("heavy:", sorted(heavy))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.endswith("heavy: []\n"), done.stderr
