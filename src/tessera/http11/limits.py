"""What the connections of one listener share: what its peers may use (connections, memory for bodies, time of the event
loop), and the end of all of them.

A peer is an address. It cannot keep the others from being served: when something is used up, the peer that uses most
of it gives way. Peers that the listener's guard admits (they may call filter and bind) are not limited here. The
caller passes no time: deadlines are in `server`.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import structlog

from tessera.http11.router import Response, Router

if TYPE_CHECKING:
    from tessera.http11.server import ServerConnection

log = structlog.get_logger(__name__)

MAX_BUFFERED_BYTES = 16 * 2**20
"""of bodies that no handler has seen yet, per listener: two of the largest, and hundreds of usual ones"""

SMALL_SHARE = 0.25
"""of the event loop's time, per listener, for requests: some 800 usual reviews a second"""
LARGE_SHARE = 0.005
"""for requests with a large body: one pod of 1.5 MB a second. The worst takes 100 ms; with a share of one hundredth it
would be one filter in a hundred that meets such a request"""
LARGE_BODY_BYTES = 64 * 2**10
PIECES_SHARE = 0.05
"""for responses that are made while they are sent: the metrics of 40,000 cards, 50 MB, in about a second"""
SMALL_BURST_S = 0.2
"""an apiserver may open a connection for each of 200 requests at once"""
BURST_S = 0.005
"""of the event loop's time that a peer may use at once, before it has to wait for its share"""

TURN_COST = 1e-4
"""seconds of the event loop for a connection that goes on"""

ITERATION_S = 0.0001
"""of one iteration of the event loop for limited peers, in seconds; a request that has begun is completed. So a filter
waits for about one other request"""

TIMER_S = 0.001
"""the resolution of uvloop's timers"""

LOG_EVERY_S = 60.0
EXPIRED_PER_TURN = 16
"""ending a connection with TLS takes some 50 µs"""

ACCEPT_COST = 1e-4
"""seconds of the event loop for a connection, before the first call that could measure them"""

Guard = Callable[[asyncio.BaseTransport], Response | None]
"""asked once per connection: what its guarded routes are refused with, if they are"""


class ConnectionLimits(Protocol):
    """Open connections of a listener, of peers that its guard does not admit."""

    @property
    def connections(self) -> int: ...

    @property
    def connections_per_peer(self) -> int: ...


class LimitedConnection(Protocol):
    """A connection of a limited peer."""

    peer: str
    held_bytes: int
    """of bodies that no handler has seen yet"""

    @property
    def is_busy(self) -> bool:
        """Whether a handler is running for it."""
        ...

    def give_way(self, reason: str) -> None:
        """End: the peer uses more than its part."""
        ...

    def take_turn(self) -> None:
        """Go on: the wait for the event loop's time is over."""
        ...


