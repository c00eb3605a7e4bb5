"""The kubectl plugin for krew: an archive per platform that needs no Python, and the manifest that names them.

    python -m tools.krew archive DIST     make DIST/kubectl-tessera_<os>_<arch>.tar.gz for this machine
    python -m tools.krew manifest DIST    print packaging/krew/tessera.yaml for this version and the archives in DIST

The archive holds PyInstaller's folder: an interpreter, the locked packages and Tessera without its services. It needs
requirements/runtime.txt, requirements/plugin.txt and Tessera's wheel to be installed in the environment that runs it.
"""

from __future__ import annotations

import argparse
import hashlib
import platform
import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from tessera import __version__

ROOT = Path(__file__).resolve().parents[1]
TEMPLATE = ROOT / "packaging" / "krew" / "tessera.yaml"
NAME = "kubectl-tessera"
PROGRAM = "from tessera.cli import run_plugin\n\nrun_plugin()\n"
FOUND_BY_NAME = ("tessera.cli", "tessera.vendors")
"""packages whose modules are imported by name, which PyInstaller does not see"""
UNUSED = ("grpc", "pynvml")
"""modules that only services use"""
ARCHIVE = re.compile(r"(/VERSION/(\S+)\n +sha256: )SHA256")
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "arm64": "arm64"}


class KrewError(Exception):
    """What is missing, for people."""


def archive_name(system: str, machine: str) -> str:
    """The name of the archive for an operating system and a machine, as Python calls them."""
    arch = ARCHITECTURES.get(machine)
    if arch is None or system not in ("Linux", "Darwin"):
        raise KrewError(f"no archive is made for {system} on {machine}")
    return f"{NAME}_{system.lower()}_{arch}.tar.gz"


def make_archive(dist: Path) -> Path:
    """Make the archive for this machine."""
    path = dist / archive_name(platform.system(), platform.machine())
    dist.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as text:
        work = Path(text)
        (work / "plugin.py").write_text(PROGRAM, encoding="utf-8")
        subprocess.run(
            [
                *(sys.executable, "-m", "PyInstaller", "--noconfirm", "--log-level=WARN", f"--name={NAME}"),
                *(f"--collect-submodules={name}" for name in FOUND_BY_NAME),
                *(f"--exclude-module={name}" for name in UNUSED),
                *(f"--distpath={work / 'dist'}", f"--workpath={work}", f"--specpath={work}", str(work / "plugin.py")),
            ],
            check=True,
        )
        made = work / "dist" / NAME / NAME
        said = subprocess.run([made, "--version"], check=True, capture_output=True, text=True).stdout.strip()
        if said != f"tessera {__version__}":
            raise KrewError(f"the program says {said!r}, not version {__version__}")
        with tarfile.open(path, "w:gz") as archive:
            archive.add(ROOT / "LICENSE", arcname=f"{NAME}/LICENSE")
            archive.add(work / "dist" / NAME, arcname=NAME)
    return path


def manifest(dist: Path) -> str:
    """The manifest of this version, with the checksums of its archives."""

    def with_sum(found: re.Match[str]) -> str:
        path = dist / found[2]
        if not path.exists():
            raise KrewError(f"{path} is missing")
        return found[1] + hashlib.sha256(path.read_bytes()).hexdigest()

    filled = ARCHIVE.sub(with_sum, TEMPLATE.read_text(encoding="utf-8"))
    return "".join(line for line in filled.splitlines(keepends=True) if not line.startswith("#")).replace(
        "VERSION", f"v{__version__}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description="Makes the kubectl plugin for krew.")
    parser.add_argument("what", choices=["archive", "manifest"])
    parser.add_argument("dist", type=Path)
    given = parser.parse_args()
    try:
        print(make_archive(given.dist) if given.what == "archive" else manifest(given.dist).rstrip())
    except KrewError as error:
        print(f"krew: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
