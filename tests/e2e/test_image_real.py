"""The commands of the Dockerfile, run here: what they install starts. Needs the package index, but no engine."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def commands() -> list[str]:
    """Of the first stage, each on one line."""
    stage = (ROOT / "Dockerfile").read_text(encoding="utf-8").split("\nFROM ")[1].replace("\\\n", " ")
    return re.findall(r"^RUN (.+)$", stage, flags=re.MULTILINE)


@pytest.mark.skipif(sys.platform != "linux", reason="the image is Linux's")
def test_the_commands_of_the_dockerfile_install_a_program_that_starts(tmp_path: Path) -> None:
    work = tmp_path / "build"
    (work / "requirements").mkdir(parents=True)
    for name in ("pyproject.toml", "README.md", "LICENSE", "requirements/runtime.txt", "requirements/build.txt"):
        shutil.copy(ROOT / name, work / name)
    shutil.copytree(ROOT / "src", work / "src", ignore=shutil.ignore_patterns("__pycache__"))
    assert len(commands()) >= 4
    for command in commands():
        here = re.sub(r"(?<![\w.])/(opt|wheels)\b", rf"{tmp_path}/\1", command)
        here = re.sub(r"(?<![\w/])python ", f"{sys.executable} ", here)
        done = subprocess.run(["sh", "-ec", here], cwd=work, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{here}\n{done.stdout}{done.stderr}"
    shutil.rmtree(work)
    program = tmp_path / "opt" / "tessera" / "bin" / "tessera"
    for arguments in (["--version"], ["scheduler", "--print-config"], ["device-plugin", "--help"]):
        subprocess.run([program, *arguments], check=True, capture_output=True, env={"PATH": "/usr/bin:/bin"})
    assert not (program.parent / "pip").exists()
