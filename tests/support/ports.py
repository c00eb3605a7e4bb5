"""Ports for programs that are started again on the same address."""

from __future__ import annotations

import random
import socket

PORTS = range(20_000, 32_000)
"""below the kernel's own choices for outgoing connections, which would take a port while its program restarts"""
ATTEMPTS = 1000


def free_ports(count: int) -> list[int]:
    """Ports of the loopback interface that are free at this moment."""
    chosen: list[int] = []
    for port in random.sample(PORTS, ATTEMPTS):
        with socket.socket() as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                trial.bind(("127.0.0.1", port))
            except OSError:
                continue
        chosen.append(port)
        if len(chosen) == count:
            return chosen
    raise OSError("there is no free port")
