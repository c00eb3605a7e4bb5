"""Finds or builds the programs of a real Kubernetes cluster, Helm and Prometheus, for the end-to-end tests.

    python tools/kubernetes/build.py [NAME...]      make sure that they are there, and say where

Looked for in KUBEBUILDER_ASSETS, on PATH and in the cache; built into the cache from the Go modules beside this file,
once for each version. The three programs that speak to each other come from one place: their versions must agree.
Nothing is installed, and nothing outside the cache (and Go's own) is written.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import re
import shutil
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
TOLD_EVERY_S = 20.0
"""between two progress messages"""
ERROR_LINES = 15
"""of the output of a failed build"""


@dataclass(frozen=True)
class Module:
    """A Go module of tools: its folder here, the module that gives the version, and where results stay in the cache."""

    folder: str
    requires: str
    family: str
    tags: str = ""
    """of the build"""

    @property
    def version(self) -> str:
        return self.version_of(self.requires)

    def version_of(self, required: str) -> str:
        """The version of any module that this one requires."""
        text = (HERE / self.folder / "go.mod").read_text()
        found = re.search(rf"^\s*(?:require )?{re.escape(required)} (v\S+)", text, re.MULTILINE)
        if found is None:
            raise LookupError(f"{self.folder}/go.mod does not require {required}")
        return found[1]


CONTROL_PLANE = Module("control-plane", "k8s.io/kubernetes", "kubernetes")
ETCD = Module("etcd", "go.etcd.io/etcd/server/v3", "etcd")
HELM = Module("helm", "helm.sh/helm/v3", "helm")
# Two file systems that need C libraries and that nothing here uses.
CONTAINERD = Module("containerd", "github.com/containerd/containerd/v2", "containerd", tags="no_btrfs,no_zfs")
# Nothing here needs to be discovered, and the clients of all clouds take minutes to build.
PROMETHEUS = Module("prometheus", "github.com/prometheus/prometheus", "prometheus", tags="remove_all_sd")


@dataclass(frozen=True)
class Tool:
    """A program, and the Go package that it is built from."""

    name: str
    module: Module
    package: str

    def cached(self, environ: Mapping[str, str]) -> Path:
        return cache(environ) / self.module.family / self.module.version / self.name


TOOLS = {
    tool.name: tool
    for tool in (
        Tool("etcd", ETCD, "go.etcd.io/etcd/server/v3"),
        Tool("kube-apiserver", CONTROL_PLANE, "k8s.io/kubernetes/cmd/kube-apiserver"),
        Tool("kube-controller-manager", CONTROL_PLANE, "k8s.io/kubernetes/cmd/kube-controller-manager"),
        Tool("kube-scheduler", CONTROL_PLANE, "k8s.io/kubernetes/cmd/kube-scheduler"),
        Tool("kubectl", CONTROL_PLANE, "k8s.io/kubernetes/cmd/kubectl"),
        Tool("helm", HELM, "helm.sh/helm/v3/cmd/helm"),
        Tool("kubelet", CONTROL_PLANE, "k8s.io/kubernetes/cmd/kubelet"),
        *(
            Tool(name, CONTAINERD, f"github.com/containerd/containerd/v2/cmd/{name}")
            for name in ("containerd", "containerd-shim-runc-v2", "ctr")
        ),
        *(
            Tool(name, PROMETHEUS, f"github.com/prometheus/prometheus/cmd/{name}")
            for name in ("prometheus", "promtool")
        ),
    )
}
NODE = ("kubelet", *(name for name, tool in TOOLS.items() if tool.module is CONTAINERD))
"""what a node needs. Those on PATH belong to the machine itself, in any version, and are not used"""
PLANE = tuple(name for name, tool in TOOLS.items() if tool.module in (ETCD, CONTROL_PLANE) and name not in NODE)
"""what a cluster needs; only tests of the chart need Helm or Prometheus, and the others run without them"""
TOGETHER = frozenset({"kube-apiserver", "kube-controller-manager", "kube-scheduler"})


class Missing(Exception):
    """Programs are missing and cannot be built; the text says what to do."""

    def __init__(self, names: Sequence[str], folder: Path) -> None:
        super().__init__(
            f"{', '.join(names)}: not in KUBEBUILDER_ASSETS, on PATH or in {folder}, and there is no Go to build them; "
            "install Go 1.26 or later, or name a folder that has them in KUBEBUILDER_ASSETS"
        )
        self.names = tuple(names)


class BuildFailed(Exception):
    """Go failed to build a program; the text is its output."""


Tell = Callable[[str], None]


def cache(environ: Mapping[str, str]) -> Path:
    """The folder of the results."""
    if environ.get("TESSERA_CACHE"):
        return Path(environ["TESSERA_CACHE"])
    return Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tessera"


def find(names: Sequence[str] = PLANE, environ: Mapping[str, str] = os.environ) -> dict[str, Path]:
    """The programs that exist already."""
    places: list[Callable[[str], Path | None]] = [
        lambda name: _in_folder(environ.get("KUBEBUILDER_ASSETS", ""), name),
        lambda name: None if name in NODE else _on_path(environ.get("PATH", ""), name),
        lambda name: _program(TOOLS[name].cached(environ)),
    ]
    found: dict[str, Path] = {}
    together = [name for name in names if name in TOGETHER]
    for place in places:
        here = {name: path for name in names if (path := place(name)) is not None}
        if not all(name in here for name in together):
            here = {name: path for name, path in here.items() if name not in TOGETHER}
        found = here | found
    return found


def ensure(names: Sequence[str] = PLANE, *, tell: Tell, environ: Mapping[str, str] = os.environ) -> dict[str, Path]:
    """All programs, built if missing; raises Missing or BuildFailed."""
    found = find(names, environ)
    if all(name in found for name in names):
        return found
    if shutil.which("go", path=environ.get("PATH")) is None:
        raise Missing([name for name in names if name not in found], cache(environ))
    with _alone(cache(environ)):
        # The previous holder of the lock may have built them.
        found = find(names, environ)
        for name in names:
            if name not in found:
                _build(TOOLS[name], tell=tell, environ=environ)
    return find(names, environ)


def _build(tool: Tool, *, tell: Tell, environ: Mapping[str, str]) -> None:
    version, target = tool.module.version, tool.cached(environ)
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f"{target.name}.{os.getpid()}.part")
    tell(f"{tool.name} {version}: building from its Go module, once (minutes where Go has not built any of it before)")
    command = ["go", "build", "-v", "-buildvcs=false", "-trimpath", f"-ldflags={_stamps(tool.module)}"]
    command += [f"-tags={tool.module.tags}"] if tool.module.tags else []
    started = told = time.monotonic()
    last: deque[str] = deque(maxlen=ERROR_LINES)
    packages = 0
    try:
        with subprocess.Popen(
            [*command, "-o", str(partial), tool.package],
            cwd=HERE / tool.module.folder,
            env={**environ, "CGO_ENABLED": "0", "GOWORK": "off"},
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        ) as going:
            assert going.stderr is not None
            for line in going.stderr:
                last.append(line.rstrip())
                packages += 1
                if time.monotonic() - told >= TOLD_EVERY_S:
                    told = time.monotonic()
                    tell(f"{tool.name} {version}: {packages} packages in {told - started:.0f} s, at {last[-1]}")
        if going.returncode != 0:
            raise BuildFailed(f"go build {tool.package} in {HERE / tool.module.folder} failed:\n" + "\n".join(last))
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
    tell(f"{tool.name} {version}: {target}, {time.monotonic() - started:.0f} s")


def _stamps(module: Module) -> str:
    """The programs exchange their versions, and refuse v0.0.0."""
    version = module.version
    major, minor, _ = version.removeprefix("v").split(".", 2)
    packages = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
    values = {
        f"{package}.{key}": text
        for package in packages
        for key, text in (("gitVersion", version), ("gitMajor", major), ("gitMinor", minor))
    }
    if module is HELM:
        # The default version of Kubernetes for which helm renders and checks charts.
        minor = module.version_of("k8s.io/client-go").split(".")[1]
        values = {"helm.sh/helm/v3/internal/version.version": version}
        for package in ("helm.sh/helm/v3/pkg/chartutil", "helm.sh/helm/v3/pkg/lint/rules"):
            values |= {f"{package}.k8sVersionMajor": "1", f"{package}.k8sVersionMinor": minor}
    if module is CONTAINERD:
        values = {"github.com/containerd/containerd/v2/version.Version": version}
    return " ".join(["-s", "-w", *(f"-X {name}={text}" for name, text in values.items())])


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One build at a time on this machine, to save memory."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "build.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"waiting for another build, which holds {lock.name}", file=sys.stderr)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _in_folder(folder: str, name: str) -> Path | None:
    return _program(Path(folder) / name) if folder else None


def _on_path(path: str, name: str) -> Path | None:
    found = shutil.which(name, path=path) if path else None
    return Path(found) if found else None


def _program(path: Path) -> Path | None:
    return path if path.is_file() and os.access(path, os.X_OK) else None


def main() -> int:
    parser = argparse.ArgumentParser(description="Finds or builds the programs of a Kubernetes cluster, and Helm.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(TOOLS)}; all where none is given")
    names = parser.parse_args().names or list(TOOLS)
    unknown = [name for name in names if name not in TOOLS]
    if unknown:
        parser.error(f"{', '.join(unknown)}: not one of {', '.join(TOOLS)}")
    try:
        found = ensure(names, tell=lambda text: print(text, flush=True))
    except (Missing, BuildFailed) as error:
        print(f"{Path(sys.argv[0]).name}: {error}", file=sys.stderr)
        return 1
    for name in names:
        print(f"{name:<24} {found[name]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
