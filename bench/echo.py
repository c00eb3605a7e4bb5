"""The anchor of the filter's budget: routes on aiohttp that decode a request and decide nothing.

The budget was set against aiohttp, on which filter and bind were then; they have a server of their own by now
(docs/adr/0006), but an anchor that moves with the product measures nothing. `/echo` answers one name as a placement
does, `/echo-refusal` a ready-made reason for every node, because sending hundreds of kilobytes costs more than deciding
what is in them. The port is the only line on standard output; the end of standard input ends the process.
"""

from __future__ import annotations

import asyncio
import gc
import sys

import uvloop
from aiohttp import web

from bench.measurement import HOST
from tessera.http11.request_reader import MAX_BODY_BYTES
from tessera.scheduler.http_api import JSON
from tessera.wire.extender import decode_filter_args, decode_node_names, encode_filter_result

ANSWER = encode_filter_result(node_names=["gpu-a100-pool-node-00000"])


def decoded_names(body: bytes) -> list[str]:
    """All of the request, the names of the nodes included."""
    args = decode_filter_args(body)
    return decode_node_names(args.node_names) if args.node_names is not None else []


async def echo(request: web.Request) -> web.Response:
    decoded_names(await request.read())
    return web.Response(body=ANSWER, content_type=JSON)


class EchoRefusal:
    """The same large response to every request."""

    def __init__(self) -> None:
        self._answer = b""

    async def __call__(self, request: web.Request) -> web.Response:
        names = decoded_names(await request.read())
        self._answer = self._answer or encode_filter_result(failed=dict.fromkeys(names, "8/8 CardInsufficientMemory"))
        return web.Response(body=self._answer, content_type=JSON)


async def serve() -> None:
    application = web.Application(client_max_size=MAX_BODY_BYTES)
    application.add_routes([web.post("/echo", echo), web.post("/echo-refusal", EchoRefusal().__call__)])
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, HOST, 0).start()
    gc.collect()
    gc.freeze()
    print(runner.addresses[0][1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await runner.cleanup()


if __name__ == "__main__":
    uvloop.run(serve())
