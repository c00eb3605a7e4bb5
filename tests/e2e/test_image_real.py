"""The commands of the Dockerfile, run here: what they install starts. Needs the package index, but no engine.

And the image that needs no engine at all: what is in it. That it runs is seen in `tests/e2e/node/test_release_real.py`.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

import tessera
from tools.image import builder
from tools.image.builder import Built
from tools.image.debian import Unbuildable
from tools.kubernetes import build

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


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    cache = build.cache(os.environ) / "image"
    try:
        return builder.build(tmp_path_factory.mktemp("image") / "image.tar", cache=cache, tell=print)
    except Unbuildable as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def files(built: Built) -> dict[str, tarfile.TarInfo]:
    """What containers see, by path."""
    found: dict[str, tarfile.TarInfo] = {}
    with tarfile.open(built.path) as archive:

        def blob(entry: dict[str, Any]) -> bytes:
            file = archive.extractfile(f"blobs/{entry['digest'].replace(':', '/')}")
            assert file is not None
            return file.read()

        index = json.loads(archive.extractfile("index.json").read())  # type: ignore[union-attr]
        for layer in json.loads(blob(index["manifests"][0]))["layers"]:
            with tarfile.open(fileobj=io.BytesIO(blob(layer)), mode="r:gz") as members:
                found |= {member.name: member for member in members}
    return found


def test_the_image_has_the_product_without_its_lab_and_without_tools(files: dict[str, tarfile.TarInfo]) -> None:
    (home,) = {path.rpartition("/")[0] for path in files if path.endswith("/site-packages/tessera/__init__.py")}
    assert f"{home}/scheduler/__init__.py" in files
    assert not any(path.startswith(f"{home}/lab") for path in files)
    programs = {path.rpartition("/")[2] for path in files if path.rpartition("/")[0].endswith("bin")}
    assert programs >= {"tessera", "python", "sh"}
    assert not programs & {"pip", "apt-get", "dpkg", "gcc"}
    compiled = {path.split("/__pycache__/")[0] for path in files if path.startswith(home) and path.endswith(".pyc")}
    assert home in compiled
    assert not any(
        member.mode & 0o6022 for path, member in files.items() if path not in ("tmp", "var/tmp") and not member.issym()
    )


def test_the_bill_of_materials_names_everything_that_is_installed(
    built: Built, files: dict[str, tarfile.TarInfo]
) -> None:
    named = {each["name"].lower().replace("-", "_") for each in built.sbom["components"]}
    dists = {path.split("/")[-2].partition("-")[0] for path in files if path.endswith(".dist-info/METADATA")}
    packages = {path.rpartition("/")[2] for path in files if path.startswith("var/lib/dpkg/status.d/")}
    assert len(dists) > 15
    assert len(packages) > 20
    product = built.sbom["metadata"]["component"]["name"].replace("-", "_")
    assert {name.lower() for name in dists} - {product} | {name.replace("-", "_") for name in packages} == named
    assert built.labels["org.opencontainers.image.version"] == tessera.__version__
    assert "org.opencontainers.image.revision" in built.labels
