"""The wheel, and with it the image, holds the product without the lab, and works."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds what the wheel holds."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def run(installed: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    # Without `site`, which would add the folder of the sources, and so the lab.
    environment = {**os.environ, "PYTHONPATH": f"{installed}:{sysconfig.get_path('purelib')}"}
    command = [sys.executable, "-S", *arguments]
    return subprocess.run(command, cwd=installed, env=environment, capture_output=True, text=True, check=False)


def test_the_wheel_leaves_the_lab_out(installed: Path) -> None:
    assert (installed / "tessera" / "scheduler").is_dir()
    assert not (installed / "tessera_lab").exists()


def test_every_module_of_the_product_can_be_imported_without_the_lab(installed: Path) -> None:
    program = (
        "import importlib, pkgutil, tessera\n"
        f"assert tessera.__file__.startswith({str(installed)!r}), tessera.__file__\n"
        "for module in pkgutil.walk_packages(tessera.__path__, 'tessera.'):\n"
        "    importlib.import_module(module.name) if not module.name.endswith('__main__') else None\n"
    )
    done = run(installed, "-c", program)
    assert done.returncode == 0, done.stderr


def test_help_lists_only_the_commands_that_are_installed(installed: Path) -> None:
    everything, simulate = run(installed, "-m", "tessera", "--help"), run(installed, "-m", "tessera", "simulate", "-h")
    assert "  explain " in everything.stdout
    assert "  demo " not in everything.stdout
    assert "  pod " in simulate.stdout
    assert "  trace " not in simulate.stdout


@pytest.mark.parametrize("command", [["demo"], ["simulate", "trace"]])
def test_a_command_of_the_lab_says_where_to_find_it(installed: Path, command: list[str]) -> None:
    done = run(installed, "-m", "tessera", *command)
    assert done.returncode == 2
    assert f"'{command[-1]}' is not part of this installation" in done.stderr
    assert "clone the repository" in done.stderr
