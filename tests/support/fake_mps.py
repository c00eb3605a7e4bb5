"""A stand-in for NVIDIA's MPS control program: real processes, with their state in the folder of pipes.

Dozens of them start in one test, so they import little: the state is a literal, not JSON.

It answers as the real one was seen to (driver 580): refusals are texts with exit status 0, a server's limits can be
changed for later clients, `quit` with clients and everything after it hangs, a new daemon knows nothing of the old one.
"""

from __future__ import annotations

import ast
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tessera.host.cards import CardError, CardFacts, ComputeMode
from tessera.node import reconciler
from tessera.node.modes.mps import mode
from tessera.node.modes.mps.control import Limits, MpsProgram

A = "GPU-11111111-1111-1111-1111-111111111111"
B = "GPU-22222222-2222-2222-2222-222222222222"
GIB = 1024**3
PATIENT_S = 60.0
"""a deadline that only a fault reaches, on a slow machine too"""

SCRIPT = """#!{python} -ISE
import os, sys, time
FOREVER = 1e6
pipe = os.environ["CUDA_MPS_PIPE_DIRECTORY"]
state, pidfile = pipe + "/state", pipe + "/nvidia-cuda-mps-control.pid"
def scripted(name):
    return os.path.exists("{script}/" + name)
def alive():
    try:
        words = open("/proc/" + open(pidfile).read() + "/stat").read().rpartition(")")[2].split()
        return words[0] not in "ZX"
    except OSError:
        return False
def save(found):
    with open(state + ".new", "w") as file:
        file.write(repr(found))
    os.rename(state + ".new", state)
if sys.argv[1:]:
    if sys.argv[1:] != ["-f", "-multiuser-server"]:
        sys.exit("unknown option")
    with open("{script}/started", "a") as file:
        file.write(f"{{os.getpid()}}\\n")
    if scripted("no-start"):
        sys.exit("no CUDA-capable device is detected")
    if alive():
        sys.exit("An instance of this daemon is already running")
    names = "CUDA_VISIBLE_DEVICES", "CUDA_MPS_LOG_DIRECTORY", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
    save({{"environ": {{name: os.environ.get(name) for name in names}}, "memory": {{}}, "cores": 100, "servers": {{}}}})
    with open(pidfile, "w") as file:
        file.write(str(os.getpid()))
    time.sleep(FOREVER)
words = sys.stdin.readline().split()
with open("{script}/asked", "a") as file:
    file.write(" ".join(words) + "\\n")
if scripted("deaf") or scripted("deaf-to-" + words[0]):
    time.sleep(FOREVER)
if scripted("says-" + words[0]):
    print(open("{script}/says-" + words[0]).read())
    sys.exit()
if not alive():
    print("Cannot find MPS control daemon process")
    sys.exit(1)
found = eval(open(state).read())
servers = found["servers"]
def server():
    if words[1] not in servers:
        print(f"Server {{words[1]}} not found")
        sys.exit()
    return servers[words[1]]
match words[0]:
    case "get_server_list":
        print("\\n".join(servers))
    case "get_client_list":
        print("\\n".join(server()["clients"]))
    case "set_default_device_pinned_mem_limit":
        found["memory"][words[1]] = words[2]
    case "set_default_active_thread_percentage":
        found["cores"] = int(words[1])
        print(float(words[1]))
    case "set_device_pinned_mem_limit":
        server()["memory"][words[2]] = words[3]
    case "set_active_thread_percentage":
        server()["cores"] = int(words[2])
        print(float(words[2]))
    case "quit":
        if any(each["clients"] for each in servers.values()):
            open("{script}/deaf", "w").close()
            time.sleep(FOREVER)
        if not scripted("stubborn"):
            os.kill(int(open(pidfile).read()), {sigterm:d})
            while alive():
                time.sleep(0.001)
    case _:
        print(f'Unknown command "{{words[0]}}"')
save(found)
"""


def program_text(python: str, script: Path) -> str:
    """The program, for this interpreter; `script` is the folder that says what it does."""
    return SCRIPT.format(python=python, script=script, sigterm=signal.SIGTERM)


