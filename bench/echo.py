"""The anchor of the filter's budget: a route on the product's own listener that decodes a request and decides nothing.

What a filter takes above this is the decision. The port is printed as the only line on standard output; the end of
standard input ends the process.
"""

from __future__ import annotations

import asyncio
import gc
import sys

import uvloop
from aiohttp import web

from tessera.scheduler.serving import JSON, Listener
from tessera.scheduler.settings import Address
from tessera.wire.extender import decode_filter_args, encode_filter_result

ANSWER = encode_filter_result(node_names=["gpu-a100-pool-node-00000"])


async def echo(request: web.Request) -> web.Response:
    decode_filter_args(await request.read())
    return web.Response(body=ANSWER, content_type=JSON)


async def serve() -> None:
    listener = Listener(Address("127.0.0.1", 0), [web.post("/echo", echo)], grace=0.1)
    await listener.start()
    gc.collect()
    gc.freeze()
    print(listener.address.port, flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await listener.stop()


if __name__ == "__main__":
    uvloop.run(serve())
