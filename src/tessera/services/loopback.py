"""Tells web pages of other sites from programs on this machine.

A browser on this machine can call listeners on loopback for any site: one that makes its own name point to 127.0.0.1
sends that name as `Host`, and a page of another origin sends that as `Origin`. Programs name this machine, or an
address, and send no origin.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Mapping
from functools import lru_cache

OTHER_NAME = "this machine is asked under a name that is not its own: use 127.0.0.1 or localhost"
OTHER_ORIGIN = "a page of another origin may not ask this machine"


def find_foreign_page(headers: Mapping[bytes, bytes], is_own: Callable[[bytes], bool]) -> str:
    """Why a request over plain HTTP must not be answered; empty if it may be. Header names are as in `Request`."""
    host, origin = headers.get(b"Host", b"").lower(), headers.get(b"Origin")
    if not is_own(host):
        return OTHER_NAME
    return "" if origin is None or origin.lower() == b"http://" + host else OTHER_ORIGIN


@lru_cache(maxsize=64)
def names_this_machine(host: bytes) -> bool:
    """Whether this is an address, `localhost` or the machine's name; `host` may have a port, and is in lower case."""
    text = host.decode("latin-1")
    name = text.partition("]")[0].removeprefix("[") if text.startswith("[") else text.partition(":")[0]
    # Empty: browsers always send a host.
    if name in ("", "localhost", socket.gethostname().lower()):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
