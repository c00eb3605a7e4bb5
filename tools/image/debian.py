"""The base of the image: an interpreter and the libraries it links, from packages of this machine's Debian or Ubuntu.

apt resolves the packages against a system that has none, downloads them and checks them against the signed index.
They are unpacked, and nothing of them is executed: no maintainer script runs, so neither root nor a chroot is needed.
"""

from __future__ import annotations

import copy
import re
import shutil
import subprocess
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOTS = ("python3-minimal", "libpython3-stdlib", "libstdc++6", "libc-bin", "base-files", "busybox-static")
"""the distribution's interpreter, what wheels for Linux expect of a system, and a shell for scripts of the chart"""
APPLETS = ("sh", "cat", "ls", "sleep", "env", "id", "ps", "wget")
"""links to busybox: for scripts of the chart, and to look around in a running container"""

# Only maintainer scripts use these. To apt they are there already, and so they and what they need stay out.
STATUS = """\
Package: dpkg
Status: install ok installed
Version: 9999
Architecture: {architecture}
Maintainer: none
Provides: awk, install-info
Description: stands for what only maintainer scripts use

"""
MERGED = ("bin", "lib", "lib32", "lib64", "libx32", "sbin")
"""top folders that are links into /usr, in every release that is supported; packages may still name them"""
LEFT_OUT = re.compile(
    r"usr/share/(?!doc/[^/]+/copyright$)(doc|man|info|lintian|locale|bug|gcc|menu|pixmaps|applications)/"
    r"|usr/lib/python3[^/]*/(idlelib|lib2to3|pydoc_data|test|turtledemo|tkinter|ensurepip)/"
    r"|usr/share/python3?/|usr/lib/(valgrind|mime)/|usr/lib/[^/]+/gconv/|var/lib/dpkg/"
)
"""manuals, translations, tables of C's character sets, and parts of the standard library that no service uses; licences
stay"""


class Unbuildable(Exception):
    """The image cannot be built here; the text says why."""


@dataclass(frozen=True, slots=True)
class Package:
    """A package of the distribution, downloaded."""

    name: str
    version: str
    architecture: str
    file: Path

    def control(self) -> str:
        """Its entry for the list of installed packages."""
        return run("dpkg-deb", "--field", str(self.file))