class PeerTable:
    """The connections of limited peers, and the bytes that they hold."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self._limits = limits
        self._peers: dict[str, dict[LimitedConnection, None]] = {}
        """connections by peer, oldest first"""
        self._count = 0
        self._held = 0

    def make_room(self, peer: str) -> str:
        """Returns why a connection of the peer is refused; empty if it is not. An idle one may have to go for it."""
        own = len(self._peers.get(peer, ()))
        if own >= self._limits.connections_per_peer:
            return "too many connections of one address"
        if self._count >= self._limits.connections:
            largest = max(self._peers.values(), key=len)
            idle = next((each for each in largest if not each.is_busy), None)
            if idle is None or len(largest) <= own + 1:
                return "too many connections"
            idle.give_way("too many connections")
            self.remove(idle)
        return ""

    def add(self, connection: LimitedConnection) -> None:
        self._peers.setdefault(connection.peer, {})[connection] = None
        self._count += 1

    def remove(self, connection: LimitedConnection) -> None:
        """May be called again."""
        connections = self._peers.get(connection.peer)
        if connections is None or connection not in connections:
            return
        self.release(connection)
        del connections[connection]
        self._count -= 1
        if not connections:
            del self._peers[connection.peer]

    def hold(self, connection: LimitedConnection, count: int) -> bool:
        """Count bytes of a body. Returns whether they may be kept; a connection that holds more may have to go."""
        connection.held_bytes += count
        self._held += count
        while self._held > MAX_BUFFERED_BYTES:
            largest = max(self._peers.values(), key=lambda each: sum(one.held_bytes for one in each))
            victim = max(largest, key=lambda each: each.held_bytes)
            self.release(victim)
            if victim is connection:
                return False
            victim.give_way("too many bytes in unfinished requests")
        return True

    def release(self, connection: LimitedConnection, count: int | None = None) -> None:
        """Bytes that are no longer held; without a count all of the connection."""
        released = connection.held_bytes if count is None else min(count, connection.held_bytes)
        connection.held_bytes -= released
        self._held -= released


class LoopIteration:
    """What limited peers have used of the current iteration of the event loop.

    Many connections may be readable at once. Without a limit all of them would be served before the next filter."""

    def __init__(self) -> None:
        self._used = 0.0
        self._loop = asyncio.get_running_loop()

    @property
    def is_used_up(self) -> bool:
        return self._used >= ITERATION_S

    def add(self, seconds: float) -> None:
        if not self._used:
            self._loop.call_soon(self._end)
        self._used += max(seconds, 0.0)

    def _end(self) -> None:
        self._used = 0.0


class LoopShare:
    """A part of the event loop's time for limited peers, and of it the same part for each peer that waits.

    A peer runs up a debt with what it uses. While the debt is too large, or the iteration is used up, its connections
    wait. Peers take turns, and connections of a peer are in order."""

    def __init__(self, share: float, iteration: LoopIteration, burst: float = BURST_S) -> None:
        """`burst` is what a peer may use at once, in seconds."""
        self._share = share
        self._iteration = iteration
        self._burst = burst / share
        self._debts: dict[str, float] = {}
        """by peer, when the debt will be paid"""
        self._waiting: dict[str, dict[LimitedConnection, None]] = {}
        """by peer; the peer whose turn is next is the first"""
        self._loop = asyncio.get_running_loop()
        self._next: asyncio.Handle | None = None
        self._next_at = float("inf")

    def charge(self, peer: str, seconds: float) -> None:
        """The peer has used this much of the event loop's time."""
        self._add_debt(peer, seconds)
        self._iteration.add(seconds)

    def is_in_debt(self, peer: str) -> bool:
        """Whether its connections may not even read."""
        return self._due(peer) > self._loop.time()

    def must_wait(self, peer: str) -> bool:
        """Whether no request of it may begin."""
        return self._iteration.is_used_up or self.is_in_debt(peer)

    def wait(self, connection: LimitedConnection) -> None:
        """Call `take_turn` of the connection when it is its turn."""
        self._waiting.setdefault(connection.peer, {})[connection] = None
        self._schedule(self._due(connection.peer))

    def discard(self, connection: LimitedConnection) -> None:
        self._waiting.get(connection.peer, {}).pop(connection, None)

    def forget_paid(self) -> None:
        """Called now and then, so that peers of long ago are not kept."""
        now = self._loop.time()
        self._debts = {peer: paid_at for peer, paid_at in self._debts.items() if paid_at > now}

    def _add_debt(self, peer: str, seconds: float) -> None:
        began = max(self._debts.get(peer, 0.0), self._loop.time())
        self._debts[peer] = began + seconds * max(len(self._waiting), 1) / self._share

    def _due(self, peer: str) -> float:
        """When the debt is small enough."""
        return self._debts.get(peer, 0.0) - self._burst

    def _schedule(self, due: float) -> None:
        """Give turns at this time, or earlier if that is planned."""
        if due >= self._next_at:
            return
        if self._next is not None:
            self._next.cancel()
        now = self._loop.time()
        if due <= now:
            self._next_at, self._next = float("-inf"), self._loop.call_soon(self._give_turns)
        else:
            self._next_at = max(due, now + TIMER_S)
            self._next = self._loop.call_at(self._next_at, self._give_turns)

    def _give_turns(self) -> None:
        self._next, self._next_at = None, float("inf")
        for _ in range(len(self._waiting)):
            if self._iteration.is_used_up:
                break
            peer = next(iter(self._waiting))
            connections = self._waiting.pop(peer)
            if not connections:
                continue
            self._waiting[peer] = connections
            if not self.must_wait(peer):
                connection = next(iter(connections))
                del connections[connection]
                # What it reads is only known in a later iteration, so that the turn itself has a price.
                self._add_debt(peer, TURN_COST)
                # It may begin to wait again, behind the others.
                connection.take_turn()
        if self._waiting:
            self._schedule(min(map(self._due, self._waiting)))


class RefusalLog:
    """Counts what was refused, and logs at most one line a minute."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._logged_at = float("-inf")
        self._clock = asyncio.get_running_loop().time

    def note(self, reason: str, peer: str) -> None:
        self._counts[reason] = self._counts.get(reason, 0) + 1
        now = self._clock()
        if now - self._logged_at >= LOG_EVERY_S:
            self._logged_at = now
            log.warning("requests refused", counts=self._counts, last_peer=peer)
            self._counts = {}


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
