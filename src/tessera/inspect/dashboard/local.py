"""Serves the page on this machine until the command ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tessera.inspect.dashboard.access import LoopbackAccess
from tessera.inspect.dashboard.live_state import LiveState
from tessera.inspect.dashboard.server import SECURITY_HEADERS, PageServer
from tessera.inspect.dashboard.source import PageSource
from tessera.inspect.state import InspectionError
from tessera.services.addresses import Address
from tessera.services.listener import Listener

HOST = "127.0.0.1"
GRACE_SECONDS = 1.0


async def serve_page(source: PageSource, *, port: int, on_serving: Callable[[str], None]) -> None:
    """Until cancelled. `on_serving` gets the address with its token. Raises InspectionError if the port is taken."""
    access = LoopbackAccess()
    server = PageServer(LiveState(source), access)
    listener = Listener(Address(HOST, port), server.routes(), headers=SECURITY_HEADERS, grace=GRACE_SECONDS)
    try:
        await listener.start()
    except OSError as error:
        raise InspectionError(f"cannot listen on {HOST}:{port}: {error.strerror or error}") from error
    access.listen_on(listener.address)
    try:
        on_serving(f"http://{listener.address}/#token={access.token}")
        await asyncio.Event().wait()
    finally:
        await server.close()
        await listener.stop()
