"""The Python packages of the image: the locked wheels, checked against their hashes, and the project's own wheel."""

from __future__ import annotations

import email.parser
import re
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from tools.image.debian import Interpreter, Unbuildable, architecture, run

MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
OLDEST_GLIBC = 5
"""minor version of the oldest tag, manylinux_2_5"""
PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")


@dataclass(frozen=True, slots=True)
class Dist:
    """An installed distribution."""

    name: str
    version: str
    licence: str = ""


def download(lock: Path, interpreter: Interpreter, folder: Path) -> list[Path]:
    """The wheels of a lock for the image's interpreter; pip refuses any whose hash is not locked."""
    major, minor = interpreter.glibc
    machine = MACHINES.get(architecture(), architecture())
    tags = [f"manylinux_{major}_{each}_{machine}" for each in range(minor, OLDEST_GLIBC - 1, -1)]
    platforms = [f"--platform={tag}" for tag in (*tags, f"manylinux2014_{machine}", f"linux_{machine}")]
    folder.mkdir(parents=True, exist_ok=True)
    run(
        *(*PIP, "download", "--no-deps", "--require-hashes", "--only-binary=:all:", f"--requirement={lock}"),
        *(f"--dest={folder}", f"--python-version={interpreter.version}", "--implementation=cp", *platforms),
    )
    return _only_locked(lock, sorted(folder.glob("*.whl")))


def _only_locked(lock: Path, wheels: list[Path]) -> list[Path]:
    """Without those of an earlier lock."""
    pins = dict(re.findall(r"^([a-z0-9-]+)==([^ ;\\]+)", lock.read_text(encoding="utf-8"), re.MULTILINE))
    found = [wheel for wheel in wheels if pins.get(_name_of(wheel)) == wheel.name.split("-")[1]]
    if len(found) != len(pins):
        raise Unbuildable(f"{lock} has {len(pins)} packages, but {len(found)} wheels were found for them")
    return found


def _name_of(wheel: Path) -> str:
    return re.sub(r"[-_.]+", "-", wheel.name.partition("-")[0]).lower()


def build(root: Path, folder: Path) -> Path:
    """The project's own wheel, by the locked build backend of this environment."""
    with tempfile.TemporaryDirectory() as built:
        run(*PIP, "wheel", "--no-deps", "--no-build-isolation", "--no-index", f"--wheel-dir={built}", str(root))
        (wheel,) = Path(built).glob("*.whl")
        folder.mkdir(parents=True, exist_ok=True)
        return wheel.replace(folder / wheel.name)


def unpack(wheel: Path, packages: Path) -> None:
    """A wheel's modules in a folder of packages. Its scripts are left out: the image has one program."""
    with zipfile.ZipFile(wheel) as archive:
        for entry in archive.infolist():
            top, _, rest = entry.filename.partition("/")
            if top.endswith(".data"):
                scheme, _, name = rest.partition("/")
                if scheme not in ("purelib", "platlib"):
                    continue
                entry.filename = name
            archive.extract(entry, packages)


def installed(packages: Path) -> list[Dist]:
    """What a folder of packages has, sorted by name."""
    found = []
    for path in packages.glob("*.dist-info/METADATA"):
        head = email.parser.Parser().parsestr(path.read_text(encoding="utf-8"), headersonly=True)
        found.append(Dist(head["Name"], head["Version"], head["License-Expression"] or ""))
    return sorted(found, key=lambda dist: dist.name.lower())
