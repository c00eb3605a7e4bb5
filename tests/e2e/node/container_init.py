"""The first process in a room: furnishes it, starts the command, and takes care of orphans until that ends.

    python -m tests.e2e.node.container_init COMMAND...       only in the namespaces that `room` makes

With it everything in the room ends.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.e2e.node.container import PLACES, Room, this_room

ADDRESS = "10.77.0.1"
"""of the node; kubelet refuses one of 127.0.0.0/8"""
SYSCTLS = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}
"""of the whole machine, with the values that kubelet wants: in the room they are plain files, and the machine's stay"""


def furnish(room: Room) -> None:
    """Network, and places that are the room's own."""
    _do("ip", "link", "set", "lo", "up")
    _do("ip", "address", "add", f"{ADDRESS}/32", "dev", "lo")
    # Sockets, network namespaces and states of containers.
    _do("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", "/run")
    for place in PLACES:
        source = room.place(place)
        source.mkdir(parents=True)
        _do("mount", "--bind", str(source), place)
    # Mounts that kubelet makes for a pod have to reach its containers.
    _do("mount", "--make-rshared", "/var/lib/kubelet")
    for name, value in SYSCTLS.items():
        there = Path("/proc/sys", name)
        if there.exists():
            pretended = room.folder / "sysctls" / name.replace("/", "-")
            pretended.parent.mkdir(exist_ok=True)
            pretended.write_text(f"{value}\n")
            _do("mount", "--bind", str(pretended), str(there))


def wait_as_init(child: int) -> int:
    """The exit code of this child; others that end meanwhile are let go."""
    while True:
        pid, status = os.wait()
        if pid == child:
            return os.waitstatus_to_exitcode(status)


def main(command: Sequence[str]) -> int:
    room = this_room()
    assert room is not None
    assert os.getpid() == 1, "only for the first process of its namespaces"
    # The room is ended from outside.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    furnish(room)
    code = wait_as_init(os.spawnvp(os.P_NOWAIT, command[0], list(command)))
    return code if code >= 0 else 128 - code


def _do(*command: str) -> None:
    subprocess.run(command, stdin=subprocess.DEVNULL, check=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
