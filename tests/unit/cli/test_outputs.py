"""Every command in every form of output, on terminals that show ASCII only."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from tessera.cli import COMMANDS, main, sources
from tessera.inspect.snapshots import decode_snapshot, encode_snapshot
from tests.support.builders import GPU, gpu_pod, node
from tests.support.cluster_states import state_of

POD = """
metadata: {name: trainer}
spec: {containers: [{name: main, image: x, resources: {limits: {nvidia.com/gpu: 1, nvidia.com/gpumem: 30000}}}]}
"""
NAME = "Gr\u00fc\u00dfe \u2588 \U0001f600"
"""in a message that another program wrote"""

TRACE = ("simulate", "trace", "--synthetic", "1", "--policy", "best-fit", "--seeds", "1")
FORMS = {
    ("explain", "held"): ("text", "json", "yaml"),
    ("explain", "greedy", "--cards"): ("text", "json", "yaml"),
    ("top",): ("text", "wide", "json", "yaml"),
    ("top", "nodes"): ("text", "wide", "json", "yaml"),
    ("top", "pods"): ("text", "wide", "json", "yaml"),
    ("doctor",): ("text", "json", "yaml"),
    ("simulate", "pod", "-f", "POD"): ("text", "json", "yaml"),
    ("snapshot",): ("json", "yaml"),
    (*TRACE, "--arrival", "0.5", "--resume", "RUNS"): ("text", "table", "json", "yaml"),
}  # fmt: skip
"""commands that work without a cluster"""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("files")
    nodes = [node("n1").gpus(2).capacity(**{GPU: 20})]
    state = state_of(
        nodes, [gpu_pod("held", mem=60000).on("n1", "n1-0,NVIDIA,60000,0:;"), gpu_pod("greedy", mem=90000)]
    )
    condition = {"type": "PodScheduled", "status": "False", "message": NAME}
    state.pods[1]["status"] = {"conditions": [condition]}
    snapshot, pod = folder / "s.json", folder / "p.yaml"
    snapshot.write_bytes(encode_snapshot(state))
    pod.write_text(POD)
    # The first simulation is written here, and the others show it.
    return {"SNAPSHOT": str(snapshot), "POD": str(pod), "RUNS": str(folder / "runs.jsonl")}


def run(arguments: tuple[str, ...], files: dict[str, str], *, charset: str, **environ: str) -> Result:
    offline = ("--snapshot", "SNAPSHOT") if arguments[:2] != ("simulate", "trace") else ()
    given = [files.get(word, word) for word in (*arguments, *offline)]
    runner = CliRunner(charset=charset, env={"LC_ALL": "", "LC_CTYPE": "", "LANG": "", **environ})
    return runner.invoke(main, given, catch_exceptions=False)


def decoded(text: str, form: str) -> object:
    return json.loads(text) if form == "json" else yaml.safe_load(text)


CASES = [(arguments, form) for arguments, forms in FORMS.items() for form in forms]


@pytest.mark.parametrize(("arguments", "form"), CASES, ids=[f"{' '.join(a[:2])} -o {f}" for a, f in CASES])
@pytest.mark.parametrize("terminal", [{"charset": "ascii"}, {"charset": "utf-8", "LANG": "C"}], ids=["ascii", "LANG=C"])
def test_every_form_of_every_command_is_readable_in_ascii(
    files: dict[str, str], arguments: tuple[str, ...], form: str, terminal: dict[str, str]
) -> None:
    result = run((*arguments, "-o", form), files, **terminal)
    assert result.exit_code in (0, 1), result.output
    text = result.stdout
    if form in ("json", "yaml") and arguments != ("snapshot",):
        assert text.isascii()
        if arguments[1:2] == ("trace",):
            return
        assert decoded(text, form) == decoded(run((*arguments, "-o", form), files, charset="utf-8").stdout, form)
    elif form not in ("json", "yaml"):
        assert text.isascii()
        assert "?" not in text
        assert "#" in text or "top" not in arguments[:1] or "pods" in arguments


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_help_is_ascii(name: str) -> None:
    result = CliRunner(charset="ascii").invoke(main, [name, "--help"], catch_exceptions=False)
    assert result.exit_code == 0
    assert result.output.isascii()


@pytest.mark.parametrize(
    ("environ", "is_ascii"),
    [
        ({}, False),
        ({"LANG": "en_US.UTF-8"}, False),
        ({"LANG": "C"}, True),
        ({"LANG": "POSIX"}, True),
        ({"LANG": "C", "LC_CTYPE": "C.UTF-8"}, True),  # as Python sets it in the C locale
        ({"LANG": "C", "LC_CTYPE": "de_DE.UTF-8"}, False),
        ({"LANG": "en_US.UTF-8", "LC_ALL": "C"}, True),
        ({"LANG": "C", "LC_ALL": "C.UTF-8"}, False),
    ],
)
def test_the_locale_says_whether_a_terminal_shows_more_than_ascii(
    monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], is_ascii: bool
) -> None:
    for variable in ("LANG", "LC_ALL", "LC_CTYPE"):
        monkeypatch.delenv(variable, raising=False)
    for variable, value in environ.items():
        monkeypatch.setenv(variable, value)
    with CliRunner().isolation():
        assert sources.ascii_only() is is_ascii


def test_what_tessera_prints_has_an_ascii_form() -> None:
    assert sources.as_ascii("█░·… 1 ± 2 \u00fc") == "#..... 1 +- 2 \\xfc"


@pytest.mark.parametrize(("name", "form"), [("b.yaml", "yaml"), ("b.yml", "yaml"), ("b.json", "json"), ("b", "json")])
def test_the_name_of_a_snapshots_file_is_its_form(files: dict[str, str], tmp_path: Path, name: str, form: str) -> None:
    written = tmp_path / name
    result = run(("snapshot", "-o", str(written)), files, charset="utf-8")
    assert result.exit_code == 0, result.output
    text = written.read_text()
    assert text.startswith("{") is (form == "json")
    again = decode_snapshot(written.read_bytes(), file=name)
    assert again.pods == decode_snapshot(Path(files["SNAPSHOT"]).read_bytes(), file="s").pods
    assert CliRunner().invoke(main, ["top", "--snapshot", str(written)]).exit_code == 0


@pytest.mark.parametrize("form", ["json", "yaml"])
def test_a_snapshots_form_is_no_name_of_a_file(
    files: dict[str, str], form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = set(tmp_path.iterdir())
    found = decoded(run(("snapshot", "-o", form), files, charset="utf-8").stdout, form)
    assert isinstance(found, dict)
    assert found["kind"] == "TesseraSnapshot"
    assert set(tmp_path.iterdir()) == before
    result = run(("snapshot", "-o", "text"), files, charset="utf-8")
    assert (result.exit_code, "a snapshot has no form text" in result.output) == (2, True)
