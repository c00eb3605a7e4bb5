"""The client of a call that returns a stream, as kubelet has it."""

from __future__ import annotations

from grpc import aio

from tessera.wire.kubelet.methods import Method, Request, Response


def streaming(
    channel: aio.Channel, method: Method[Request, Response]
) -> aio.UnaryStreamMultiCallable[Request, Response]:
    return channel.unary_stream(
        method.path,
        request_serializer=method.request.SerializeToString,
        response_deserializer=method.response.FromString,
    )
