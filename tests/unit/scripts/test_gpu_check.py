"""What of `scripts/gpu-check` needs no card: containers, processes under load, and how results are judged."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from scripts.gpu_check import __main__ as program
from scripts.gpu_check import container, hami_core, load, shares
from scripts.gpu_check.report import Report
from tessera.node.modes.base import HostMount

ROOT = Path(__file__).parents[3]
TORCH = """
import os
bfloat16, uint8 = "bf16", "u8"
class OutOfMemoryError(Exception): ...
def empty(size, dtype, device):
    if size > 4 * 2**30:
        raise OutOfMemoryError
def randn(*size, device, dtype): return 1
def empty_like(like): return 1
def mm(a, b, out): ...
class cuda:
    def init():
        print("[a library says something]")
        if os.environ.get("BROKEN"):
            raise RuntimeError("no card\\nmore")
    def mem_get_info(): return 3 * 2**30, 4 * 2**30
    def get_device_properties(index):
        class properties: multi_processor_count = 132
        return properties
    def empty_cache(): ...
    def synchronize(): ...
"""
"""a card of 4 GiB that multiplies in no time"""


@pytest.fixture
def torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch.py").write_text(TORCH)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


async def test_a_process_says_what_it_sees_and_how_fast_it_is(torch: None) -> None:
    one = await load.start({}, gib=(3, 6))
    assert one.found == {"free_mib": 3072, "total_mib": 4096, "processors": 132, "3": True, "6": False}
    found = await one.measure(0.01)
    assert found["rate"] > 0
    assert found["longest_ms"] >= 0
    await one.end()
    assert one.process.returncode == 0


async def test_processes_start_all_or_none(torch: None) -> None:
    with pytest.raises(load.LoadFailed, match=r"^RuntimeError: no card$"):
        await load.start_all([{}, {"BROKEN": "1"}])


async def test_a_process_that_says_nothing_is_a_failure() -> None:
    with pytest.raises(load.LoadFailed, match="ended with 0 and said nothing"):
        await load.start({}, container=["true"])


# -- shares


def test_shares_are_per_cent_of_one_alone() -> None:
    assert shares.in_points([930, 8350], 10_000) == [9.3, 83.5]


@pytest.mark.parametrize(
    ("mine", "near"),
    [([10.0, 82.0], True), ([11.3, 81.5], True), ([11.4, 83.5], False), ([9.3, 81.4], False), ([9.3], False)],
)
def test_shares_must_be_within_two_points_of_plain_mps(mine: list[float], near: bool) -> None:
    found, words = shares.verdict(mine, [9.3, 83.5])
    assert found is near
    assert "9.3 / 83.5 by plain MPS" in words


def test_the_parent_of_a_process_is_known() -> None:
    assert shares.parent_of(os.getpid()) == os.getppid()


# -- containers


def can_mount() -> bool:
    if os.geteuid() != 0:
        return False
    asked = [sys.executable, "-c", "from scripts.gpu_check import container; container.leave_host()"]
    path = f"{ROOT}:{ROOT / 'src'}"
    return (
        subprocess.run(asked, env={**os.environ, "PYTHONPATH": path}, capture_output=True, check=False).returncode == 0
    )


def test_a_container_has_exactly_the_mounts_and_the_machine_has_none(tmp_path: Path) -> None:
    """The container's own directory hides the one that the library comes from."""
    if not can_mount():
        pytest.skip("needs the right to mount")
    home, own = tmp_path / "home", tmp_path / "own"
    home.mkdir()
    own.mkdir()
    (home / "lib.so").write_text("the library")
    (home / "secret").touch()
    mounts = [HostMount(str(home), str(own), read_only=False), HostMount(f"{home}/lib.so", f"{home}/lib.so")]
    script = f"cat {home}/lib.so; ls {home}; touch {home}/region; (echo x > {home}/lib.so) 2>/dev/null || echo ' kept'"
    done = subprocess.run(
        [*container.command(mounts), "sh", "-c", script],
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == "the librarylib.so\n kept\n"
    assert sorted(each.name for each in own.iterdir()) == ["lib.so", "region"]
    assert sorted(each.name for each in home.iterdir()) == ["lib.so", "secret"]


def test_a_directory_that_is_borrowed_goes_and_one_that_was_there_stays(tmp_path: Path) -> None:
    with hami_core.borrowed(tmp_path / "new" / "one"), hami_core.borrowed(tmp_path):
        assert (tmp_path / "new" / "one").is_dir()
    assert not (tmp_path / "new" / "one").exists()
    assert tmp_path.is_dir()


# -- results


def test_the_results_of_the_container_part_count_as_all_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = tmp_path / "libvgpu.so"
    library.touch()
    monkeypatch.setattr(hami_core, "HOME", tmp_path / "vgpu")
    monkeypatch.setattr(hami_core, "LOCK_DIR", str(tmp_path / "lock"))

    def ran(command: Sequence[str], **_: Any) -> subprocess.CompletedProcess[str]:
        assert (tmp_path / "vgpu").is_dir()
        lines = [{"part": "x", "name": "memory", "ok": False, "seen": "6 GiB"}]
        Path(command[-1]).write_text(json.dumps(lines))
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(subprocess, "run", ran)
    report = Report(part="hami-core: title")
    hami_core.run(report, library)
    assert [(line.part, line.name, line.ok) for line in report.lines] == [("hami-core: title", "memory", False)]
    assert report.failed == 1
    assert not (tmp_path / "vgpu").exists()


def test_a_missing_library_is_said(tmp_path: Path) -> None:
    report = Report()
    hami_core.run(report, tmp_path / "none.so")
    assert report.failed == 1


def parts_run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> list[tuple[str, dict[str, Any]]]:
    ran: list[tuple[str, dict[str, Any]]] = []

    class Module:
        def __init__(self, name: str) -> None:
            self.name = name.rpartition(".")[2]

        def run(self, report: Report, **more: Any) -> None:
            ran.append((self.name, more))
            report.check("it", True, "ran")

    with monkeypatch.context() as patch:
        patch.setattr(sys, "argv", ["gpu-check", *arguments])
        patch.setattr(importlib, "import_module", Module)
        assert program.main() == 0
    return ran


def test_the_container_part_runs_only_with_a_library(monkeypatch: pytest.MonkeyPatch) -> None:
    without = parts_run(monkeypatch)
    assert [name for name, _ in without] == ["cards", "mps", "shares", "mig", "agent", "dra"]
    given = parts_run(monkeypatch, "--library", "x.so")
    assert given == [*without, ("hami_core", {"library": Path("x.so")})]
    with pytest.raises(SystemExit):
        parts_run(monkeypatch, "hami-core")
