"""The server's end of a connection: requests are served in their order, and the next is read after that.

    idle --first byte--> reading --complete--> handling --response written--> idle
      any --refused, asked to close, too slow--> ending --flushed, or too slow--> gone

Reading pauses while requests wait, and while the peer waits for its share of the event loop's time (`limits`). Requests
have no timers: the listener calls `expire` on all connections every few seconds.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing
from functools import partial
from typing import Any, cast

import structlog

from tessera.http11.limits import LARGE_BODY_BYTES, LoopShare, ServerState
from tessera.http11.request_reader import (
    BODY_S,
    CONTINUE,
    HEAD_S,
    HEAD_TOO_LARGE,
    INTERNAL_ERROR,
    MAX_HEADERS,
    IncomingRequest,
    RequestReader,
    response_head,
)
from tessera.http11.router import Response

log = structlog.get_logger(__name__)

KEEP_ALIVE_S = 100.0
"""above the 90 s after which Go's clients close idle connections, so that they do it, not the server"""
WRITE_S = 30.0
"""for a client to read some of a response that fills the socket"""
LINGER_S = 10.0
"""for a client to read its refusal while it is still sending; closing at once would take the response from it"""

RECEIVE_BYTES = 16 * 2**10
"""that the kernel takes ahead for a connection with TLS, which keeps a buffer as large as its largest read"""

HANDSHAKE_COST, READ_COST, BYTE_COST = 5e-4, 5e-5, 1e-9
"""seconds of the event loop that are spent before this module is called, and so cannot be measured by it"""


class TlsGate(asyncio.Protocol):
    """Counts a connection when it is accepted; a server with TLS of its own would show it only after its handshake."""

    def __init__(self, state: ServerState) -> None:
        self._state = state

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        peer = self._state.admit(transport)
        if peer is not None:
            # A transport would read at once. A socket can wait for its turn.
            accepted: socket.socket = transport.get_extra_info("socket").dup()
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
            ServerConnection(self._state).secure(accepted, peer)
        cast("asyncio.Transport", transport).abort()


