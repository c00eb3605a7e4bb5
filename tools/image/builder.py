"""Puts the image together: the distribution's packages, the locked wheels, and Tessera, each a layer of its own.

The first two layers stay in the cache until their packages, the lock or this code change. What the Dockerfile makes
with a container engine has the same wheels, paths, user and command.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import subprocess
import tempfile
import tomllib
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.image import debian, oci, sbom, wheels
from tools.image.debian import Interpreter, Package, Unbuildable

ROOT = Path(__file__).resolve().parents[2]
LOCK = ROOT / "requirements" / "runtime.txt"
HOME = "opt/tessera"
SBOM = f"{HOME}/share/sbom.cdx.json"
USER = 65532
"""as in the Dockerfile; the node agent needs root, and its DaemonSet says so"""
OLDEST_PYTHON = (3, 11)

ACCOUNTS = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/bin/false\n"
    f"tessera:x:{USER}:{USER}:Tessera:/nonexistent:/bin/false\n",
    "etc/group": f"root:x:0:\ntty:x:5:\nnogroup:x:65534:\ntessera:x:{USER}:\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
}
PROGRAM = """\
#!/{home}/bin/python
import sys

from tessera.cli import main

sys.exit(main())
"""
CONFIG: Mapping[str, Any] = {
    "User": f"{USER}:{USER}",
    "Env": [
        f"PATH=/{HOME}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "PYTHONUNBUFFERED=1",
        "PYTHONDONTWRITEBYTECODE=1",
    ],
    "Entrypoint": ["tessera"],
    "Cmd": ["--help"],
}

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Built:
    """An image that was written."""

    path: Path
    name: str
    digest: str
    labels: Mapping[str, str]
    sbom: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Source:
    """Where the image's content comes from, for its labels."""

    version: str
    revision: str = ""
    created: str = ""
    """time of the commit"""
    url: str = ""

    def labels(self) -> dict[str, str]:
        project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        found = {
            "title": "Tessera",
            "description": project["description"],
            "licenses": project["license"],
            "version": self.version,
            "revision": self.revision,
            "created": self.created,
            "source": self.url,
        }
        return {f"org.opencontainers.image.{key}": value for key, value in found.items() if value}


def read_source(environ: Mapping[str, str] = os.environ) -> Source:
    """From the repository; IMAGE_SOURCE names another address than that of the project."""
    text = (ROOT / "src/tessera/__init__.py").read_text(encoding="utf-8")
    version = re.search(r'^__version__ = "([^"]+)"', text, re.MULTILINE)
    if version is None:
        raise Unbuildable("src/tessera/__init__.py has no __version__")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    urls = project.get("urls", {})
    url = environ.get("IMAGE_SOURCE") or urls.get("Source") or urls.get("Repository", "")
    revision, created = _git("rev-parse", "HEAD"), _git("show", "--no-patch", "--format=%cI", "HEAD")
    if revision and _git("status", "--porcelain", "--", "src", "requirements", "pyproject.toml"):
        revision += "-dirty"
    return Source(version[1], revision, created, url)


def _git(*arguments: str) -> str:
    """Empty where this is no repository."""
    with suppress(FileNotFoundError):
        done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else ""
    return ""


def build(path: Path, *, cache: Path, name: str = "", tell: Tell) -> Built:
    """Writes the image as an OCI archive; raises Unbuildable. One build at a time uses a cache."""
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "build.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return _build(path, cache=cache, name=name, tell=tell)


