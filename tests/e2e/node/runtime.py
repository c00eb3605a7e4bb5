"""containerd in a node container: its state in the container's folder, and the images of the tests."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from tests.e2e.node.container import NodeContainer
from tests.e2e.node.image import IMAGES, PAUSE
from tests.e2e.node.machine import Machine
from tests.e2e.processes import FEWER_COLLECTIONS, Program

SOCKET = Path("/run/tessera-e2e/containerd.sock")
"""in the container's own /run; paths of sockets must be short"""
READY_S = 240.0
PODS = "10.78.0.0/24"

UNUSED = (
    # It would look for plugins in folders of the machine.
    "io.containerd.nri.v1.nri",
    "io.containerd.internal.v1.opt",
)


class Runtime:
    """The program, started and ready after `start`."""

    def __init__(self, node_container: NodeContainer, tools: Mapping[str, Path], machine: Machine) -> None:
        self._container = node_container
        self._tools = tools
        self._machine = machine
        self._folder = node_container.folder / "containerd"
        # The shim is looked for on PATH.
        path = os.pathsep.join((str(tools["containerd-shim-runc-v2"].parent), os.defpath, "/usr/sbin", "/sbin"))
        self._environ = {"PATH": path, **FEWER_COLLECTIONS}
        self.program = Program(
            "containerd",
            [str(tools["containerd"]), f"--config={self._folder / 'config.toml'}"],
            folder=node_container.logs,
            environ=self._environ,
        )

    def start(self) -> None:
        self._folder.mkdir()
        SOCKET.parent.mkdir()
        self._write_files()
        self.program.start()
        self.program.ready(lambda: self._ctr("version").returncode == 0, within_s=READY_S)
        for number, image in enumerate(IMAGES):
            archive = self._folder / f"image-{number}.tar"
            image.write(archive, self._machine.busybox)
            self.load(archive)

    def load(self, archive: Path) -> None:
        """Makes an image known to kubelet."""
        done = self._ctr("--namespace=k8s.io", "images", "import", "--local", str(archive))
        assert done.returncode == 0, done.stderr

    @cached_property
    def has_overlays(self) -> bool:
        """Whether containers can share the files of their image here; otherwise each has a copy of them."""
        trial = self._folder / "overlay"
        for name in ("lower", "upper", "work", "merged"):
            (trial / name).mkdir(parents=True)
        options = f"lowerdir={trial / 'lower'},upperdir={trial / 'upper'},workdir={trial / 'work'}"
        command = ["mount", "-t", "overlay", "overlay", "-o", options, str(trial / "merged")]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
        if done.returncode == 0:
            subprocess.run(["umount", str(trial / "merged")], stdin=subprocess.DEVNULL, check=True)
        return done.returncode == 0

    def _ctr(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self._tools["ctr"]), f"--address={SOCKET}", *arguments],
            env=self._environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )

    def _write_files(self) -> None:
        network = self._folder / "cni"
        network.mkdir()
        addresses = {
            "type": "host-local",
            "dataDir": str(self._folder / "addresses"),
            "ranges": [[{"subnet": PODS}]],
            # To the apiserver; nothing else is there.
            "routes": [{"dst": "0.0.0.0/0"}],
        }
        plugins = [{"type": "ptp", "ipam": addresses}]
        (network / "10-pods.conflist").write_text(
            json.dumps({"cniVersion": "1.0.0", "name": "pods", "plugins": plugins})
        )
        (self._folder / "config.toml").write_text("\n".join(_toml(self._configuration(network))))

    def _configuration(self, network: Path) -> dict[str, Any]:
        runc = {
            "runtime_type": "io.containerd.runc.v2",
            "options": {"BinaryName": str(self._machine.runc), "SystemdCgroup": False},
        }
        return {
            "version": 3,
            "root": str(self._folder / "root"),
            "state": "/run/tessera-e2e/containerd",
            "disabled_plugins": list(UNUSED),
            "grpc": {"address": str(SOCKET)},
            "ttrpc": {"address": f"{SOCKET}.ttrpc"},
            "plugins": {
                "io.containerd.cri.v1.images": {
                    # Plain copies of small images, where an overlay is not possible on this file system.
                    "snapshotter": "overlayfs" if self.has_overlays else "native",
                    "pinned_images": {"sandbox": PAUSE.name},
                },
                "io.containerd.cri.v1.runtime": {
                    # To be harder to kill than its parent takes CAP_SYS_RESOURCE, which root may lack in a container.
                    "restrict_oom_score_adj": True,
                    "cni": {"bin_dirs": [str(self._machine.cni)], "conf_dir": str(network)},
                    "containerd": {"default_runtime_name": "runc", "runtimes": {"runc": runc}},
                },
            },
        }


def _toml(table: Mapping[str, Any], path: tuple[str, ...] = ()) -> list[str]:
    """Values first, then the tables below; JSON writes texts, numbers and lists as TOML does."""
    lines = [f"[{'.'.join(json.dumps(name) for name in path)}]"] if path else []
    lines += [f"{name} = {json.dumps(value)}" for name, value in table.items() if not isinstance(value, dict)]
    for name, value in table.items():
        if isinstance(value, dict):
            lines += _toml(value, (*path, name))
    return lines
