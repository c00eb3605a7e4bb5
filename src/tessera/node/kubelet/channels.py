"""gRPC over unix sockets: clients and servers for the `Method`s in `wire.kubelet`.

Every channel has its own connections, so a new one never inherits the back-off of one that failed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import quote

import grpc
from grpc import aio

from tessera.wire.kubelet.methods import Method, Request, Response

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