class FakeMps:
    """One node's program, and what became of it. `close` ends the daemons it began."""

    def __init__(self, folder: Path, root: Path) -> None:
        self.root = root
        self._script = folder / "script"
        self._script.mkdir()
        program = self._path = folder / "mps-control"
        program.write_text(program_text(sys.executable, self._script))
        program.chmod(0o755)
        self.program = MpsProgram((str(program),), {"PATH": os.environ["PATH"], "CUDA_VISIBLE_DEVICES": "7"}, PATIENT_S)

    def script(self, name: str, text: str = "") -> None:
        """Begin a fault: `deaf`, `deaf-to-<command>`, `says-<command>`, `no-start`, `stubborn`."""
        (self._script / name).write_text(text)

    def heal(self, name: str) -> None:
        (self._script / name).unlink()

    def state(self, uuid: str = A) -> dict[str, Any]:
        found: dict[str, Any] = ast.literal_eval((self.root / uuid / "pipe" / "state").read_text())
        return found

    def default(self, uuid: str = A) -> tuple[str | None, int]:
        found = self.state(uuid)
        return found["memory"].get(uuid), found["cores"]

    def serve(self, *clients: int, uuid: str = A, server: int = 100) -> None:
        """A server begins, with the limits that are the daemon's now, or gets other clients."""
        found = self.state(uuid)
        before = found["servers"].get(str(server), {"memory": found["memory"], "cores": found["cores"]})
        found["servers"][str(server)] = {**before, "clients": [str(each) for each in clients]}
        (self.root / uuid / "pipe" / "state").write_text(repr(found))

    def server_limits(self, uuid: str = A, server: int = 100) -> tuple[str | None, int]:
        found = self.state(uuid)["servers"][str(server)]
        return found["memory"].get(uuid), found["cores"]

    def asked(self) -> list[str]:
        return (self._script / "asked").read_text().split("\n")[:-1]

    def forget_asked(self) -> None:
        (self._script / "asked").write_text("")

    def started(self) -> list[int]:
        """Process ids of all daemons that were started."""
        file = self._script / "started"
        return [int(each) for each in file.read_text().split()] if file.exists() else []

    def running(self) -> list[int]:
        return [pid for pid in self.started() if is_running(pid)]

    def kill(self) -> None:
        """All daemons end at once."""
        for pid in self.running():
            os.kill(pid, signal.SIGKILL)

    def close(self) -> None:
        # A daemon that was started a moment ago has not noted itself yet.
        for pid in {*self.started(), *processes_of(self._path)}:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)


@contextmanager
def installed_mps(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeMps]:
    """The program of agents below this folder, while the context lasts."""
    (folder / "fake").mkdir()
    daemons = FakeMps(folder / "fake", folder / "mps")
    for module in (mode, reconciler):
        monkeypatch.setattr(module, "MpsProgram", lambda environ: daemons.program)
    try:
        yield daemons
    finally:
        daemons.close()


def processes_of(program: Path) -> list[int]:
    """Those that run the program, and children of this process that are about to: they have no command line yet."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (folder / "cmdline").read_bytes().split(b"\0")
            state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
            begins = words == [b""] and int(parent) == os.getpid() and state not in "ZX"
            if begins or os.fsencode(program) in words:
                found.append(int(folder.name))
    return found


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


class FakeModes:
    """Compute modes of some cards. A card may be broken; every change is remembered."""

    def __init__(self, *uuids: str, mode: ComputeMode = ComputeMode.DEFAULT) -> None:
        self.modes = dict.fromkeys(uuids or (A, B), mode)
        self.changes: list[tuple[str, ComputeMode]] = []
        self.broken: set[str] = set()

    def compute_mode(self, uuid: str) -> ComputeMode:
        if uuid in self.broken:
            raise CardError(uuid, "GPU is lost")
        return self.modes[uuid]

    def set_compute_mode(self, uuid: str, mode: ComputeMode) -> None:
        self.modes[uuid] = mode
        self.changes.append((uuid, mode))


def card(uuid: str = A, *, index: int = 0, gib: int = 80, **more: Any) -> CardFacts:
    return CardFacts(uuid=uuid, index=index, name="NVIDIA H200", memory_bytes=gib * GIB, **more)


def limits(memory: int, cores: int = 100) -> Limits:
    return Limits(memory, cores)
