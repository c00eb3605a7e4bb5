"""The init process of a node container: sets it up, starts the command and reaps orphans until the command ends.

    python -m tests.e2e.node.container_init COMMAND...       only in the namespaces that `container` makes

When it ends, everything in the container ends.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.e2e.node.container import PLACES, NodeContainer, current_container

ADDRESS = "10.77.0.1"
"""of the node; kubelet refuses one of 127.0.0.0/8"""
SERVICE_ADDRESS = "10.0.0.1"
"""of the Service `kubernetes`, the first of the apiserver's range"""
SYSCTLS = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}
"""the values that kubelet wants; in the container they are plain files, so that those of the machine do not change"""


def set_up(node_container: NodeContainer) -> None:
    """Network, sysctls and mounts that only the container sees."""
    _do("ip", "link", "set", "lo", "up")
    for address in (ADDRESS, SERVICE_ADDRESS):
        _do("ip", "address", "add", f"{address}/32", "dev", "lo")
    # Sockets, network namespaces and states of containers.
    _do("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", "/run")
    for place in PLACES:
        source = node_container.place(place)
        source.mkdir(parents=True)
        _do("mount", "--bind", str(source), place)
    # Mounts that kubelet makes for a pod have to reach its containers.
    _do("mount", "--make-rshared", "/var/lib/kubelet")
    for name, value in SYSCTLS.items():
        there = Path("/proc/sys", name)
        if there.exists():
            pretended = node_container.folder / "sysctls" / name.replace("/", "-")
            pretended.parent.mkdir(exist_ok=True)
            pretended.write_text(f"{value}\n")
            _do("mount", "--bind", str(pretended), str(there))


def wait_as_init(child: int) -> int:
    """Returns the exit code of this child; reaps others that end meanwhile."""
    while True:
        pid, status = os.wait()
        if pid == child:
            return os.waitstatus_to_exitcode(status)


def main(command: Sequence[str]) -> int:
    node_container = current_container()
    assert node_container is not None
    assert os.getpid() == 1, "only for the first process of its namespaces"
    # The container is ended from outside.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    set_up(node_container)
    code = wait_as_init(os.spawnvp(os.P_NOWAIT, command[0], list(command)))
    return code if code >= 0 else 128 - code


def _do(*command: str) -> None:
    subprocess.run(command, stdin=subprocess.DEVNULL, check=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
