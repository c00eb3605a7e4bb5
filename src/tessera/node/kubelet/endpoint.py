"""The socket that kubelet calls.

It is created under another name and renamed when it is ready, so it never exists half made, and a stale socket of an
earlier run is replaced at once. Only the socket created here is removed again: another agent may have replaced it.
"""

from __future__ import annotations

import contextlib
import secrets
import stat
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import grpc
import structlog
from google.protobuf.message import Message
from grpc import aio

from tessera.node.kubelet import channels
from tessera.node.kubelet.socket_watch import FileId, file_id
from tessera.wire.kubelet.methods import Method

log = structlog.get_logger(__name__)

CHECK_S = 5.0
"""for the service to answer its own test call"""
GRACE_S = 2.0
"""for running calls when the service stops"""
MODE = 0o600
"""only root, which kubelet is"""


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
            server.add_insecure_port(channels.target(made))
            self._service.open()
            await server.start()
            self._put_in_place(made)
            await self._ask()
        except (OSError, RuntimeError, *channels.FAULTS) as error:
            await self.stop()
            raise ServingError(f"cannot serve on {self.path}: {channels.described(error)}") from error
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
        except channels.FAULTS:
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
        async with channels.open_channel(self.path) as channel:
            method, request = self._service.probe
            await channels.unary(channel, method)(request, timeout=CHECK_S)

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
