"""Who may see the page, and the page on this machine, for one user."""

from __future__ import annotations

import hmac
import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from tessera.http11.router import Request, Response
from tessera.inspect.dashboard.live_state import LiveState
from tessera.inspect.dashboard.server import SECURITY_HEADERS, PageServer
from tessera.inspect.dashboard.source import PageSource
from tessera.inspect.state import InspectionError
from tessera.scheduler.access_review import CHALLENGE, AccessReview, bearer_token, error_response
from tessera.services.addresses import Address
from tessera.services.listener import Listener
from tessera.services.loopback import find_foreign_page

TOKEN_BYTES = 24
LOOPBACK_NAMES = ("127.0.0.1", "localhost", "[::1]")


class LoopbackAccess:
    """For one user on their own machine: a random token, and names that only this machine uses."""

    def __init__(self) -> None:
        self.token = secrets.token_urlsafe(TOKEN_BYTES)
        self._hosts: frozenset[bytes] = frozenset()

    def listen_on(self, address: Address) -> None:
        """The port is known from now on."""
        self._hosts = frozenset(f"{name}:{address.port}".encode() for name in LOOPBACK_NAMES)

    def refuse_connection(self, request: Request) -> Response | None:
        problem = find_foreign_page(request.headers, self._hosts.__contains__)
        return error_response(403, problem) if problem else None

    async def refuse(self, request: Request) -> Response | None:
        token = bearer_token(request)
        if token and hmac.compare_digest(token, self.token.encode()):
            return None
        return error_response(401, "open the address that `tessera dashboard` printed: it has a token", CHALLENGE)

    def user_of(self, request: Request) -> str:
        return ""


class ReviewedAccess:
    """For callers of a cluster whom the apiserver allows it. The name under which they reach the page does not matter:
    without a token, which no other page knows, there is nothing to see."""

    def __init__(self, review: AccessReview) -> None:
        self._review = review

    def refuse_connection(self, request: Request) -> Response | None:
        return None

    async def refuse(self, request: Request) -> Response | None:
        return await self._review.refuse(request)

    def user_of(self, request: Request) -> str:
        return self._review.user_of(request)


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