class ServerConnection(RequestReader):
    """Called by its transport, its parser, its listener and `limits`."""

    def __init__(self, state: ServerState) -> None:
        super().__init__(state, seconds=KEEP_ALIVE_S)
        self._handled: asyncio.Task[bool] | None = None
        """responds to a request, and returns whether the connection is kept"""
        self._socket: socket.socket | None = None
        """waits for its TLS handshake"""
        self._handshake: asyncio.Task[None] | None = None
        self._is_sending = False
        """a response in pieces"""
        self._is_waiting = self._has_turn = False
        """for its share of the event loop's time"""
        self._progress: asyncio.Future[None] | None = None
        """what a response in pieces waits for"""
        self._is_writable = True
        self._write_deadline = float("inf")

    @property
    def is_busy(self) -> bool:
        return self._handled is not None

    # -- called by the transport

    def secure(self, accepted: socket.socket, peer: str) -> None:
        """Begin the TLS handshake when it is the peer's turn; `connection_made` is called after it."""
        self._socket, self.peer = accepted, peer
        self._state.connections.add(self)
        self._state.peers.add(self)
        if not self._defer(self._state.small):
            self._start_handshake()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        state = self._state
        if state.guard is not None:
            self._refusal = state.guard(transport)
            self._is_limited = self._refusal is not None
        if state.tls is None:
            self._join(transport)
        elif self._is_limited:
            # Or TLS would read 256 KiB ahead while reading is paused.
            cast("Any", transport).set_read_buffer_limits(high=RECEIVE_BYTES)
        else:
            state.peers.remove(self)
            state.small.charge(self.peer, -HANDSHAKE_COST)

    def _join(self, transport: asyncio.BaseTransport) -> None:
        state = self._state
        state.connections.add(self)
        if not self._is_limited:
            if state.is_stopping:
                self.abort()
            return
        peer = state.admit(transport)
        if peer is None:
            self.abort()
        else:
            self.peer = peer
            state.peers.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        self._leave()

    def _leave(self) -> None:
        state = self._state
        self._stop_parsing()
        self.requests.clear()
        state.connections.discard(self)
        state.peers.remove(self)
        for share in state.shares:
            share.discard(self)
        self._wake()
        if self._is_sending and self._handled is not None:
            # What makes the pieces may wait for a long time, and would find out only then.
            self._handled.cancel()
        state.check_drained()

    def data_received(self, data: bytes) -> None:
        if self.is_over:
            return
        if self._handled is not None or self.requests:
            self.pause_reading()
        if self._is_limited:
            began = self._state.timer()
            self._feed(data)
            share = self._state.large if self._is_large else self._state.small
            share.charge(self.peer, self._state.timer() - began + READ_COST + len(data) * BYTE_COST)
        else:
            self._feed(data)
        if len(self._header_fields) > MAX_HEADERS and not self.is_over:
            self._refuse(HEAD_TOO_LARGE)
        self._proceed()

    def pause_writing(self) -> None:
        self._is_writable = False
        self._write_deadline = self._loop.time() + WRITE_S

    def resume_writing(self) -> None:
        self._is_writable = True
        self._write_deadline = float("inf")
        self._wake()
        self._proceed()

    # -- called by the listener and by `limits`

    def expire(self) -> None:
        """End the connection if it is past its deadline. A handler has its own, and a wait for a turn has an end."""
        now = self._loop.time()
        if now >= self._write_deadline:
            self.abort()
            return
        is_held_up = self._handled is not None or self._is_waiting or self._handshake is not None
        if is_held_up or now < self._deadline:
            return
        if self.is_reading:
            self._state.refusals.note("too slow", self.peer)
        if self.is_over:
            self.abort()
        else:
            self._end(lingers=False)

    def retire(self) -> None:
        """End the connection if no request is outstanding; without unsent bytes this does not wait for the peer."""
        if self._handled is not None or self.requests or self.is_reading:
            return
        if hasattr(self, "_transport") and self._transport.get_write_buffer_size():
            self._transport.close()
        else:
            self.abort()

    def give_way(self, reason: str) -> None:
        self._state.refusals.note(reason, self.peer)
        self._stop_parsing()
        self.requests.clear()
        self.abort()

    def take_turn(self) -> None:
        self._is_waiting, self._has_turn = False, True
        if self._socket is not None:
            self._start_handshake()
        elif self._progress is not None:
            self._wake()
        else:
            self._proceed()

    def abort(self) -> None:
        if hasattr(self, "_transport"):
            super().abort()
            return
        # Before its handshake, or during it.
        if self._handshake is not None:
            self._handshake.cancel()
        if self._socket is not None:
            self._socket.close()
        self._leave()

    # -- TLS

    def _start_handshake(self) -> None:
        self._has_turn = False
        # Before it begins, or many would begin at once.
        self._state.small.charge(self.peer, HANDSHAKE_COST)
        self._handshake = self._loop.create_task(self._shake_hands())

    async def _shake_hands(self) -> None:
        accepted, self._socket = self._socket, None
        assert accepted is not None
        try:
            await self._loop.connect_accepted_socket(
                lambda: self, accepted, ssl=self._state.tls, ssl_handshake_timeout=HEAD_S
            )
        except OSError:
            self._state.refusals.note("no TLS handshake", self.peer)
            self._leave()
        finally:
            self._handshake = None

    # -- handling requests

    def _proceed(self) -> None:
        while self.requests and self._handled is None and self._is_writable:
            incoming = self.requests[0]
            share = self._state.large if len(incoming.request.body) > LARGE_BODY_BYTES else self._state.small
            # A refusal that ends the connection costs next to nothing.
            if incoming.is_complete and self._defer(share):
                return
            began = self._state.timer() if self._is_limited else 0.0
            self._handle(self.requests.popleft())
            if self._is_limited:
                share.charge(self.peer, self._state.timer() - began)
        if self._handled is not None or self.requests or self._is_waiting or self._transport.is_closing():
            return
        if self.expects_continue:
            self.expects_continue = False
            self._transport.write(CONTINUE)
        # Behind a whole request the next one may be small, and of another user of the same peer.
        is_in_large = self._is_large and self.is_reading
        if not self._defer(self._state.large if is_in_large else self._state.small, only_reads=True):
            self.resume_reading()

    def _defer(self, share: LoopShare, *, only_reads: bool = False) -> bool:
        """Whether the peer has to wait for this share; if so, `take_turn` is called later."""
        if self._is_waiting:
            return True
        if self._has_turn or not self._is_limited or (self._socket is None and self._transport.is_closing()):
            self._has_turn = False
            return False
        if not (share.is_in_debt(self.peer) if only_reads else share.must_wait(self.peer)):
            return False
        self._is_waiting = True
        if self._socket is None:
            self.pause_reading()
        share.wait(self)
        return True

    def _handle(self, incoming: IncomingRequest) -> None:
        handle = incoming.handle
        if self._is_limited:
            self._state.peers.release(self, len(incoming.request.body))
        try:
            result = handle if isinstance(handle, Response) else handle(incoming.request)
        except Exception as error:
            result = _log_failure(incoming, error)
        if isinstance(result, Response) and result.pieces is None:
            keeps = self._write(incoming, result)
            self._finish(incoming, keeps=keeps)
            return
        # The task ends even if the client goes away.
        self._handled = self._loop.create_task(self._respond(incoming, result))
        self._state.tasks.add(self._handled)
        self._handled.add_done_callback(partial(self._on_responded, incoming))

    async def _respond(self, incoming: IncomingRequest, result: Response | Coroutine[Any, Any, Response]) -> bool:
        """Whether the connection is kept."""
        try:
            response = result if isinstance(result, Response) else await result
        except Exception as error:
            response = _log_failure(incoming, error)
        keeps = self._write(incoming, response)
        if response.pieces is not None and not incoming.is_head:
            self._is_sending = True
            await self._send_pieces(response.pieces, is_chunked=incoming.is_chunkable)
        return keeps

    def _on_responded(self, incoming: IncomingRequest, task: asyncio.Task[bool]) -> None:
        self._handled, self._is_sending = None, False
        self._state.tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            _log_failure(incoming, error)
        if task.cancelled() or error is not None:
            # The client notices that the response is not complete.
            self.abort()
        else:
            self._finish(incoming, keeps=task.result())
            self._proceed()
        self._state.check_drained()

    def _write(self, incoming: IncomingRequest, response: Response) -> bool:
        """The head, and the body if it is there already. Returns whether the connection is kept afterwards."""
        keeps = incoming.keeps_connection and self._state.keeps_connections
        if not self._transport.is_closing():
            head = response_head(incoming, response, keeps=keeps, second=int(time.time()), headers=self._state.headers)
            self._transport.write(head if incoming.is_head else head + response.body)
        return keeps

    async def _send_pieces(self, pieces: AsyncGenerator[bytes, None], *, is_chunked: bool) -> None:
        """Send a body while it is made; made no faster than the client reads, and than the peer's share allows."""
        share, timer, is_first = self._state.pieces, self._state.timer, True
        async with aclosing(pieces):
            while True:
                while (not self._is_writable or self._defer(share)) and not self._transport.is_closing():
                    self._progress = self._loop.create_future()
                    await self._progress
                if self._transport.is_closing():
                    return
                began = timer()
                piece = await anext(pieces, None)
                if piece is None:
                    break
                if self._is_limited:
                    # Later pieces let other tasks run meanwhile, so that their own time cannot be measured.
                    share.charge(self.peer, timer() - began if is_first else len(piece) * BYTE_COST)
                    is_first = False
                if piece:
                    self._transport.write(b"%x\r\n%s\r\n" % (len(piece), piece) if is_chunked else piece)
        if is_chunked:
            self._transport.write(b"0\r\n\r\n")

    def _finish(self, incoming: IncomingRequest, *, keeps: bool) -> None:
        if self._transport.is_closing():
            return
        is_last = self._state.is_stopping and not self.requests and not self.is_reading
        if is_last or not keeps:
            # A response in pieces may have promised to keep the connection before the listener began to stop.
            self._end(lingers=not incoming.is_complete)
            return
        seconds = KEEP_ALIVE_S
        if self.is_reading:
            seconds = BODY_S if self._has_head else HEAD_S
        self._deadline = self._loop.time() + seconds

    def _wake(self) -> None:
        if self._progress is not None and not self._progress.done():
            self._progress.set_result(None)
        self._progress = None

    def _end(self, *, lingers: bool) -> None:
        self._stop_parsing()
        self.requests.clear()
        self._state.peers.release(self)
        self._deadline = self._loop.time() + LINGER_S
        if lingers and self._transport.can_write_eof():
            self._transport.write_eof()
        else:
            # TLS has its own closing handshake, and takes what still comes meanwhile.
            self._transport.close()


def _log_failure(incoming: IncomingRequest, error: BaseException) -> Response:
    log.error("the handler of a request failed", target=incoming.request.target.decode("latin-1"), exc_info=error)
    return INTERNAL_ERROR
