"""The commands that start services: flags as Go and klog write them, one message for all mistakes, help, and reload."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import structlog
import yaml
from click.testing import CliRunner, Result

from tessera import __version__
from tessera.cli import device_plugin, main, monitor, scheduler
from tessera.monitor.settings import TABLE as MONITOR
from tessera.node.settings import TABLE as AGENT
from tessera.scheduler.settings import TABLE as SCHEDULER
from tessera.services.settings_table import Group, Setting

VARIABLES = {name for row in (*SCHEDULER, *AGENT, *MONITOR) for name in row.env} | {"POD_NAME", "HOSTNAME"}
TABLES = {"scheduler": SCHEDULER, "device-plugin": AGENT, "monitor": MONITOR}
every_table = pytest.mark.parametrize(("name", "table"), TABLES.items(), ids=list(TABLES))


@dataclass
class Service:
    """Stands in for a service; remembers what it was told, and ends with this code."""

    command: str
    usual: tuple[str, ...] = ()
    code: int = 0
    told: list[Any] = field(default_factory=list)
    reload: Callable[[], Any] = lambda: None

    def run(self, settings: Any, *more: Any) -> int:
        self.told.append(settings)
        self.reload = more[0] if more else self.reload
        return self.code

    def start(self, *arguments: str) -> Result:
        return CliRunner().invoke(main, [self.command, *self.usual, *arguments])


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Service]]:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)

    def make(command: str, service: str, *usual: str) -> Service:
        made = Service(command, usual)
        monkeypatch.setitem(sys.modules, service, SimpleNamespace(run=made.run))
        return made

    yield make
    structlog.reset_defaults()


@pytest.fixture
def placing(stand_in: Callable[..., Service]) -> Service:
    return stand_in("scheduler", scheduler.SERVICE)


@pytest.fixture
def agent(stand_in: Callable[..., Service], tmp_path: Path) -> Service:
    """With files of the test's own, not the machine's."""
    (tmp_path / "device-config.yaml").write_text("nvidia: {deviceSplitCount: 4}\n")
    files = [f"--config-file={tmp_path}/device-config.yaml", f"--node-config-file={tmp_path}/config.json"]
    return stand_in("device-plugin", device_plugin.SERVICE, "--node-name=n1", f"--state-dir={tmp_path}", *files)


@pytest.fixture(params=["scheduler", "device-plugin"])
def service(request: pytest.FixtureRequest) -> Service:
    found: Service = request.getfixturevalue({"scheduler": "placing", "device-plugin": "agent"}[request.param])
    return found


# -- what a service is told


def test_the_scheduler_runs_with_what_flags_environment_and_file_say(
    placing: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "device-config.yaml"
    file.write_text("nvidia: {resourceCountName: nvidia.com/gpu}\n")
    monkeypatch.setenv("HAMI_NODELOCK_EXPIRE", "2m")
    placing.code = 3
    result = placing.start("--device-config-file", str(file), "--metrics-bind", "none", "--trusted-user=a")
    assert (result.exit_code, result.stdout) == (3, "")
    (told,) = placing.told
    assert told.device_config_file == str(file)
    assert (told.node_lock_s, told.trusted_users) == (120.0, frozenset({"a"}))
    assert told.listeners.metrics is None


def test_the_agent_runs_with_what_flags_environment_and_files_say(
    agent: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.json").write_text('{"nodeconfig": [{"name": "n1", "operatingmode": "mps"}]}')
    monkeypatch.setenv("HOOK_PATH", "/opt")
    agent.code = 3
    strategies = ["--device-list-strategy=envvar", "--device-list-strategy", "cdi-cri"]
    result = agent.start("--pass-device-specs", *strategies)
    assert (result.exit_code, result.stdout) == (3, "")
    (told,) = agent.told
    assert (told.settings.node.mode, told.settings.node.split_count) == ("mps", 4)
    assert (str(told.settings.paths.hook), told.settings.pass_device_specs) == ("/opt", True)
    assert {each.value for each in told.settings.strategies} == {"envvar", "cdi-cri"}


def test_the_monitor_and_the_daemons_run_with_their_settings(stand_in: Callable[..., Service]) -> None:
    watching = stand_in("monitor", monitor.SERVICE, "--node-name=n1", "--hook-path=/x", "--legacy-metrics", "-v=4")
    watching.code = 3
    assert watching.start().exit_code == 3
    assert [(each.node_name, each.legacy_metrics) for each in watching.told] == [("n1", True)]
    daemons = stand_in("mps-daemons", device_plugin.MPS_SERVICE)
    daemons.code = 4
    assert daemons.start("--mps-dir=/x").exit_code == 4
    assert daemons.told == [Path("/x")]


def test_files_are_read_again_with_the_same_flags(placing: Service, agent: Service, tmp_path: Path) -> None:
    file = tmp_path / "device-config.yaml"
    assert placing.start(f"--device-config-file={file}", "--dcu-name=a.com/dcu").exit_code == 0
    assert agent.start("--gds-enabled").exit_code == 0
    assert placing.reload() == placing.told[0]
    file.write_text("nvidia: {resourceCountName: nvidia.com/vgpu, deviceSplitCount: 5}\n")
    sections, told = placing.reload().device_sections, agent.reload().settings
    assert (sections["nvidia"].resource_count_name, sections["hygon"].resource_count_name) == (
        "nvidia.com/vgpu",
        "a.com/dcu",
    )
    assert (told.node.split_count, told.gds) == (5, True)
    file.write_text("nvidia: 3\n")
    for service in (placing, agent):
        with pytest.raises(ValueError, match="expected a table"):
            service.reload()


def test_the_host_is_known_by_its_own_name(placing: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "this-host")
    arguments = ["--leader-elect", "--leader-elect-resource-name=l", "--leader-elect-resource-namespace=n"]
    assert placing.start(*arguments).exit_code == 0
    monkeypatch.setenv("HOSTNAME", "told-so")
    assert placing.start(*arguments).exit_code == 0
    assert [told.leadership and told.leadership.identity for told in placing.told] == ["this-host", "told-so"]


# -- how flags are written


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        ([], False),
        (["--legacy-metrics"], True),
        (["--legacy-metrics=true"], True),
        (["--legacy-metrics=false"], False),
        (["--legacy-metrics", "--debug"], True),
        (["--legacy-metrics=true", "--legacy-metrics=false"], False),
    ],
)
def test_switches_are_written_as_go_has_them(placing: Service, arguments: list[str], wanted: bool) -> None:
    assert placing.start(*arguments).exit_code == 0
    assert placing.told[0].legacy_metrics is wanted


@pytest.mark.parametrize("arguments", [["-v=5"], ["-v", "5"], ["-v5"], ["--v=5"], ["--v", "5"], ["--log-level=debug"]])
def test_verbosity_is_written_as_klog_has_it(placing: Service, arguments: list[str]) -> None:
    assert placing.start(*arguments).exit_code == 0
    assert structlog.get_config()["wrapper_class"].__name__.endswith("Debug")


def test_every_flag_of_klog_is_accepted(placing: Service) -> None:
    arguments = ["--vmodule=a=3", "--logtostderr", "--alsologtostderr=true", "--log_dir=/x", "--stderrthreshold=2"]
    arguments += ["--skip-headers", "--one_output=false", "--add_dir_header", "--log-file-max-size=1800"]
    assert placing.start(*arguments).exit_code == 0


def test_every_flag_and_alias_of_hamis_plugin_is_accepted(agent: Service) -> None:
    arguments = """
        --mig-strategy=none --fail-on-init-error=true --nvidia-driver-root=/ --dev-root=/ --nvidia-dev-root=/
        --driver-root-ctr-path=/driver-root --container-driver-root=/driver-root --pass-device-specs=false
        --device-list-strategy=envvar --device-id-strategy=uuid --cdi-annotation-prefix=cdi.k8s.io/
        --nvidia-cdi-hook-path=/usr/bin/nvidia-ctk --nvidia-ctk-path=/usr/bin/nvidia-ctk --gdrcopy-enabled=false
        --gds-enabled=false --mofed-enabled=false --kubelet-socket=/k.sock --device-discovery-strategy=auto
        --imex-channel-ids=0 --imex-required=false -v=4 --node-name=n1 --device-split-count=2
        --device-memory-scaling=1.0 --device-cores-scaling=1.0 --disable-core-limit=false --resource-name=nvidia.com/gpu
    """
    assert agent.start(*arguments.split()).exit_code == 0
    assert agent.told[0].settings.node.split_count == 4


# -- what is said


@pytest.mark.parametrize(
    ("name", "arguments", "settings", "more"),
    [
        (
            "placing",
            ["--kube-qps=5", "--resource-name=a.com/b", "--debug", "-v=4"],
            {"kube-qps": 5.0, "kube-burst": 10, "webhook-bind": "none"},
            {"overriding": ["--resource-name"], "ignored": ["--debug"]},
        ),
        (
            "agent",
            ["--metrics-bind=none", "--imex-required"],
            {"devicesplitcount": 4, "metrics-bind-address": "none", "node-name": "n1"},
            {"ignored": ["--imex-required"]},
        ),
    ],
)
def test_one_line_at_start_says_what_is_not_the_default(
    name: str, arguments: list[str], settings: dict[str, Any], more: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    result = request.getfixturevalue(name).start(*arguments)
    (line,) = result.stderr.splitlines()
    event = json.loads(line)
    assert event["message"] == "starting"
    assert event | more == event
    assert event["settings"] | settings == event["settings"]
    assert name == "agent" or event["settings"] == settings


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("placing", ["--kube-qps=x", "--device-config-file={file}", "--node-lock", "perhaps"], 3),
        ("agent", ["--config-file={file}", "--hook-path=x", "--inventory", "perhaps"], 3),
        ("placing", ["--print-config", "--kube-qps=x"], 1),
    ],
)
def test_a_bad_configuration_is_one_message_and_nothing_is_started_or_printed(
    name: str, arguments: list[str], said: int, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    service = request.getfixturevalue(name)
    (tmp_path / "bad.yaml").write_text("nvidia: {deviceSplitCount: many}\n")
    result = service.start(*(each.format(file=tmp_path / "bad.yaml") for each in arguments))
    assert (result.exit_code, service.told, result.stdout) == (2, [], "")
    first, *rest = result.stderr.splitlines()
    assert first == "Error: the configuration cannot be used"
    assert len(rest) == said
    assert all(line.startswith("  ") for line in rest)


@pytest.mark.parametrize("arguments", [["monitor"], ["mps-daemons", "--mps-dir=x"]])
def test_what_is_missing_or_wrong_for_the_others_is_named(
    arguments: list[str], stand_in: Callable[..., Service]
) -> None:
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2
    for word in ("NODE_NAME", "HOOK_PATH") if arguments == ["monitor"] else ("--mps-dir",):
        assert word in result.stderr


@pytest.mark.parametrize("content", [b"\xff\xfe", b"nvidia: {}\n" + b"#" * 2**20, b""])
def test_a_file_of_anything_else_is_a_bad_configuration(placing: Service, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "f").write_bytes(content)
    result = placing.start("--device-config-file", str(tmp_path / "f"))
    assert (result.exit_code, placing.told) == (2, [])
    assert str(tmp_path / "f") in result.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--http_bin=:80"], "Did you mean one of: '--http-bind', '--http_bind'?"),
        (["--kube-qqs=5"], "--kube-qps"),
        (["-x"], "No such option"),
        (["-v"], "requires an argument"),
        (["extra"], "unexpected extra argument"),
    ],
)
def test_an_unknown_flag_is_answered_with_the_nearest(placing: Service, arguments: list[str], said: str) -> None:
    result = placing.start(*arguments)
    assert (result.exit_code, placing.told) == (2, [])
    assert said in result.stderr


# -- --print-config


def test_the_configuration_can_be_printed_instead_of_used(placing: Service, agent: Service) -> None:
    result = placing.start("--print-config", "--kube-qps=5", "--dcu-name=a.com/dcu")
    assert (result.exit_code, result.stderr, placing.told) == (0, "", [])
    printed = yaml.safe_load(result.stdout)
    assert printed["scheduler"]["kube-qps"] == 5.0
    assert [printed[name]["resourceCountName"] for name in ("hygon", "nvidia")] == ["a.com/dcu", "nvidia.com/gpu"]
    result = agent.start("--print-config", "--mofed-enabled")
    assert (result.exit_code, agent.told) == (0, [])
    assert yaml.safe_load(result.stdout)["device-plugin"]["mofed-enabled"] is True
    assert all(line.startswith("Warning: ") for line in result.stderr.splitlines())


def test_printing_can_be_switched_off(service: Service) -> None:
    assert service.start("--print-config=false").exit_code == 0
    assert len(service.told) == 1


def test_a_broken_node_file_does_not_stop_the_agent_but_fails_a_check(agent: Service, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    assert agent.start().exit_code == 0
    assert len(agent.told) == 1
    result = agent.start("--print-config")
    assert result.exit_code == 2
    assert "config.json" in result.stderr
    assert yaml.safe_load(result.stdout)["nodeconfig"][0]["operatingmode"] == "hami-core"


# -- help


def test_the_version_is_one_line(agent: Service) -> None:
    result = agent.start("--version")
    assert (result.exit_code, result.output) == (0, f"tessera device-plugin {__version__}\n")


@every_table
def test_the_help_has_headings_examples_and_every_visible_flag(name: str, table: Sequence[Setting]) -> None:
    text = CliRunner().invoke(main, [name, "--help"]).output
    for row in table:
        assert f"\n{row.group.value}:\n" in text
        assert (f"--{row.flag}" in text) is not row.hidden or row.flag == "logtostderr"
        assert all(variable in text for variable in row.env)
    assert "Examples:\n" in text


@every_table
def test_the_help_needs_nothing_of_the_service(name: str, table: Sequence[Setting]) -> None:
    code = f"""
import sys
from tessera.cli import main
try:
    main(["{name}", "--help"])
finally:
    heavy = {{"numpy", "msgspec", "aiohttp", "structlog", "yaml", "grpc", "pynvml"}} & set(sys.modules)
    print("heavy:", sorted(heavy))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.endswith("heavy: []\n"), done.stderr


@every_table
def test_no_two_flags_share_a_name_or_a_variable(name: str, table: Sequence[Setting]) -> None:
    for found in (
        [flag for row in table for flag in row.names],
        [variable for row in table for variable in row.env],
        [row.dest for row in table],
    ):
        assert len(found) == len(set(found))


def test_what_is_accepted_without_effect_says_so() -> None:
    for name, table in TABLES.items():
        text = CliRunner().invoke(main, [name, "--help"]).output
        assert (Group.IGNORED.value in text) is any(row.group is Group.IGNORED for row in table)
