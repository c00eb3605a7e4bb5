"""What the peers of one listener may use: connections, memory for bodies, and time of the event loop.

A peer is an address. It cannot keep the others from being served: when something is used up, the peer that uses most
of it gives way. Peers that the listener's guard admits (they may call filter and bind) are not limited here. The
caller passes no time: deadlines are in `server`.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

import structlog

log = structlog.get_logger(__name__)

MAX_BUFFERED_BYTES = 16 * 2**20
"""of bodies that no handler has seen yet, per listener: two of the largest, and hundreds of usual ones"""

SMALL_SHARE = 0.5
"""of the event loop's time, per listener, for requests: more than 1000 usual reviews a second"""
LARGE_SHARE = 0.005
"""for requests with a large body: one pod of 1.5 MB a second. The worst takes 100 ms; with a share of one hundredth it
would be one filter in a hundred that meets such a request"""
LARGE_BODY_BYTES = 64 * 2**10
PIECES_SHARE = 0.05
"""for responses that are made while they are sent: the metrics of 40,000 cards, 50 MB, in about a second"""
SMALL_BURST_SECONDS = 0.2
"""an apiserver may open a connection for each of 200 requests at once"""
BURST_SECONDS = 0.005
"""of the event loop's time that a peer may use at once, before it has to wait for its share"""

TURN_SECONDS = 0.001
"""between two turns of one peer; also the resolution of uvloop's timers"""

TURN_COST = 1e-4
"""seconds"""

LOG_EVERY_SECONDS = 60.0


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


class LoopShare:
    """A part of the event loop's time for limited peers, and of it the same part for each peer that waits.

    A peer runs up a debt with what it uses. While the debt is too large its connections wait, in order."""

    def __init__(self, share: float, burst: float = BURST_SECONDS) -> None:
        """`burst` is what a peer may use at once, in seconds."""
        self._share = share
        self._burst = burst / share
        self._debts: dict[str, float] = {}
        """by peer, when the debt will be paid"""
        self._waiting: dict[str, dict[LimitedConnection, None]] = {}
        """by peer, in order"""
        self._loop = asyncio.get_running_loop()

    def charge(self, peer: str, seconds: float) -> None:
        """The peer has used this much of the event loop's time."""
        began = max(self._debts.get(peer, 0.0), self._loop.time())
        self._debts[peer] = began + seconds * max(len(self._waiting), 1) / self._share

    def must_wait(self, peer: str) -> bool:
        return self._debts.get(peer, 0.0) > self._loop.time() + self._burst

    def wait(self, connection: LimitedConnection) -> None:
        """Call `take_turn` of the connection when it is its turn."""
        peer = connection.peer
        if peer in self._waiting:
            self._waiting[peer][connection] = None
        else:
            self._waiting[peer] = {connection: None}
            self._schedule(peer)

    def discard(self, connection: LimitedConnection) -> None:
        self._waiting.get(connection.peer, {}).pop(connection, None)

    def forget_paid(self) -> None:
        """Called now and then, so that peers of long ago are not kept."""
        now = self._loop.time()
        self._debts = {peer: paid_at for peer, paid_at in self._debts.items() if paid_at > now}

    def _schedule(self, peer: str) -> None:
        due = self._debts.get(peer, 0.0) - self._burst
        self._loop.call_at(max(due, self._loop.time() + TURN_SECONDS), self._give_turn, peer)

    def _give_turn(self, peer: str) -> None:
        waiting = self._waiting[peer]
        while waiting and not self.must_wait(peer):
            connection = next(iter(waiting))
            del waiting[connection]
            # What it reads is only known in a later turn of the loop, so that the turn itself has a price.
            self.charge(peer, TURN_COST)
            # It may begin to wait again, behind the others.
            connection.take_turn()
        if waiting:
            self._schedule(peer)
        else:
            del self._waiting[peer]


class RefusalLog:
    """Counts what was refused, and logs at most one line a minute."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._logged_at = float("-inf")
        self._clock = asyncio.get_running_loop().time

    def note(self, reason: str, peer: str) -> None:
        self._counts[reason] = self._counts.get(reason, 0) + 1
        now = self._clock()
        if now - self._logged_at >= LOG_EVERY_SECONDS:
            self._logged_at = now
            log.warning("requests refused", counts=self._counts, last_peer=peer)
            self._counts = {}
