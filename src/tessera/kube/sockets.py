"""Sockets that notice a peer which vanished, for every way to the apiserver."""

from __future__ import annotations

import socket
from typing import Any

_PROBE_AFTER_SECONDS, _PROBE_EVERY_SECONDS, _PROBES = 20, 10, 3
"""a watch is silent for minutes; without probes a peer that vanished is noticed only by the deadline"""


def probed_socket(address: tuple[Any, ...]) -> socket.socket:
    family, kind, protocol = address[0], address[1], address[2]
    made = socket.socket(family=family, type=kind, proto=protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    options = {
        "TCP_KEEPIDLE": _PROBE_AFTER_SECONDS,
        "TCP_KEEPINTVL": _PROBE_EVERY_SECONDS,
        "TCP_KEEPCNT": _PROBES,
        # Milliseconds, and for data that is never acknowledged, which probes do not cover.
        "TCP_USER_TIMEOUT": 1000 * (_PROBE_AFTER_SECONDS + _PROBES * _PROBE_EVERY_SECONDS),
    }
    # Not every system knows every one of them.
    known = {getattr(socket, name): value for name, value in options.items() if hasattr(socket, name)}
    for option, value in known.items():
        made.setsockopt(socket.IPPROTO_TCP, option, value)
    return made
