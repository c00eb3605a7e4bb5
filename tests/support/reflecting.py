"""A reflector on a scripted server, and a sink that remembers what it is told."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import msgspec

from tessera.kube.access import Access
from tessera.kube.client import KubeClient
from tessera.kube.errors import KubeError
from tessera.kube.reflector import Reflector
from tests.support.network import (
    Answer,
    RawServer,
    reply,
)


class Meta(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    namespace: str = ""
    name: str = ""
    uid: str = ""
    resource_version: str = ""


class Pod(msgspec.Struct, frozen=True, gc=False):
    metadata: Meta = Meta()
    node: str = ""


def pod(name: str, *, uid: str = "", version: str = "1", node: Any = "") -> dict[str, Any]:
    return {"metadata": {"name": name, "uid": uid or f"uid-{name}", "resourceVersion": version}, "node": node}


def page(*pods: dict[str, Any], version: str = "10", more: str = "") -> Answer:
    return reply(200, {"metadata": {"resourceVersion": version, "continue": more}, "items": list(pods)})


def line(type: str, obj: dict[str, Any]) -> bytes:
    return msgspec.json.encode({"type": type, "object": obj}) + b"\n"


def expired_line() -> bytes:
    return line("ERROR", {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"})


class RememberingSink:
    """A sink that remembers, and fails where told."""

    def __init__(self) -> None:
        self.pods: dict[str, Pod] = {}
        self.story: list[str] = []
        self.errors: list[KubeError] = []
        self.poison: set[str] = set()
        self.begun = asyncio.Event()

    def put(self, key: str, obj: Pod) -> None:
        self._tell(f"put {key}")
        self.pods[key] = obj

    def drop(self, key: str) -> None:
        self._tell(f"drop {key}")
        del self.pods[key]

    def synced(self) -> None:
        self._tell("synced")

    def _tell(self, what: str) -> None:
        self.story.append(what)
        self.begun.set()
        if what in self.poison:
            raise RuntimeError(f"cannot {what}")


def reflector_on(client: KubeClient, world: RememberingSink, **settings: Any) -> Reflector[Pod]:
    return Reflector(
        client,
        "/api/v1/pods",
        Pod,
        world,
        rng=random.Random(7),
        **settings,
    )


@asynccontextmanager
async def reflecting(
    *script: Answer, world: RememberingSink, **settings: Any
) -> AsyncIterator[tuple[RawServer, asyncio.Task[None]]]:
    async with RawServer(*script) as server, KubeClient(Access(server.url)) as client:
        reflector = reflector_on(client, world, **{"on_error": world.errors.append, **settings})
        task = asyncio.create_task(reflector.run())
        try:
            yield server, task
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


async def reflected(*script: Answer, world: RememberingSink, **settings: Any) -> RawServer:
    """Until the script has come to its last answer, which holds."""
    async with reflecting(*script, world=world, **settings) as (server, _):
        await server.wait_for(len(script))
        await asyncio.sleep(1)
    return server


def kinds(server: RawServer) -> list[str]:
    return [
        f"watch {request.query['resourceVersion']}" if "watch" in request.query else "list"
        for request in server.requests
    ]
