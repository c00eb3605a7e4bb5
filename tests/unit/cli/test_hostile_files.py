"""Files that were made to exhaust or to crash a reader, through every command that reads a file."""

from __future__ import annotations

import gzip
import json
import tarfile
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tessera.cli import main
from tessera.files import reader
from tessera.inspect.snapshots import encode_snapshot
from tests.support.builders import node
from tests.support.cluster_states import state_of
from tests.support.commands import started
from tests.support.event_loops import in_real_time
from tests.unit.cli.hostile_files import COMMANDS, TEXTS, archive_bomb, bomb, write_all

RESUME = COMMANDS[-1]
HARMLESS = {("empty", RESUME)}
"""an empty file is one to begin"""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("files")
    found = {name: str(path) for name, path in write_all(folder, size=2 << 20).items()}
    snapshot, pod = folder / "good.json", folder / "good.yaml"
    snapshot.write_bytes(encode_snapshot(state_of([node("n1").gpus(2)])))
    pod.write_text("spec: {containers: [{name: a}]}")
    return {**found, "SNAPSHOT": str(snapshot), "POD": str(pod)}


@pytest.fixture(autouse=True)
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits that small bombs exceed; files in the tests of the reader have the real ones."""
    monkeypatch.setattr(reader, "MAX_BYTES", 1 << 20)
    monkeypatch.setattr(reader, "MAX_RATIO", 10)


def run(arguments: tuple[str, ...], files: dict[str, str]) -> Result:
    environ = {"KUBECONFIG": "/nonexistent/kubeconfig", "HOME": "/nonexistent"}
    return CliRunner(env=environ).invoke(main, [files.get(word, word) for word in arguments])


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_a_hostile_file_is_refused_with_its_name_and_what_is_wrong(
    files: dict[str, str], arguments: tuple[str, ...]
) -> None:
    for name in files.keys() - {"SNAPSHOT", "POD"}:
        if (name, arguments) in HARMLESS:
            continue
        result = run(arguments, {**files, "FILE": files[name]})
        assert (result.exit_code, type(result.exception)) == (2, SystemExit), (name, result.exception, result.output)
        assert Path(files[name]).name in result.output, (name, result.output)
        assert "Traceback" not in result.output, name
        assert len(result.stderr) < 3_000, (name, len(result.stderr))


@in_real_time
@pytest.mark.parametrize("name", ["unclosed json", "deep yaml", "unclosed yaml", "deep blocks"])
async def test_what_overflowed_the_stack_of_a_process_no_longer_ends_it(files: dict[str, str], name: str) -> None:
    async with started("top", "--snapshot", files[name]) as command:
        assert await command.end() == 2
        assert "nested more than 100 levels deep" in command.last_words()


def test_a_bomb_is_unpacked_only_up_to_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unpacked = 0
    read = gzip.GzipFile.read

    def counted(self: gzip.GzipFile, size: int | None = -1) -> bytes:
        nonlocal unpacked
        piece = read(self, size)
        unpacked += len(piece)
        return piece

    monkeypatch.setattr(gzip.GzipFile, "read", counted)
    for data in (bomb(b"\0", 64 << 20), bomb(b"\n", 64 << 20), archive_bomb("other", size=64 << 20)):
        path = tmp_path / "bomb.gz"
        path.write_bytes(data)
        for arguments in (("top", "--snapshot", str(path)), ("journal", "--file", str(path))):
            unpacked = 0
            assert run(arguments, {}).exit_code == 2
            assert unpacked <= max(reader.MAX_BYTES, reader.MAX_RATIO * len(data)) + 2 * (1 << 20)


def test_standard_input_has_the_same_limit(files: dict[str, str]) -> None:
    arguments = ["simulate", "pod", "--snapshot", files["SNAPSHOT"], "-f", "-"]
    result = CliRunner().invoke(main, arguments, input=b"#" * ((1 << 20) + 1))
    assert (result.exit_code, "cannot read -: has more than 1 MiB" in result.output) == (2, True), result.output
    result = CliRunner().invoke(main, arguments, input=TEXTS["not utf-8"])
    assert (result.exit_code, "it is not text in UTF-8" in result.output) == (2, True), result.output


def test_a_bundle_that_people_packed_again_is_read(tmp_path: Path, files: dict[str, str]) -> None:
    bundle = tmp_path / "again.tgz"
    with tarfile.open(bundle, "w:gz", format=tarfile.GNU_FORMAT) as archive:
        archive.add(files["POD"], arcname="a/long/" + "x" * 200)
        archive.add(files["SNAPSHOT"], arcname="snapshot.json")
    assert run(("top", "--snapshot", str(bundle)), {}).exit_code == 0


@pytest.mark.parametrize("wrong", [None, 5, "x", [5], {"a": 5}], ids=str)
@pytest.mark.parametrize("field", ["metadata", "spec", "taints", "annotations"])
def test_a_node_that_is_none_is_no_fault_of_ours(
    tmp_path: Path, files: dict[str, str], field: str, wrong: object
) -> None:
    snapshot = json.loads(Path(files["SNAPSHOT"]).read_bytes())
    [found] = snapshot["nodes"]
    {"taints": found.setdefault("spec", {}), "annotations": found["metadata"]}.get(field, found)[field] = wrong
    path = tmp_path / "wrong.json"
    path.write_text(json.dumps(snapshot))
    for arguments in (("top",), ("simulate", "pod", "-f", "POD"), ("doctor",)):
        result = run((*arguments, "--snapshot", str(path)), files)
        assert isinstance(result.exception, SystemExit | None), (arguments, result.exception)
