"""The verbs of the apiserver: one request per call (one per page for lists), with a deadline, never repeated.

JSON in and out, decoded to the type that the caller names. The caller decides about retries;
`Unreachable.maybe_done` tells it whether a write may have taken effect.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from types import TracebackType
from typing import Any, Self, TypedDict, TypeVar, Unpack, overload

import msgspec

from tessera import __version__
from tessera.kube.access import Access
from tessera.kube.decoder import Decoders, ListBody, ListPage, ObjectList, OnUnreadable, WatchEvent
from tessera.kube.errors import ApiError, is_not_found
from tessera.kube.resources import PODS
from tessera.kube.transport import RateLimiter, Transport

T = TypeVar("T")

JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"

REQUEST_S = 30.0
PAGE_SIZE = 500
"""objects per page: some megabytes, decoded in a time that does not hold up the event loop"""
WHOLE_LIST_FACTOR = 4
"""how much longer a list in one piece may take than one page"""
BURST_S = 2.0
"""the default burst is the number of requests of this time"""


class ListOptions(TypedDict, total=False):
    """Which objects are listed, and how."""

    field_selector: str
    label_selector: str
    page_size: int
    on_unreadable: OnUnreadable
    """gets objects that cannot be decoded; without it they fail the list"""


class KubeClient:
    """A client of one apiserver. Use it as `async with KubeClient(access) as client`."""

    def __init__(
        self,
        access: Access,
        *,
        timeout: float = REQUEST_S,
        qps: float | None = None,
        burst: int | None = None,
        user_agent: str = f"tessera/{__version__}",
    ) -> None:
        """`timeout` is in seconds per request, `qps` in requests per second; `burst` of them may go at once."""
        limiter = RateLimiter(qps=qps, burst=burst or max(1, round(BURST_S * qps))) if qps else None
        self._transport = Transport(access, timeout=timeout, limiter=limiter, user_agent=user_agent)
        self._timeout = timeout
        self._decoders = Decoders()
        self.namespace = access.namespace
        """the namespace of the access configuration"""

    async def __aenter__(self) -> Self:
        self._transport.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._transport.close()

    async def get(self, path: str, kind: type[T]) -> T:
        return self._decoders.decode(await self._transport.request("GET", path), kind)

    async def find(self, path: str, kind: type[T]) -> T | None:
        """None if there is no such object."""
        try:
            return await self.get(path, kind)
        except ApiError as error:
            if not is_not_found(error):
                raise
            return None

    async def get_raw(self, path: str, *, timeout: float | None = None) -> bytes:
        """The response as it is, e.g. of a pod behind the apiserver's proxy."""
        return await self._transport.request("GET", path, timeout=timeout)

    async def list(self, path: str, kind: type[T], **options: Unpack[ListOptions]) -> ObjectList[T]:
        """All objects at once."""
        items: list[T] = []
        version = ""
        async with aclosing(self.pages(path, kind, **options)) as pages:
            async for page in pages:
                items = page.items if page.is_first else items + page.items
                version = page.resource_version
        return ObjectList(items, version)

    async def pages(
        self, path: str, kind: type[T], **options: Unpack[ListOptions]
    ) -> AsyncGenerator[ListPage[T], None]:
        """All objects, one page in memory at a time. A page that `is_first` voids the ones before it."""
        selectors = _selectors(options.get("field_selector", ""), options.get("label_selector", ""))
        limit, on_unreadable = str(options.get("page_size", PAGE_SIZE)), options.get("on_unreadable")
        token = ""
        while True:
            query = {**selectors, "limit": limit} | ({"continue": token} if token else {})
            try:
                page = await self._page(path, kind, query, on_unreadable)
            except ApiError as error:
                if not token or not error.expired:
                    raise
                # The version of the pages so far is gone. A list in one piece cannot expire half-way.
                timeout = self._timeout * WHOLE_LIST_FACTOR
                whole = await self._page(path, kind, selectors, on_unreadable, timeout=timeout)
                yield ListPage(whole.items or [], whole.metadata.resource_version, is_first=True)
                return
            yield ListPage(page.items or [], page.metadata.resource_version, is_first=not token)
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
        field_selector: str = "",
        on_unreadable: OnUnreadable | None = None,
        on_bytes: Callable[[], None] | None = None,
    ) -> AsyncGenerator[WatchEvent[T], None]:
        """Changes after `resource_version`, until the server ends the watch, which it should after `timeout_seconds`,
        or says nothing for longer than bookmarks take. `on_bytes` is called whenever it says something.

        Raises ApiError for a refusal and for an ERROR event, and Unreachable if the connection fails, ends in the
        middle of a line, or lasts longer than it should."""
        query = _selectors(field_selector) | {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": str(timeout_seconds),
        }
        batches = self._transport.stream_lines(path, query=query, duration=timeout_seconds, on_bytes=on_bytes)
        async with aclosing(batches):
            async for lines in batches:
                for line in lines:
                    event = self._decoders.decode_event(line, kind, on_unreadable)
                    if event is not None:
                        yield event

    async def stream_lines(
        self,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        duration: float,
        token_header: str = "",
        body: bytes | None = None,
    ) -> AsyncGenerator[bytes, None]:
        """The lines of a response as they arrive, for `duration` seconds at most, e.g. of a pod behind the apiserver's
        proxy. Ends when the server ends it, or is silent for as long as a watch may not be.

        With `token_header` the caller's token, if it has one, is sent in that header too: the proxy keeps
        `Authorization` to itself. With a `body` it is a POST."""
        batches = self._transport.stream_lines(
            path, query=query or {}, duration=duration, token_header=token_header, body=body
        )
        async with aclosing(batches):
            async for lines in batches:
                for line in lines:
                    yield line

    @overload
    async def create(self, path: str, body: Any, kind: None = None) -> None: ...
    @overload
    async def create(self, path: str, body: Any, kind: type[T]) -> T: ...
    async def create(self, path: str, body: Any, kind: type[T] | None = None) -> T | None:
        return self._decoded(await self._transport.request("POST", path, _encode(body)), kind)

    async def create_dry_run(self, path: str, body: Any, kind: type[T]) -> T:
        """The object as the apiserver would store it: admitted and returned, but not stored."""
        data = await self._transport.request("POST", path, _encode(body), query={"dryRun": "All"})
        return self._decoders.decode(data, kind)

    @overload
    async def patch(self, path: str, body: Any, *, content_type: str = ..., kind: None = None) -> None: ...
    @overload
    async def patch(self, path: str, body: Any, *, content_type: str = ..., kind: type[T]) -> T: ...
    async def patch(
        self, path: str, body: Any, *, content_type: str = MERGE_PATCH, kind: type[T] | None = None
    ) -> T | None:
        data = await self._transport.request("PATCH", path, _encode(body), content_type=content_type)
        return self._decoded(data, kind)

    @overload
    async def replace(self, path: str, body: Any, kind: None = None) -> None: ...
    @overload
    async def replace(self, path: str, body: Any, kind: type[T]) -> T: ...
    async def replace(self, path: str, body: Any, kind: type[T] | None = None) -> T | None:
        return self._decoded(await self._transport.request("PUT", path, _encode(body)), kind)

    async def delete(
        self,
        path: str,
        *,
        uid: str | None = None,
        resource_version: str | None = None,
        grace_s: int | None = None,
    ) -> None:
        """With `uid` or `resource_version`, only if the object is still that one, or unchanged (409 otherwise)."""
        options: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions"}
        wanted = {"uid": uid, "resourceVersion": resource_version}
        if preconditions := {name: value for name, value in wanted.items() if value is not None}:
            options["preconditions"] = preconditions
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        await self._transport.request("DELETE", path, _encode(options))

    async def evict(self, namespace: str, name: str, *, uid: str, dry_run: bool = False) -> None:
        """Deletes the pod if it still has this `uid` (409 otherwise) and its disruption budget allows it (429
        otherwise, with the budget in `causes`)."""
        options: dict[str, Any] = {"preconditions": {"uid": uid}}
        if dry_run:
            options["dryRun"] = ["All"]
        eviction = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
            "deleteOptions": options,
        }
        await self._transport.request("POST", PODS.path(namespace, name, "eviction"), _encode(eviction))

    async def bind(
        self,
        namespace: str,
        name: str,
        *,
        uid: str,
        node: str,
        resource_version: str = "",
        annotations: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> None:
        """Give the pod its node, annotations and labels in one write, if it still has this `uid` and, if
        given, this version (409 otherwise)."""
        metadata: dict[str, Any] = {"name": name, "namespace": namespace, "uid": uid}
        if resource_version:
            metadata["resourceVersion"] = resource_version
        if annotations:
            metadata["annotations"] = dict(annotations)
        if labels:
            metadata["labels"] = dict(labels)
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": target}
        await self._transport.request("POST", PODS.path(namespace, name, "binding"), _encode(binding))

    def _decoded(self, data: bytes, kind: type[T] | None) -> T | None:
        return None if kind is None else self._decoders.decode(data, kind)

    async def _page(
        self,
        path: str,
        kind: type[T],
        query: Mapping[str, str],
        on_unreadable: OnUnreadable | None,
        *,
        timeout: float | None = None,
    ) -> ListBody[T]:
        data = await self._transport.request("GET", path, query=query, timeout=timeout)
        return self._decoders.decode_list(data, kind, on_unreadable)


def _encode(body: Any) -> bytes:
    """`body` is anything that msgspec encodes, or bytes that are sent as they are."""
    return body if isinstance(body, bytes) else msgspec.json.encode(body)


def _selectors(fields: str, labels: str = "") -> dict[str, str]:
    return ({"fieldSelector": fields} if fields else {}) | ({"labelSelector": labels} if labels else {})
