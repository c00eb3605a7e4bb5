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

from tessera.cli import main
from tessera.cli import scheduler as module
from tessera.scheduler.settings import TABLE, Settings


class Service:
    """Stands in for the service; remembers what it was told."""

    def __init__(self, code: int = 0) -> None:
        self.code = code
        self.told: list[Settings] = []

    def run(self, settings: Settings, reload: Callable[[], Settings]) -> int:
        self.told.append(settings)
        self.reload = reload
        return self.code


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    stand_in = Service()
    monkeypatch.setitem(sys.modules, module.SERVICE, SimpleNamespace(run=stand_in.run))
    for name in ("POD_NAMESPACE", "POD_NAME", "HOSTNAME", "HAMI_NODELOCK_EXPIRE"):
        monkeypatch.delenv(name, raising=False)
    yield stand_in
    structlog.reset_defaults()


def scheduler(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["scheduler", *arguments])


def test_the_service_runs_with_what_flags_environment_and_file_say(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "device-config.yaml"
    file.write_text("nvidia: {resourceCountName: nvidia.com/gpu}\n")
    monkeypatch.setenv("HAMI_NODELOCK_EXPIRE", "2m")
    result = scheduler("--device-config-file", str(file), "--metrics-bind", "none", "--trusted-user=a")
    assert result.exit_code == 0, result.output
    (told,) = service.told
    assert told.device_config_file == str(file)
    assert (told.node_lock_s, told.trusted_users) == (120.0, frozenset({"a"}))
    assert told.listeners.metrics is None


def test_the_file_can_be_read_again_with_the_same_flags(service: Service, tmp_path: Path) -> None:
    file = tmp_path / "device-config.yaml"
    file.write_text("nvidia: {resourceCountName: nvidia.com/gpu}\n")
    assert scheduler("--device-config-file", str(file), "--dcu-name=a.com/dcu").exit_code == 0
    assert service.reload() == service.told[0]
    file.write_text("nvidia: {resourceCountName: nvidia.com/vgpu}\n")
    sections = service.reload().device_sections or {}
    assert sections["nvidia"].resource_count_name == "nvidia.com/vgpu"
    assert sections["hygon"].resource_count_name == "a.com/dcu"
    file.write_text("nvidia: 3\n")
    with pytest.raises(ValueError, match="expected a table"):
        service.reload()


def test_the_exit_code_is_the_services(service: Service) -> None:
    service.code = 3
    assert scheduler().exit_code == 3


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
def test_switches_are_written_as_go_has_them(service: Service, arguments: list[str], wanted: bool) -> None:
    assert scheduler(*arguments).exit_code == 0
    assert service.told[0].legacy_metrics is wanted


@pytest.mark.parametrize("arguments", [["-v=5"], ["-v", "5"], ["-v5"], ["--v=5"], ["--v", "5"], ["--log-level=debug"]])
def test_verbosity_is_written_as_klog_has_it(service: Service, arguments: list[str]) -> None:
    assert scheduler(*arguments).exit_code == 0
    assert structlog.get_config()["wrapper_class"].__name__.endswith("Debug")


def test_every_flag_of_klog_is_accepted(service: Service) -> None:
    arguments = ["--vmodule=a=3", "--logtostderr", "--alsologtostderr=true", "--log_dir=/x", "--stderrthreshold=2"]
    arguments += ["--skip-headers", "--one_output=false", "--add_dir_header", "--log-file-max-size=1800"]
    assert scheduler(*arguments).exit_code == 0


def test_the_host_is_known_by_its_own_name(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "this-host")
    arguments = ["--leader-elect", "--leader-elect-resource-name=l", "--leader-elect-resource-namespace=n"]
    assert scheduler(*arguments).exit_code == 0
    monkeypatch.setenv("HOSTNAME", "told-so")
    assert scheduler(*arguments).exit_code == 0
    assert [told.leadership and told.leadership.identity for told in service.told] == ["this-host", "told-so"]


def test_one_line_at_start_says_what_is_not_the_default(service: Service) -> None:
    result = scheduler("--kube-qps=5", "--resource-name=a.com/b", "--debug", "-v=4")
    (line,) = result.stderr.splitlines()
    event = json.loads(line)
    assert event["message"] == "starting"
    assert event["settings"] == {"kube-qps": 5.0, "kube-burst": 10, "webhook-bind": "none"}
    assert (event["overriding"], event["ignored"]) == (["--resource-name"], ["--debug"])


def test_a_bad_configuration_is_one_message_and_nothing_is_started(service: Service, tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("nvidia: {resourceCountNam: x}\n")
    result = scheduler("--kube-qps=x", "--device-config-file", str(tmp_path / "bad.yaml"), "--node-lock", "perhaps")
    assert (result.exit_code, service.told, result.stdout) == (2, [], "")
    first, *rest = result.stderr.splitlines()
    assert first == "Error: the configuration cannot be used"
    assert len(rest) == 3
    assert all(line.startswith("  ") for line in rest)


@pytest.mark.parametrize("content", [b"\xff\xfe", b"nvidia: {}\n" + b"#" * 2**20, b""])
def test_a_file_of_anything_else_is_a_bad_configuration(service: Service, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "f").write_bytes(content)
    result = scheduler("--device-config-file", str(tmp_path / "f"))
    assert (result.exit_code, service.told) == (2, [])
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
def test_an_unknown_flag_is_answered_with_the_nearest(service: Service, arguments: list[str], said: str) -> None:
    result = scheduler(*arguments)
    assert (result.exit_code, service.told) == (2, [])
    assert said in result.stderr


def test_the_configuration_can_be_printed_instead_of_used(service: Service) -> None:
    result = scheduler("--print-config", "--kube-qps=5", "--dcu-name=a.com/dcu")
    assert (result.exit_code, result.stderr, service.told) == (0, "", [])
    printed = yaml.safe_load(result.stdout)
    assert printed["scheduler"]["kube-qps"] == 5.0
    assert printed["hygon"]["resourceCountName"] == "a.com/dcu"
    assert printed["nvidia"]["resourceCountName"] == "nvidia.com/gpu"


def test_a_bad_configuration_is_not_printed(service: Service) -> None:
    result = scheduler("--print-config", "--kube-qps=x")
    assert (result.exit_code, result.stdout) == (2, "")


def test_print_config_can_be_switched_off(service: Service) -> None:
    assert scheduler("--print-config=false").exit_code == 0
    assert len(service.told) == 1


def test_the_help_has_headings_examples_and_every_visible_flag() -> None:
    text = scheduler("--help").output
    for row in TABLE:
        assert f"\n{row.group.value}:\n" in text
        assert (f"--{row.flag}" in text) is not row.hidden or row.flag == "logtostderr"
    assert "Examples:\n" in text
    assert "--profiling [BOOL]" in text
    assert "No effect" in text


def test_the_help_needs_nothing_of_the_service() -> None:
    code = """
import sys
from tessera.cli import main
try:
    main(["scheduler", "--help"])
finally:
    heavy = {"numpy", "msgspec", "aiohttp", "structlog", "yaml"} & set(sys.modules)
    print("heavy:", sorted(heavy))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.endswith("heavy: []\n"), done.stderr
