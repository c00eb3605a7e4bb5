"""The anchor of the filter's budget: routes on the product's own listener that decode a request and decide nothing.

What a filter takes above this is the decision. `/echo` answers one name as a placement does, `/echo-refusal` a ready-
made reason for every node, because sending hundreds of kilobytes costs more than deciding what is in them. The port
is printed as the only line on standard output; the end of standard input ends the process.
"""

from __future__ import annotations

import asyncio
import gc
import sys

import uvloop

from tessera.scheduler.serving import JSON
from tessera.services.addresses import Address
from tessera.services.answers import Answer
from tessera.services.lean_http import LeanListener
from tessera.services.lean_reading import Route
from tessera.wire.extender import decode_filter_args, decode_node_names, encode_filter_result

ANSWER = encode_filter_result(node_names=["gpu-a100-pool-node-00000"])


def decoded_names(body: bytes) -> list[str]:
    """All of the request, the names of the nodes included."""
    args = decode_filter_args(body)
    return decode_node_names(args.node_names) if args.node_names is not None else []


def echo(body: bytes) -> Answer:
    decoded_names(body)
    return Answer(200, ANSWER, JSON)


class Refusal:
    """The same large answer to everybody."""

    def __init__(self) -> None:
        self._answer = b""

    def __call__(self, body: bytes) -> Answer:
        names = decoded_names(body)
        self._answer = self._answer or encode_filter_result(failed=dict.fromkeys(names, "8/8 CardInsufficientMemory"))
        return Answer(200, self._answer, JSON)


async def serve() -> None:
    routes = [Route("POST", "/echo", echo), Route("POST", "/echo-refusal", Refusal())]
    listener = LeanListener(Address("127.0.0.1", 0), routes, grace=0.1)
    await listener.start()
    gc.collect()
    gc.freeze()
    print(listener.address.port, flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await listener.stop()


if __name__ == "__main__":
    uvloop.run(serve())
