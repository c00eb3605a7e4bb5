"""A minimal apiserver with prepared responses: paged lists, open watches, and success for every write.

    python -m bench.canned_api --nodes 1000 --devices 8 --pods-per-node 16

It feeds a scheduler under measurement at the cost of copying bytes. Nothing changes here: writes are counted and
forgotten. It prints its port as the only line on standard output, and ends with standard input.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
import uvloop
from aiohttp import web

from bench import fleet

VERSION = 1_000_000
"""resourceVersion of every list"""
BOOKMARK_S = 20.0
"""an apiserver sends one about every minute"""
WATCH_S = 300
"""of a watch without timeoutSeconds"""
HOST = "127.0.0.1"
REVIEWS = {
    "tokenreviews": {"authenticated": True, "user": {"username": "viewer"}},
    "subjectaccessreviews": {"allowed": True},
}
"""every caller may see everything"""


@dataclass(frozen=True, slots=True)
class Collection:
    """All objects of one resource, encoded."""

    kind: str
    items: Sequence[bytes]

    def page(self, start: int, limit: int) -> bytes:
        """`limit` objects from `start` on; 0 = all the others."""
        end = min(start + limit, len(self.items)) if limit else len(self.items)
        metadata: dict[str, str | int] = {"resourceVersion": str(VERSION)}
        if end < len(self.items):
            metadata |= {"continue": str(end), "remainingItemCount": len(self.items) - end}
        head = b'{"kind":"%bList","apiVersion":"v1","metadata":%b,"items":['
        return b"".join(
            (
                head % (self.kind.encode(), msgspec.json.encode(metadata)),
                b",".join(self.items[start:end]),
                b"]}\n",
            )
        )

    def bookmark(self, number: int) -> bytes:
        metadata = {"resourceVersion": str(VERSION + number), "creationTimestamp": None}
        obj = {"kind": self.kind, "apiVersion": "v1", "metadata": metadata}
        return msgspec.json.encode({"type": "BOOKMARK", "object": obj}) + b"\n"


def collections(*, nodes: int, devices: int, pods_per_node: int) -> dict[str, Collection]:
    """The resources that the scheduler watches, by plural."""
    return {
        "nodes": Collection("Node", fleet.node_objects(nodes, devices)),
        "pods": Collection("Pod", fleet.pod_objects(nodes, devices, pods_per_node)),
        "resourcequotas": Collection("ResourceQuota", ()),
    }


class CannedApi:
    """The routes."""

    def __init__(self, served: Mapping[str, Collection]) -> None:
        self._served = served
        self.writes: Counter[str] = Counter()
        """by method and last part of the path"""

    def application(self) -> web.Application:
        app = web.Application(client_max_size=8 << 20)
        app.router.add_get("/api/v1/{plural}", self._read)
        for method in ("POST", "PATCH", "PUT", "DELETE"):
            app.router.add_route(method, "/{path:.*}", self._write)
        return app

    async def _read(self, request: web.Request) -> web.StreamResponse:
        plural = request.match_info["plural"]
        collection = self._served.get(plural)
        if collection is None:
            return _status(404, "NotFound", f"no {plural} here")
        try:
            start, limit, seconds = (
                int(request.query.get(name, default))
                for name, default in (("continue", "0"), ("limit", "0"), ("timeoutSeconds", str(WATCH_S)))
            )
        except ValueError as error:
            return _status(400, "BadRequest", str(error))
        if request.query.get("watch") == "true":
            return await self._watch(request, collection, seconds)
        if request.query.get("fieldSelector") == "spec.nodeName=":
            collection = Collection(collection.kind, ())  # All pods here are bound.
        return web.Response(body=collection.page(max(start, 0), max(limit, 0)), content_type="application/json")

    async def _watch(self, request: web.Request, collection: Collection, seconds: int) -> web.StreamResponse:
        """Sends bookmarks until the time is over; the first at once."""
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        loop = asyncio.get_running_loop()
        deadline, number = loop.time() + seconds, 0
        with contextlib.suppress(ConnectionError):
            while True:
                number += 1
                await response.write(collection.bookmark(number))
                left = deadline - loop.time()
                await asyncio.sleep(max(min(left, BOOKMARK_S), 0))
                if left <= BOOKMARK_S:
                    break
            await response.write_eof()
        return response

    async def _write(self, request: web.Request) -> web.Response:
        body = await request.read()
        self.writes[f"{request.method} {request.path.rpartition('/')[2]}"] += 1
        last = request.path.rpartition("/")[2]
        if last in REVIEWS:
            review = {**msgspec.json.decode(body), "status": REVIEWS[last]}
            return web.Response(status=201, body=msgspec.json.encode(review), content_type="application/json")
        if request.method == "POST" and last != "binding":
            return web.Response(status=201, body=body, content_type="application/json")
        return _status(201 if request.method == "POST" else 200, "", "")


def _status(code: int, reason: str, message: str) -> web.Response:
    said = {"kind": "Status", "apiVersion": "v1", "status": "Failure" if reason else "Success", "code": code}
    if reason:
        said |= {"reason": reason, "message": message}
    return web.Response(status=code, body=msgspec.json.encode(said), content_type="application/json")


async def serve(api: CannedApi) -> None:
    """Serves until standard input ends, which it does when the parent process ends."""
    runner = web.AppRunner(api.application(), access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, HOST, 0).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await runner.cleanup()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.canned_api", description=__doc__.split("\n")[0])
    parser.add_argument("--nodes", type=int, default=1_000, help="default %(default)s")
    parser.add_argument("--devices", type=int, default=8, help="cards per node, default %(default)s")
    parser.add_argument("--pods-per-node", type=int, default=16, help="running pods per node, default %(default)s")
    options = parser.parse_args(arguments)
    served = collections(nodes=options.nodes, devices=options.devices, pods_per_node=options.pods_per_node)
    uvloop.run(serve(CannedApi(served)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
