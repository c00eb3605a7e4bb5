"""Serves the page on this machine, to one user."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from tessera.inspect.dashboard.access import LoopbackAccess
from tessera.inspect.dashboard.live_state import LiveState
from tessera.inspect.dashboard.server import SECURITY_HEADERS, PageServer
from tessera.inspect.dashboard.source import PageSource
from tessera.inspect.state import InspectionError
from tessera.services.addresses import Address
from tessera.services.listener import Listener

HOST = "127.0.0.1"
GRACE_S = 1.0


@asynccontextmanager
async def serve_page(source: PageSource, *, port: int = 0, now: Callable[[], float] = time.time) -> AsyncIterator[str]:
    """For as long as the block lasts; gives the address with its token. `now` is the time of what is shown. Raises
    InspectionError if the port is taken."""
    access = LoopbackAccess()
    server = PageServer(LiveState(source, now=now), access)
    listener = Listener(Address(HOST, port), server.routes(), headers=SECURITY_HEADERS, grace=GRACE_S)
    try:
        await listener.start()
    except OSError as error:
        raise InspectionError(f"cannot listen on {HOST}:{port}: {error.strerror or error}") from error
    access.listen_on(listener.address)
    try:
        yield f"http://{listener.address}/#token={access.token}"
    finally:
        await server.close()
        await listener.stop()
