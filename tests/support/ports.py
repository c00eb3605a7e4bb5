"""Ports for programs that are started again on the same address, or that are told their port before they start."""

from __future__ import annotations

import atexit
import random
import socket
from collections import deque
from functools import cache

PORTS = range(20_000, 32_000)
"""below the kernel's own choices for outgoing connections, which would take a port while its program restarts"""
BLOCK = 100
"""ports that one process of tests has to itself: others would take a port before its program listens"""


def free_ports(count: int) -> list[int]:
    """Ports of the loopback interface that are free at this moment. One comes again only after all others: a program
    may take its time until it listens."""
    own = _own_ports()
    chosen: list[int] = []
    for _ in range(len(own)):
        port = own[0]
        own.rotate(-1)
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


@cache
def _own_ports() -> deque[int]:
    """The process that has bound the first port of a block has the others."""
    blocks = range(PORTS.start, PORTS.stop, BLOCK)
    for first in random.sample(blocks, len(blocks)):
        held = socket.socket()
        try:
            held.bind(("127.0.0.1", first))
        except OSError:
            held.close()
            continue
        atexit.register(held.close)
        return deque(range(first + 1, first + BLOCK))
    raise OSError("other tests use all ports")