def _build(path: Path, *, cache: Path, name: str, tell: Tell) -> Built:
    source = read_source()
    name = name or f"docker.io/library/tessera:{source.version}"
    packages = debian.download(cache / "packages")
    tell(f"base: {len(packages)} packages")
    code = "".join(sorted(file.read_text(encoding="utf-8") for file in Path(__file__).parent.glob("*.py")))
    base_key = _key(code, *(f"{package.name}={package.version}" for package in packages))
    base, base_layer = _cached(
        cache / f"base-{base_key}", "packages of the distribution", lambda root: _make_base(root, packages)
    )
    interpreter = Interpreter(base)
    if tuple(map(int, interpreter.version.split("."))) < OLDEST_PYTHON:
        raise Unbuildable(f"this distribution has Python {interpreter.version}, but Tessera needs 3.11 or later")
    lock_key = _key(base_key, LOCK.read_text(encoding="utf-8"))
    locked, locked_layer = _cached(
        cache / f"wheels-{lock_key}", "the locked wheels", lambda root: _make_wheels(root, interpreter, cache)
    )
    dists = wheels.installed(locked / _packages(interpreter))
    tell(f"wheels: {len(dists)}, for Python {interpreter.version}")
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        top = Path(folder)
        wheels.unpack(wheels.build(ROOT, cache / "wheels"), top / _packages(interpreter))
        (product,) = wheels.installed(top / _packages(interpreter))
        bill = sbom.document(product, dists=dists, packages=packages, distribution=_distribution(base))
        _write(top / SBOM, json.dumps(bill, indent=1) + "\n")
        _make_program(top, interpreter)
        found = interpreter.run(
            *("-c", "import sys; from tessera.cli import main; sys.exit(main(['--version']))"),
            path=[top / _packages(interpreter), locked / _packages(interpreter)],
        )
        tell(found.strip())
        layers = [base_layer, locked_layer, oci.layer(top, "Tessera")]
    labels = source.labels()
    digest = oci.write(
        path,
        name,
        layers,
        architecture=debian.architecture(),
        config={**CONFIG, "Labels": labels},
        created=source.created,
    )
    size = sum(len(layer.content) for layer in layers) / 2**20
    tell(f"{path}: {name}, {size:.0f} MiB compressed, {digest}")
    return Built(path, name, digest, labels, bill)


def _make_base(root: Path, packages: Iterable[Package]) -> None:
    debian.unpack(list(packages), root)
    for name, text in ACCOUNTS.items():
        _write(root / name, text)
    for folder in ("tmp", "var/tmp", "proc", "sys", "dev", "run", "etc/ssl/certs"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    # Debian compiles it when it installs it.
    Interpreter(root).compile(root, f"usr/lib/python{Interpreter(root).version}")


def _make_wheels(root: Path, interpreter: Interpreter, cache: Path) -> None:
    for wheel in wheels.download(LOCK, interpreter, cache / "wheels"):
        wheels.unpack(wheel, root / _packages(interpreter))
    interpreter.compile(root, _packages(interpreter))


def _make_program(top: Path, interpreter: Interpreter) -> None:
    """A virtual environment with one program."""
    interpreter.compile(top, _packages(interpreter))
    _write(top / HOME / "pyvenv.cfg", f"home = /usr/bin\nversion = {interpreter.version}\n")
    program = top / HOME / "bin" / "tessera"
    _write(program, PROGRAM.format(home=HOME))
    program.chmod(0o755)
    (program.parent / "python").symlink_to(f"/usr/bin/python{interpreter.version}")


def _packages(interpreter: Interpreter) -> str:
    return f"{HOME}/lib/python{interpreter.version}/site-packages"


def _distribution(root: Path) -> str:
    text = (root / "usr/lib/os-release").read_text(encoding="utf-8")
    found = re.search(r'^ID="?([a-z]+)', text, re.MULTILINE)
    return found[1] if found else "debian"


def _cached(folder: Path, comment: str, make: Callable[[Path], None]) -> tuple[Path, oci.Layer]:
    """The folder of a layer's files and the layer; made once."""
    packed, diff_id = folder / "layer.tar.gz", folder / "diff-id"
    if not diff_id.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, ignore_cleanup_errors=True) as name:
            partial = Path(name) / folder.name
            (partial / "root").mkdir(parents=True)
            make(partial / "root")
            layer = oci.layer(partial / "root", comment)
            (partial / packed.name).write_bytes(layer.content)
            (partial / diff_id.name).write_text(layer.diff_id, encoding="utf-8")
            # Another build may have been faster.
            with suppress(OSError):
                partial.rename(folder)
    return folder / "root", oci.Layer(packed.read_bytes(), diff_id.read_text(encoding="utf-8"), comment)


def _key(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
