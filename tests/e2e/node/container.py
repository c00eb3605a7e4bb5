"""The node container that isolates a kubelet: network, mount and pid namespaces, a control group, a temporary folder.

When the container's first process ends, the kernel ends everything else in it. Its mounts, addresses and sysctls are
never visible outside. Afterwards the control group, the temporary folder and the mount points that had to be created
are removed, also after a failure or a signal.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from tests.e2e.node import cgroups
from tests.e2e.node.machine import NAMESPACES
from tests.e2e.processes import adopt_orphans
from tests.support.fork_server import end_with_parent
from tools.kubernetes import build

FOLDER = "TESSERA_E2E_NODE"
"""environment variable that holds the container's folder, inside the container"""
ROOT = Path(__file__).resolve().parents[3]
PLACES = (
    *("/var/lib/kubelet", "/var/lib/cni", "/var/log/containers"),
    *("/usr/local/vgpu", "/var/lib/tessera", "/tmp/vgpulock"),
)
"""folders that kubelet, network plugins and the chart's agents use and that cannot be configured, or are not for a test
of the defaults: the container has its own"""
LOGS = "logs"
STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@dataclass(frozen=True)
class NodeContainer:
    """A node container: the one that this process runs in, or the one that it starts."""

    folder: Path

    @property
    def control_group(self) -> str:
        return self.folder.name

    @property
    def logs(self) -> Path:
        return self.folder / LOGS

    def place(self, name: str) -> Path:
        """What is at one of `PLACES` inside."""
        return self.folder / "places" / name.strip("/").replace("/", "-")


def current_container() -> NodeContainer | None:
    folder = os.environ.get(FOLDER)
    return NodeContainer(Path(folder)) if folder else None


class Interrupted(BaseException):
    """A signal that asks to end."""


def run_inside(*command: str) -> int:
    """Runs a command in a new node container, cleans up and returns the exit code.

    Only the logs of a failed command stay."""
    code = 0
    with ExitStack() as stack:
        stack.enter_context(_interruptible())
        node_container = NodeContainer(Path(tempfile.mkdtemp(prefix="tessera-e2e-node-")))
        stack.callback(lambda: _clear(node_container, keep_logs=code != 0))
        node_container.logs.mkdir()
        stack.enter_context(_mount_points())
        stack.enter_context(cgroups.group(node_container.control_group))
        code = _run(node_container, command)
    return code


def _run(node_container: NodeContainer, command: Sequence[str]) -> int:
    first = [sys.executable, "-m", "tests.e2e.node.container_init", *command]
    with subprocess.Popen(
        ["unshare", *NAMESPACES, *first],
        cwd=ROOT,
        env={**os.environ, FOLDER: str(node_container.folder)},
        stdin=subprocess.DEVNULL,
        preexec_fn=end_with_parent,
    ) as running:
        try:
            return running.wait()
        finally:
            # The init process ends with unshare, and everything else with the init process.
            running.kill()
            running.wait()
            _wait_for_orphans()


def _wait_for_orphans() -> None:
    with suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)


@contextmanager
def _interruptible() -> Iterator[None]:
    def stop(number: int, frame: FrameType | None) -> None:
        for each in STOPS:
            signal.signal(each, signal.SIG_IGN)
        raise Interrupted(signal.Signals(number).name)

    before = {number: signal.signal(number, stop) for number in STOPS}
    end_with_parent(signal.SIGTERM)
    adopt_orphans()
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _mount_points() -> Iterator[None]:
    """Folders for the container's mounts. Several containers may run at once: the last removes what the first had to
    make, since a folder that is removed takes another container's mount with it."""
    cache = build.cache(os.environ)
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "node-mounts.lock").open("w") as changing, (cache / "node.lock").open("a+") as using:
        fcntl.flock(changing, fcntl.LOCK_EX)
        for place in map(Path, PLACES):
            for folder in (*reversed(place.parents), place):
                if not folder.exists():
                    using.write(f"{folder}\n")
                    using.flush()
                    folder.mkdir()
        fcntl.flock(using, fcntl.LOCK_SH)
        fcntl.flock(changing, fcntl.LOCK_UN)
        try:
            yield
        finally:
            fcntl.flock(changing, fcntl.LOCK_EX)
            # Another container is still there.
            with suppress(BlockingIOError):
                fcntl.flock(using, fcntl.LOCK_EX | fcntl.LOCK_NB)
                using.seek(0)
                for made in reversed(using.read().splitlines()):
                    # Another process may use it by now.
                    with suppress(OSError):
                        Path(made).rmdir()
                using.truncate(0)


def _clear(node_container: NodeContainer, *, keep_logs: bool) -> None:
    if not keep_logs:
        shutil.rmtree(node_container.folder)
        return
    for path in node_container.folder.iterdir():
        if path != node_container.logs:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    print(f"logs of this run: {node_container.logs}", flush=True)
