"""The sockets in kubelet's directories: gRPC over them, the one that kubelet calls, and a watch on those of others.

Every channel has its own connections, so a new one never inherits the back-off of one that failed. The own socket is
created under another name and renamed when it is ready, so it never exists half made, and a stale socket of an earlier
run is replaced at once. Only the socket created here is removed again: another agent may have replaced it.

The watch looks several times a second. A notification would not do: it can be lost, a directory can be replaced or
missing, and a node can run out of watches. Looking takes microseconds and misses none of these.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import stat
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import quote

import grpc
import structlog
from google.protobuf.message import Message
from grpc import aio

from tessera.wire.kubelet.methods import Method, Request, Response

log = structlog.get_logger(__name__)

AUTHORITY = "localhost"
"""kubelet accepts no other"""
MAX_BYTES = 16 << 20
"""per message; a full node needs more than gRPC's default of 4 MiB"""
_OPTIONS: tuple[tuple[str, str | int], ...] = (
    ("grpc.default_authority", AUTHORITY),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", MAX_BYTES),
)

FAULTS = (aio.AioRpcError, aio.BaseError)
"""what a call may raise"""

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"

LOOK_EVERY_S = 0.2

CHECK_S = 5.0
"""for the service to answer its own test call"""
GRACE_S = 2.0
"""for running calls when the service stops"""
MODE = 0o600
"""only root, which kubelet is"""


def target(socket: Path) -> str:
    """Returns the address as a URI, as gRPC expects it."""
    return f"unix:{quote(str(socket.absolute()))}"


def open_channel(socket: Path) -> aio.Channel:
    """Connects with the first call."""
    return aio.insecure_channel(target(socket), options=_OPTIONS)


def unary(channel: aio.Channel, method: Method[Request, Response]) -> aio.UnaryUnaryMultiCallable[Request, Response]:
    return channel.unary_unary(
        method.path,
        request_serializer=method.request.SerializeToString,
        response_deserializer=method.response.FromString,
    )


def answering(
    method: Method[Request, Response],
    behaviour: Callable[
        [Request, aio.ServicerContext[Request, Response]], Awaitable[Response] | AsyncIterator[Response]
    ],
) -> tuple[str, Handler]:
    """Returns the server side of a call, by name."""
    make = grpc.unary_stream_rpc_method_handler if method.streams else grpc.unary_unary_rpc_method_handler
    handler: Handler = make(behaviour, method.request.FromString, method.response.SerializeToString)
    return method.name, handler


def described(error: BaseException) -> str:
    """Describes a failed call in a few words."""
    if isinstance(error, aio.AioRpcError):
        return f"{error.code().name}: {error.details() or 'no details'}"
    return str(error) or type(error).__name__


class FileId(NamedTuple):
    """One file, and no later file of the same name: inodes are reused, but not at the same time."""

    device: int
    inode: int
    born_ns: int
    """modification time; a socket's file is never written to"""


class SocketState(NamedTuple):
    """Which files exist; None for those that do not."""

    folder: tuple[int, int] | None
    """of the agent's own socket"""
    own: FileId | None
    kubelet: FileId | None


def file_id(path: Path) -> FileId | None:
    """Returns None if there is no file, or none that can be read."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return FileId(found.st_dev, found.st_ino, found.st_mtime_ns)


class SocketWatch:
    def __init__(self, *, own: Path, kubelet: Path | None, look_every: float = LOOK_EVERY_S) -> None:
        self._own = own
        self._kubelet = kubelet
        self._look_every = look_every

    def look(self) -> SocketState:
        """Returns the current state."""
        folder = file_id(self._own.parent)
        return SocketState(
            folder=None if folder is None else folder[:2],
            own=file_id(self._own),
            kubelet=None if self._kubelet is None else file_id(self._kubelet),
        )

    async def other_than(self, seen: SocketState, *, within: float) -> SocketState:
        """Returns the state as soon as it differs, or the same state after so many seconds."""
        time = asyncio.get_running_loop().time
        end = time() + within
        while (state := self.look()) == seen and (left := end - time()) > 0:
            await asyncio.sleep(min(left, self._look_every))
        return state


class ServingError(Exception):
    """The socket cannot be served; the text says why."""


class Service(ABC):
    """What is served on a socket."""

    @property
    @abstractmethod
    def probe(self) -> tuple[Method[Any, Any], Message]:
        """A call that changes nothing, to see whether the socket is answered."""

    @abstractmethod
    def handler(self) -> grpc.GenericRpcHandler: ...

    def open(self) -> None:  # noqa: B027 Most services have nothing to do.
        """Calls may come from now on."""

    def close(self) -> None:  # noqa: B027
        """Ends all streams."""


class Endpoint:
    """One socket, which may be served again after `stop`."""

    def __init__(self, path: Path, service: Service, *, grace: float = GRACE_S) -> None:
        self.path = path
        self._service = service
        self._grace = grace
        self._server: aio.Server | None = None
        self.file: FileId | None = None
        """of the socket; None while it is not served"""

    async def serve(self) -> None:
        """Returns after the service answered a test call. Raises ServingError; then nothing is served."""
        await self.stop()
        self._server = server = aio.server(handlers=[self._service.handler()])
        made = self.path.with_name(f".{self.path.stem}-{secrets.token_hex(4)}.sock")
        try:
            self._check_place()
            server.add_insecure_port(target(made))
            self._service.open()
            await server.start()
            self._put_in_place(made)
            await self._ask()
        except (OSError, RuntimeError, *FAULTS) as error:
            await self.stop()
            raise ServingError(f"cannot serve on {self.path}: {described(error)}") from error
        finally:
            _unlink(made)

    @property
    def is_in_place(self) -> bool:
        """Whether the socket that this endpoint serves is still where kubelet looks for it."""
        return self.file is not None and file_id(self.path) == self.file

    async def keep_served(self) -> bool:
        """Serves if the socket is not where kubelet looks for it; whether it did. Raises ServingError."""
        if self.is_in_place:
            return False
        if self.file is not None and await self.is_answered():
            # The newer agent wins, or the two would replace each other forever.
            raise ServingError(f"another agent serves on {self.path}")
        await self.serve()
        log.info("serving", socket=str(self.path))
        return True

    async def is_answered(self) -> bool:
        """Whether this endpoint or another one serves the socket."""
        try:
            await self._ask()
        except FAULTS:
            return False
        return True

    async def stop(self) -> None:
        """Ends streams, gives running calls a moment, and removes the socket."""
        server, file = self._server, self.file
        self._server = self.file = None
        if server is None:
            return
        self._service.close()
        if file is not None and file_id(self.path) == file:
            _unlink(self.path)
        await server.stop(self._grace)

    async def _ask(self) -> None:
        async with open_channel(self.path) as channel:
            method, request = self._service.probe
            await unary(channel, method)(request, timeout=CHECK_S)

    def _check_place(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISSOCK(self.path.lstat().st_mode):
                raise FileExistsError("the path exists and is not a socket")

    def _put_in_place(self, made: Path) -> None:
        made.chmod(MODE)
        self.file = file_id(made)
        made.rename(self.path)


def _unlink(path: Path) -> None:
    # The next attempt meets and reports the same problem.
    with contextlib.suppress(OSError):
        path.unlink()
