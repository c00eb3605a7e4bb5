"""A room of its own for a kubelet: network, mount and pid namespaces, one control group, one temporary folder.

What ends the room ends everything in it, whatever it is and however it was started: the kernel does that with the
room's first process. Mounts, addresses and sysctls were never seen outside. Afterwards the control group, the
temporary folder and the places that had to be there for mounts are removed, also after a failure and after a signal.
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
from tests.e2e.processes import adopt_orphans, end_with_parent
from tools.kubernetes import build

FOLDER = "TESSERA_E2E_NODE"
"""variable that names the room's folder to those who are in it"""
ROOT = Path(__file__).resolve().parents[3]
PLACES = ("/var/lib/kubelet", "/var/lib/cni", "/var/log/containers")
"""folders that kubelet and network plugins use and that cannot be configured: in the room they are the room's own"""
LOGS = "logs"
STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@dataclass(frozen=True)
class Room:
    """The one that this process is in."""

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


def this_room() -> Room | None:
    folder = os.environ.get(FOLDER)
    return Room(Path(folder)) if folder else None


class Interrupted(BaseException):
    """A signal that asks to end."""


def run_inside(*command: str) -> int:
    """Run a command in a new room, wait for its end, and clean up; its exit code.

    Only logs stay, and only where it failed by itself."""
    code = 0
    with ExitStack() as stack:
        stack.enter_context(_one_at_a_time())
        stack.enter_context(_interruptible())
        room = Room(Path(tempfile.mkdtemp(prefix="tessera-e2e-node-")))
        stack.callback(lambda: _clear(room, keep_logs=code != 0))
        room.logs.mkdir()
        stack.enter_context(_mount_points())
        stack.enter_context(cgroups.group(room.control_group))
        code = _run(room, command)
    return code


def _run(room: Room, command: Sequence[str]) -> int:
    first = [sys.executable, "-m", "tests.e2e.node.container_init", *command]
    with subprocess.Popen(
        ["unshare", *NAMESPACES, *first],
        cwd=ROOT,
        env={**os.environ, FOLDER: str(room.folder)},
        stdin=subprocess.DEVNULL,
        preexec_fn=end_with_parent,
    ) as running:
        try:
            return running.wait()
        finally:
            # With unshare goes the first process, and with that one everything else. It is ours when unshare is gone.
            running.kill()
            running.wait()
            _wait_for_orphans()


def _wait_for_orphans() -> None:
    with suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Whoever removes a place takes it from another room that has mounted something there."""
    folder = build.cache(os.environ)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "node.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


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
    made: list[Path] = []
    try:
        for place in map(Path, PLACES):
            for folder in (*reversed(place.parents), place):
                if not folder.exists():
                    folder.mkdir()
                    made.append(folder)
        yield
    finally:
        for folder in reversed(made):
            # Somebody else may use it by now.
            with suppress(OSError):
                folder.rmdir()


def _clear(room: Room, *, keep_logs: bool) -> None:
    if not keep_logs:
        shutil.rmtree(room.folder)
        return
    for path in room.folder.iterdir():
        if path != room.logs:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    print(f"logs of this run: {room.logs}", flush=True)
