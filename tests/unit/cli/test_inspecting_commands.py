from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from tessera.cli import main
from tessera.inspect.snapshots import encode_snapshot
from tests.support.builders import GPU, gpu_pod, node
from tests.support.cluster_states import state_of

POD = """
metadata: {name: trainer}
spec: {containers: [{name: main, image: x, resources: {limits: {nvidia.com/gpu: 1, nvidia.com/gpumem: 30000}}}]}
"""
CLUSTER = "nodes: [{name: n, cards: [{model: A100-SXM4-80GB, count: 2}]}]"


@pytest.fixture
def snapshot(tmp_path: Path) -> str:
    nodes = [node("n1").gpus(2).capacity(**{GPU: 20})]
    pods = [gpu_pod("held", mem=60000).on("n1", "n1-0,NVIDIA,60000,0:;"), gpu_pod("greedy", mem=90000)]
    file = tmp_path / "s.json"
    file.write_bytes(encode_snapshot(state_of(nodes, pods)))
    return str(file)


def tessera(*arguments: str, stdin: str | None = None) -> Result:
    # Nothing of this machine may be found by chance.
    environ = {"KUBECONFIG": "/nonexistent/kubeconfig", "HOME": "/nonexistent"}
    return CliRunner(env=environ).invoke(main, list(arguments), input=stdin)


def document(result: Result) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(result.output)
    return found


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("explain", "held"), 0),
        (("explain", "default/greedy"), 1),
        (("explain", "nobody"), 2),
        (("top",), 0),
        (("top", "nodes"), 0),
        (("top", "pods", "--sort", "memory"), 0),
        (("doctor",), 0),
        (("top", "--watch"), 2),
        (("snapshot", "--hash-key", "k"), 2),
    ],
)
def test_exit_codes_say_what_the_answer_is(snapshot: str, arguments: tuple[str, ...], code: int) -> None:
    result = tessera(*arguments, "--snapshot", snapshot)
    assert result.exit_code == code, result.output


@pytest.mark.parametrize("command", ["explain", "top", "snapshot", "doctor"])
def test_every_command_documents_its_exit_codes_and_examples(command: str) -> None:
    text = tessera(command, "--help").output
    assert "Exit codes:" in text
    assert "Examples:" in text


def test_simulate_pod_documents_the_cluster_description_with_one_that_works(tmp_path: Path) -> None:
    text = tessera("simulate", "pod", "--help").output
    start, end = text.index("A cluster description:"), text.index("Or nodes, pods and quotas")
    lines = text[start:end].splitlines()[1:]
    described = tmp_path / "c.yaml"
    described.write_text("\n".join(line[2:] for line in lines))
    assert yaml.safe_load(described.read_text())["nodes"]
    result = tessera("simulate", "pod", "-f", "-", "--cluster", str(described), stdin=POD)
    assert result.exit_code == 0, result.output
    assert "would go to a100-1" in result.output


def test_simulate_pod_fails_where_not_all_copies_fit(tmp_path: Path) -> None:
    cluster, pod = tmp_path / "c.yaml", tmp_path / "p.yaml"
    cluster.write_text(CLUSTER)
    pod.write_text(POD)
    arguments = ("simulate", "pod", "-f", str(pod), "--cluster", str(cluster))
    assert tessera(*arguments, "--count", "2").exit_code == 0
    result = tessera(*arguments, "--count", "5", "-o", "json")
    assert result.exit_code == 1
    [found] = document(result)["items"]
    assert (found["count"], found["fitsInAll"], found["byNode"], found["allFit"]) == (5, 4, {"n": 4}, False)


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        (("explain", "held"), "Explanation"),
        (("top",), "DevicesInUse"),
        (("top", "nodes"), "NodesInUse"),
        (("top", "pods"), "PodsInUse"),
        (("doctor",), "Diagnosis"),
    ],
)
def test_json_and_yaml_hold_the_same_and_say_where_it_comes_from(
    snapshot: str, arguments: tuple[str, ...], kind: str
) -> None:
    as_json = document(tessera(*arguments, "--snapshot", snapshot, "-o", "json"))
    as_yaml = yaml.safe_load(tessera(*arguments, "--snapshot", snapshot, "-o", "yaml").output)
    assert as_json == as_yaml
    assert (as_json["kind"], as_json["apiVersion"]) == (kind, "tessera.io/v1")
    assert as_json["from"]["deviceConfig"] == "the chart's defaults"


def test_a_snapshot_can_be_hashed_afterwards(snapshot: str, tmp_path: Path) -> None:
    hashed = tmp_path / "h.json"
    result = tessera("snapshot", "--snapshot", snapshot, "-o", str(hashed), "--hash-names", "--hash-key", "k")
    assert result.exit_code == 0, result.output
    assert "1 node, 2 device pods" in result.output
    assert "greedy" not in hashed.read_text()
    assert tessera("top", "--snapshot", str(hashed)).exit_code == 0


def test_without_a_file_the_snapshot_goes_to_standard_output(snapshot: str) -> None:
    assert document(tessera("snapshot", "--snapshot", snapshot))["kind"] == "TesseraSnapshot"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("top",), "/nonexistent/kubeconfig: no such file"),
        (("top", "--snapshot", "SNAPSHOT", "--context", "c"), "leave out --kubeconfig and --context"),
        (("top", "--snapshot", "SNAPSHOT", "--scheduler-flag", "vmodule=x"), "no flag vmodule that affects placement"),
        (("simulate", "pod", "-f", "/nonexistent", "--snapshot", "SNAPSHOT"), "cannot read /nonexistent"),
    ],
)
def test_there_is_no_answer_without_a_reason(snapshot: str, arguments: tuple[str, ...], words: str) -> None:
    result = tessera(*(snapshot if word == "SNAPSHOT" else word for word in arguments))
    assert result.exit_code == 2
    assert words in result.output
    assert "Traceback" not in result.output


def test_a_device_configuration_of_ones_own_is_used_and_named(snapshot: str, tmp_path: Path) -> None:
    file = tmp_path / "device-config.yaml"
    file.write_text("nvidia: {resourceCountName: example.com/gpu, resourceMemoryName: example.com/mem}\n")
    result = tessera("explain", "greedy", "--snapshot", snapshot, "--device-config-file", str(file))
    assert result.exit_code == 0
    assert "requests no devices" in result.output
    assert f"device configuration: {file}" in result.output


def test_help_imports_neither_numpy_nor_the_engine() -> None:
    code = (
        "import sys; from click.testing import CliRunner; from tessera.cli import main\n"
        "for name in ('explain', 'top', 'snapshot', 'doctor'):\n"
        "    assert CliRunner().invoke(main, [name, '--help']).exit_code == 0\n"
        "assert not {'numpy', 'rich', 'aiohttp', 'tessera.scheduler'} & set(sys.modules), 'heavy'\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
