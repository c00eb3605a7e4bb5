"""The verbs of the apiserver: one call, one request (lists: one a page), each with a deadline, none ever repeated.

JSON in and out, decoded to the type that the caller names. Whether to try again, and after what, is the caller's to
decide; `Unreachable.maybe_done` says what it needs to know for that.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from types import TracebackType
from typing import Any, Self, TypeVar, overload

import msgspec

from tessera import __version__
from tessera.kube.access import Access
from tessera.kube.errors import ApiError
from tessera.kube.limiter import Limiter
from tessera.kube.resources import PODS
from tessera.kube.responses import Decoders, Listing, ListPage, OnUnreadable, Page, WatchEvent
from tessera.kube.transport import Transport

T = TypeVar("T")

JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"

REQUEST_SECONDS = 30.0
PAGE_SIZE = 500
"""objects a page: some megabytes, and a decoding that the event loop does not feel"""
WHOLE_LIST_FACTOR = 4
"""how much longer a list in one piece may take than a page"""
BURST_SECONDS = 2.0
"""of the rate that may go at once, unless told"""


class KubeClient:
    """A session with one apiserver. Use as `async with KubeClient(access) as client`."""

    def __init__(
        self,
        access: Access,
        *,
        timeout: float = REQUEST_SECONDS,
        qps: float | None = None,
        burst: int | None = None,
        user_agent: str = f"tessera/{__version__}",
    ) -> None:
        """`timeout` in seconds a request; `qps` requests a second, `burst` of them at once."""
        limiter = Limiter(qps=qps, burst=burst or max(1, round(BURST_SECONDS * qps))) if qps else None
        self._transport = Transport(access, limiter=limiter, user_agent=user_agent)
        self._timeout = timeout
        self._decoders = Decoders()
        self.namespace = access.namespace
        """the one that the access configuration names"""

    async def __aenter__(self) -> Self:
        self._transport.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._transport.close()

    async def get(self, path: str, kind: type[T]) -> T:
        return self._decoders.one(await self._exchange("GET", path), kind)

    async def list(
        self,
        path: str,
        kind: type[T],
        *,
        label_selector: str = "",
        field_selector: str = "",
        page_size: int = PAGE_SIZE,
        on_unreadable: OnUnreadable | None = None,
    ) -> Listing[T]:
        """All objects at once. An object that does not fit `kind` goes to `on_unreadable`, where that is given, and
        fails the list otherwise."""
        items: list[T] = []
        version = ""
        pages = self.pages(
            path,
            kind,
            label_selector=label_selector,
            field_selector=field_selector,
            page_size=page_size,
            on_unreadable=on_unreadable,
        )
        async with aclosing(pages):
            async for page in pages:
                items = page.items if page.afresh else items + page.items
                version = page.resource_version
        return Listing(items, version)

    async def pages(
        self,
        path: str,
        kind: type[T],
        *,
        label_selector: str = "",
        field_selector: str = "",
        page_size: int = PAGE_SIZE,
        on_unreadable: OnUnreadable | None = None,
    ) -> AsyncGenerator[ListPage[T], None]:
        """All objects, one page in memory at a time. A page that is `afresh` voids the ones before it."""
        selectors = _selectors(label_selector, field_selector)
        token = ""
        while True:
            query = {**selectors, "limit": str(page_size)} | ({"continue": token} if token else {})
            try:
                page = await self._page(path, kind, query, self._timeout, on_unreadable)
            except ApiError as error:
                if not token or not error.expired:
                    raise
                # The pages so far are of a version that is gone; a list in one piece cannot expire half-way.
                whole = await self._page(path, kind, selectors, self._timeout * WHOLE_LIST_FACTOR, on_unreadable)
                yield ListPage(whole.items or [], whole.metadata.resource_version, afresh=True)
                return
            yield ListPage(page.items or [], page.metadata.resource_version, afresh=not token)
            token = page.metadata.continue_ or ""
            if not token:
                return

    async def watch(
        self,
        path: str,
        kind: type[T],
        *,
        resource_version: str,
        timeout_seconds: int,
        label_selector: str = "",
        field_selector: str = "",
        on_unreadable: OnUnreadable | None = None,
    ) -> AsyncGenerator[WatchEvent[T], None]:
        """Changes after `resource_version`, until the server ends the watch, which it should after `timeout_seconds`.

        Raises ApiError for a refusal and for an ERROR event; Unreachable for an end in the middle of a line or by
        force, and for a server that does not keep to `timeout_seconds`."""
        query = _selectors(label_selector, field_selector) | {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": str(timeout_seconds),
        }
        lines = self._transport.stream(
            path, timeout=self._timeout, stream_timeout=timeout_seconds + self._timeout, query=query
        )
        async with aclosing(lines):
            async for line in lines:
                event = self._decoders.event(line, kind, on_unreadable)
                if event is not None:
                    yield event

    @overload
    async def create(self, path: str, body: Any, kind: None = None) -> None: ...
    @overload
    async def create(self, path: str, body: Any, kind: type[T]) -> T: ...
    async def create(self, path: str, body: Any, kind: type[T] | None = None) -> T | None:
        return self._decoded(await self._exchange("POST", path, body), kind)

    @overload
    async def patch(self, path: str, body: Any, *, content_type: str = ..., kind: None = None) -> None: ...
    @overload
    async def patch(self, path: str, body: Any, *, content_type: str = ..., kind: type[T]) -> T: ...
    async def patch(
        self, path: str, body: Any, *, content_type: str = MERGE_PATCH, kind: type[T] | None = None
    ) -> T | None:
        return self._decoded(await self._exchange("PATCH", path, body, content_type), kind)

    @overload
    async def replace(self, path: str, body: Any, kind: None = None) -> None: ...
    @overload
    async def replace(self, path: str, body: Any, kind: type[T]) -> T: ...
    async def replace(self, path: str, body: Any, kind: type[T] | None = None) -> T | None:
        return self._decoded(await self._exchange("PUT", path, body), kind)

    async def delete(self, path: str, *, uid: str | None = None, grace_seconds: int | None = None) -> None:
        """With `uid`, only if the object is still that one (409 otherwise)."""
        options: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if uid is not None:
            options["preconditions"] = {"uid": uid}
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        await self._exchange("DELETE", path, options)

    async def bind(
        self,
        namespace: str,
        name: str,
        *,
        uid: str,
        node: str,
        annotations: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> None:
        """Give the pod its node, annotations and labels in one write, if it is still the pod with this `uid`."""
        metadata: dict[str, Any] = {"name": name, "namespace": namespace, "uid": uid}
        if annotations:
            metadata["annotations"] = dict(annotations)
        if labels:
            metadata["labels"] = dict(labels)
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": target}
        await self._exchange("POST", PODS.path(namespace, name, "binding"), binding)

    def _decoded(self, data: bytes, kind: type[T] | None) -> T | None:
        return None if kind is None else self._decoders.one(data, kind)

    async def _page(
        self, path: str, kind: type[T], query: Mapping[str, str], timeout: float, on_unreadable: OnUnreadable | None
    ) -> Page[T]:
        data = await self._transport.exchange("GET", path, timeout=timeout, query=query)
        return self._decoders.page(data, kind, on_unreadable)

    async def _exchange(self, method: str, path: str, body: Any = None, content_type: str = JSON) -> bytes:
        """`body` is anything that msgspec encodes, or bytes that go as they are."""
        data = body if body is None or isinstance(body, bytes) else msgspec.json.encode(body)
        return await self._transport.exchange(
            method, path, timeout=self._timeout, query={}, body=data, content_type=content_type
        )


def _selectors(label_selector: str, field_selector: str) -> dict[str, str]:
    given = {"labelSelector": label_selector, "fieldSelector": field_selector}
    return {name: text for name, text in given.items() if text}