def run(*command: str, folder: Path | None = None) -> str:
    """The output of one command; raises Unbuildable."""
    try:
        done = subprocess.run(
            command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
    except FileNotFoundError as error:
        raise Unbuildable(f"no {command[0]} here, and the image is made of Debian's or Ubuntu's packages") from error
    if done.returncode != 0:
        raise Unbuildable(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}".rstrip())
    return done.stdout


def architecture() -> str:
    """As Debian and OCI call it."""
    return run("dpkg", "--print-architecture").strip()


def download(folder: Path) -> list[Package]:
    """All packages of the base, sorted by name. Those that are in the folder already are not loaded again."""
    folder.mkdir(parents=True, exist_ok=True)
    status = folder / "status"
    status.write_text(STATUS.format(architecture=architecture()), encoding="utf-8")
    wanted = _resolve(status)
    missing = [f"{name}={version}" for name, version, file in wanted if not (folder / file).exists()]
    if missing:
        run("apt-get", "-o", "APT::Sandbox::User=root", "--quiet", "download", *missing, folder=folder)
    found = [
        Package(name, version, (folder / file).stem.rpartition("_")[2], folder / file) for name, version, file in wanted
    ]
    return sorted(found, key=lambda package: package.name)


def _resolve(status: Path) -> list[tuple[str, str, str]]:
    """Name, version and file name of each."""
    said = run(
        *("apt-get", "-o", f"Dir::State::status={status}", "-o", "Debug::NoLocking=1", "--print-uris"),
        *("--quiet=2", "--yes", "--no-install-recommends", "install", *ROOTS),
    )
    files = re.findall(r"^'[^']+' (\S+[.]deb) ", said, re.MULTILINE)
    parts = [file.removesuffix(".deb").split("_") for file in files]
    return [(name, version.replace("%3a", ":"), file) for (name, version, _), file in zip(parts, files, strict=True)]


def unpack(packages: Sequence[Package], root: Path) -> None:
    """The packages' files below an empty folder, with links for the merged /usr and busybox's applets."""
    for package in packages:
        command = ["dpkg-deb", "--fsys-tarfile", str(package.file)]
        with (
            subprocess.Popen(command, stdout=subprocess.PIPE) as unpacking,
            tarfile.open(fileobj=unpacking.stdout, mode="r|") as archive,
        ):
            # Set here, because not every Python 3.11 knows filters by name. apt has checked the signatures.
            archive.extraction_filter = lambda member, _: member
            archive.extractall(root, members=chosen_members(archive))
        if unpacking.returncode != 0:
            raise Unbuildable(f"{package.file} cannot be unpacked")
        entry = root / "var/lib/dpkg/status.d" / package.name
        entry.parent.mkdir(parents=True, exist_ok=True)
        # Where scanners look for packages of images that have no dpkg.
        entry.write_text(package.control(), encoding="utf-8")
    for name in MERGED:
        if (root / "usr" / name).is_dir():
            (root / name).symlink_to(f"usr/{name}")
    busybox = next(path for path in (root / "usr/bin/busybox", root / "usr/sbin/busybox") if path.exists())
    for applet in APPLETS:
        link = root / "usr/bin" / applet
        if not link.exists():
            link.symlink_to(f"/{busybox.relative_to(root)}")


def chosen_members(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """What is unpacked of a package, in the places of a merged /usr."""
    for member in archive:
        name = _merged(member.name.removeprefix(".").strip("/"))
        if name and not LEFT_OUT.match(f"{name}/" if member.isdir() else name):
            chosen = copy.copy(member)
            chosen.name = name
            if member.islnk():
                chosen.linkname = _merged(member.linkname.removeprefix("./"))
            yield chosen


def _merged(name: str) -> str:
    return f"usr/{name}" if name.partition("/")[0] in MERGED else name


@dataclass(frozen=True, slots=True)
class Interpreter:
    """The base's own Python. It runs here through the base's own loader and libraries, without a chroot."""

    root: Path

    @property
    def version(self) -> str:
        """Major and minor: 3.11."""
        return (self.root / "usr/bin/python3").readlink().name.removeprefix("python")

    @property
    def glibc(self) -> tuple[int, int]:
        text = (self.root / "var/lib/dpkg/status.d/libc6").read_text(encoding="utf-8")
        found = re.search(r"^Version: (\d+)[.](\d+)", text, re.MULTILINE)
        if found is None:
            raise Unbuildable("the package libc6 has no version")
        return int(found[1]), int(found[2])

    def run(self, *arguments: str, path: Sequence[Path] = ()) -> str:
        loader = next((self.root / "usr/lib").glob("*/ld-linux-*.so.*"))
        libraries = [str(loader.parent), str(self.root / "usr/lib")]
        env = shutil.which("env") or "env"
        return run(
            *(env, "-i", f"PYTHONHOME={self.root / 'usr'}", "PYTHONHASHSEED=0", "PYTHONDONTWRITEBYTECODE=1"),
            *((f"PYTHONPATH={':'.join(map(str, path))}",) if path else ()),
            *(str(loader), "--library-path", ":".join(libraries), str(self.root / f"usr/bin/python{self.version}")),
            *arguments,
        )

    def compile(self, root: Path, folder: str) -> None:
        """Byte code for all modules below a folder of a layer, valid whatever times the files have."""
        self.run(
            *("-m", "compileall", "-q", "-j", "0", "--invalidation-mode", "unchecked-hash"),
            *("-s", str(root), "-p", "/", str(root / folder)),
        )
