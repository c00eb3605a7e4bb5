"""What the connections of one listener share: limits of peers, shares of the event loop, and the end of all of them."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from tessera.http11.limits import (
    LARGE_SHARE,
    PIECES_SHARE,
    SMALL_BURST_S,
    SMALL_SHARE,
    ConnectionLimits,
    LoopIteration,
    LoopShare,
    PeerTable,
    RefusalLog,
)
from tessera.http11.router import Response, Router

if TYPE_CHECKING:
    from tessera.http11.server import ServerConnection

EXPIRED_PER_TURN = 16
"""ending a connection with TLS takes some 50 µs"""

ACCEPT_COST = 1e-4
"""seconds of the event loop for a connection, before the first call that could measure them"""

Guard = Callable[[asyncio.BaseTransport], Response | None]
"""asked once per connection: what its guarded routes are refused with, if they are"""


class ServerState:
    """What the connections of one listener share. Without a guard every route is open and every peer is limited."""

    def __init__(
        self,
        router: Router,
        limits: ConnectionLimits,
        *,
        guard: Guard | None = None,
        tls: ssl.SSLContext | None = None,
        headers: bytes = b"",
        iteration: LoopIteration | None = None,
    ) -> None:
        """`headers` are lines of the head of every response. `iteration` is that of all listeners of a process."""
        self.router = router
        self.headers = headers
        self.guard = guard
        self.tls = tls
        self.timer = time.thread_time
        """measures what requests cost, in processor time: a clock would count other programs too"""
        self.peers = PeerTable(limits)
        iteration = iteration or LoopIteration()
        self.small = LoopShare(SMALL_SHARE, iteration, SMALL_BURST_S)
        self.large = LoopShare(LARGE_SHARE, iteration)
        self.pieces = LoopShare(PIECES_SHARE, iteration)
        self.shares = (self.small, self.large, self.pieces)
        self.refusals = RefusalLog()
        self.connections: set[ServerConnection] = set()
        self.tasks: set[asyncio.Task[bool]] = set()
        self.keeps_connections = True
        """false before a planned end: every response then ends its connection, and clients turn to another server"""
        self.is_stopping = False
        self.is_drained = asyncio.Event()
        """set when the listener stops and no connection and no task is left"""

    def admit(self, transport: asyncio.BaseTransport) -> str | None:
        """The address of a limited peer, or None if it may not have a connection more."""
        peername = transport.get_extra_info("peername")
        peer = str(peername[0]) if peername else ""
        if self.is_stopping:
            return None
        problem = self.peers.make_room(peer)
        if problem:
            self.refusals.note(problem, peer)
            return None
        self.small.charge(peer, ACCEPT_COST)
        return peer

    def check_drained(self) -> None:
        if self.is_stopping and not self.connections and not self.tasks:
            self.is_drained.set()

    async def expire(self) -> None:
        """End the connections that are past their deadline, a few in each turn of the loop."""
        for number, connection in enumerate(tuple(self.connections)):
            if connection in self.connections:
                connection.expire()
            if number % EXPIRED_PER_TURN == 0:
                await asyncio.sleep(0)
        for share in self.shares:
            share.forget_paid()
