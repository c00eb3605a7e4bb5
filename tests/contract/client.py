"""A plain client for the contract suite that shows responses unchanged."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import ssl
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import yaml

Json = dict[str, Any]

MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"
APPLY = "application/apply-patch+yaml"
TABLE = (
    "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json"
)

PATIENCE_S = 60.0
"""for one event of a watch"""


@dataclass(frozen=True)
class Answer:
    status: int
    body: Any
    headers: Any

    @property
    def reason(self) -> str:
        return str(self.body.get("reason", ""))

    @property
    def message(self) -> str:
        return str(self.body.get("message", ""))


class Watch:
    """The events of a watch, one by one; `None` is the end of the stream."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response

    async def next(self) -> Json | None:
        async with asyncio.timeout(PATIENCE_S):
            line = await self._response.content.readline()
        return json.loads(line) if line else None

    async def next_change(self) -> Json:
        """The next event that is not a bookmark."""
        while True:
            event = await self.next()
            assert event is not None, "the watch ended"
            if event["type"] != "BOOKMARK":
                return event

    async def expect(self, kind: str) -> Json:
        """The object of the next event that is not a bookmark, which must be of this type."""
        event = await self.next_change()
        assert event["type"] == kind, event
        found: Json = event["object"]
        return found


class Client:
    """Speaks to one API server."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self.session = session
        self.url = url

    async def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        media: str = "application/json",
        accept: str = "application/json",
        **query: str,
    ) -> Answer:
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        headers = {"Accept": accept} | ({"Content-Type": media} if data is not None else {})
        async with self.session.request(
            method, self.url + path, data=io.BytesIO(data) if data is not None else None, headers=headers, params=query
        ) as response:
            text = await response.read()
            found = json.loads(text) if response.content_type == "application/json" else text.decode()
            return Answer(response.status, found, response.headers)

    async def get(self, path: str, **query: str) -> Answer:
        return await self.ask("GET", path, **query)

    async def post(self, path: str, body: Any, **query: str) -> Answer:
        return await self.ask("POST", path, body, **query)

    async def put(self, path: str, body: Any, **query: str) -> Answer:
        return await self.ask("PUT", path, body, **query)

    async def patch(self, path: str, body: Any, media: str = MERGE, **query: str) -> Answer:
        return await self.ask("PATCH", path, body, media=media, **query)

    async def delete(self, path: str, body: Any = None, **query: str) -> Answer:
        return await self.ask("DELETE", path, body, **query)

    async def made(self, path: str, body: Any) -> Json:
        """Creates an object; must succeed."""
        answer = await self.post(path, body)
        assert answer.status == 201, answer.body
        found: Json = answer.body
        return found

    @asynccontextmanager
    async def watch(self, path: str, **query: str) -> AsyncIterator[Watch]:
        params = {"watch": "true"} | query
        async with self.session.get(self.url + path, params=params) as response:
            assert response.status == 200, await response.text()
            yield Watch(response)

    async def until(self, path: str, holds: Callable[[Json], object], **query: str) -> Json:
        """The first object of a list, now or later, for which `holds` is true."""
        async with self.watch(path, **query) as watch:
            while True:
                event = await watch.next_change()
                found: Json = event["object"]
                if event["type"] != "DELETED" and holds(found):
                    return found

    async def until_gone(self, path: str, name: str) -> None:
        """Waits until a list has no object of this name."""
        selector = f"metadata.name={name}"
        listed = (await self.get(path, fieldSelector=selector)).body
        if listed["items"]:
            version = listed["metadata"]["resourceVersion"]
            async with self.watch(path, resourceVersion=version, fieldSelector=selector) as watch:
                while (await watch.next_change())["type"] != "DELETED":
                    pass


@asynccontextmanager
async def client(kubeconfig: Json) -> AsyncIterator[Client]:
    """A client for the current context of a kubeconfig: tokens, client certificates and authorities, no plugins."""
    context = _named(kubeconfig["contexts"], kubeconfig["current-context"])["context"]
    cluster = _named(kubeconfig["clusters"], context["cluster"])["cluster"]
    user = _named(kubeconfig["users"], context["user"])["user"] or {}
    headers = {"Authorization": f"Bearer {user['token']}"} if user.get("token") else {}
    tls = _tls(cluster, user) if cluster["server"].startswith("https") else False
    connector = aiohttp.TCPConnector(ssl=tls)
    timeout = aiohttp.ClientTimeout(total=120)
    async with aiohttp.ClientSession(connector=connector, headers=headers, timeout=timeout) as session:
        yield Client(session, cluster["server"].rstrip("/"))


def read_kubeconfig(path: Path) -> Json:
    found: Json = yaml.safe_load(path.read_text())
    return found


def _named(entries: list[Json], name: str) -> Json:
    return next(entry for entry in entries if entry["name"] == name)


def _tls(cluster: Json, user: Json) -> ssl.SSLContext:
    authority = _pem(cluster, "certificate-authority")
    tls = ssl.create_default_context(cadata=authority.decode() if authority else None)
    certificate, key = _pem(user, "client-certificate"), _pem(user, "client-key")
    if certificate and key:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "client.pem")
            path.write_bytes(certificate + b"\n" + key)
            tls.load_cert_chain(path)
    return tls


def _pem(entry: Json, name: str) -> bytes | None:
    if entry.get(f"{name}-data"):
        return base64.b64decode(entry[f"{name}-data"])
    return Path(entry[name]).read_bytes() if entry.get(name) else None
