"""The baseline of the cluster budget: an extender that takes the next node of the list and binds to it.

    python -m bench.baseline_extender --port 20000 --kubeconfig FILE

The least that an extender in Python can do: aiohttp on uvloop, plain HTTP in, one Binding out. It keeps no state,
watches nothing and writes no events. It runs until a signal ends it.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import ssl
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import msgspec
import uvloop
import yaml
from aiohttp import web

from bench.measurement import HOST

MAX_BYTES = 8 << 20
"""enough for a request with thousands of names"""


class FilterNames(msgspec.Struct, gc=False):
    """The names in a filter request."""

    names: list[str] = msgspec.field(name="NodeNames")


class BindArgs(msgspec.Struct, gc=False):
    """A bind request."""

    pod: str = msgspec.field(name="PodName")
    namespace: str = msgspec.field(name="PodNamespace")
    uid: str = msgspec.field(name="PodUID")
    node: str = msgspec.field(name="Node")


@dataclass(slots=True)
class BaselineExtender:
    """The routes; `session` reaches the apiserver."""

    session: aiohttp.ClientSession
    filtered: int = 0
    _filter: msgspec.json.Decoder[FilterNames] = field(default_factory=lambda: msgspec.json.Decoder(FilterNames))
    _bind: msgspec.json.Decoder[BindArgs] = field(default_factory=lambda: msgspec.json.Decoder(BindArgs))

    def application(self) -> web.Application:
        app = web.Application(client_max_size=MAX_BYTES)
        app.add_routes([web.post("/filter", self.filter), web.post("/bind", self.bind), web.get("/readyz", self.ready)])
        return app

    async def ready(self, _request: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def filter(self, request: web.Request) -> web.Response:
        names = self._filter.decode(await request.read()).names
        self.filtered += 1
        return _json({"NodeNames": [names[self.filtered % len(names)]]})

    async def bind(self, request: web.Request) -> web.Response:
        args = self._bind.decode(await request.read())
        body = {
            "metadata": {"name": args.pod, "namespace": args.namespace, "uid": args.uid},
            "target": {"kind": "Node", "name": args.node},
        }
        path = f"/api/v1/namespaces/{args.namespace}/pods/{args.pod}/binding"
        headers = {"Content-Type": "application/json"}
        async with self.session.post(path, data=msgspec.json.encode(body), headers=headers) as response:
            text = await response.text()
            return _json({"Error": "" if response.ok else text})


def _json(body: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(body), content_type="application/json")


async def serve(port: int, kubeconfig: Path) -> None:
    config = yaml.safe_load(kubeconfig.read_text())
    cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
    trust = ssl.create_default_context(cafile=cluster["certificate-authority"])
    async with aiohttp.ClientSession(
        cluster["server"],
        headers={"Authorization": f"Bearer {user['token']}", "User-Agent": "do-nothing"},
        connector=aiohttp.TCPConnector(ssl=trust),
    ) as session:
        runner = web.AppRunner(BaselineExtender(session).application(), access_log=None, keepalive_timeout=120.0)
        await runner.setup()
        await web.TCPSite(runner, HOST, port).start()
        gc.collect()
        gc.freeze()
        await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.baseline_extender", description=__doc__.split("\n")[0])
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--kubeconfig", type=Path, required=True)
    options = parser.parse_args()
    uvloop.run(serve(options.port, options.kubeconfig))


if __name__ == "__main__":
    main()
