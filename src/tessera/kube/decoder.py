"""Decodes what the apiserver sends: objects, lists, lines of a watch, and refusals.

An object that cannot be decoded to its type does not fail the whole list or watch: it is reported as an
UnreadableObject.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any, Generic, TypeVar

import msgspec

from tessera.kube.errors import ApiError, BadResponse

T = TypeVar("T")

MAX_RETRY_AFTER_S = 120.0
"""a server may slow its clients down, but not stop them"""
_EXCERPT = 500
"""characters of a response that is not a Status, in a message"""


@dataclass(frozen=True, slots=True)
class ObjectList(Generic[T]):
    """All objects of a list."""

    items: list[T]
    resource_version: str


@dataclass(frozen=True, slots=True)
class ListPage(Generic[T]):
    """Some objects of a list."""

    items: list[T]
    resource_version: str
    """of the whole list, so that a watch can follow the last page"""
    is_first: bool
    """the list begins with this page; earlier pages are void"""


class WatchEvent(msgspec.Struct, Generic[T], frozen=True):
    """One line of a watch."""

    type: str
    """ADDED, MODIFIED, DELETED or BOOKMARK (which only has a version)"""
    object: T


@dataclass(frozen=True, slots=True)
class UnreadableObject:
    """What is known of an object that could not be decoded."""

    type: str
    """of the watch event; empty in a list"""
    namespace: str
    name: str
    uid: str
    resource_version: str
    problem: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name} (uid {self.uid}) cannot be decoded: {self.problem}"


OnUnreadable = Callable[[UnreadableObject], None]


class _Metadata(msgspec.Struct, rename="camel"):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""


class _Skeleton(msgspec.Struct):
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)


class ListMetadata(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    continue_: str | None = msgspec.field(default=None, name="continue")


class ListBody(msgspec.Struct, Generic[T]):
    """The response to a list request."""

    metadata: ListMetadata = msgspec.field(default_factory=ListMetadata)
    items: list[T] | None = None


class _Cause(msgspec.Struct):
    message: str | None = None


class _Details(msgspec.Struct, rename="camel"):
    retry_after_seconds: int | None = None
    causes: list[_Cause] | None = None


class _ApiStatus(msgspec.Struct):
    code: int | None = None
    reason: str | None = None
    message: str | None = None
    error: str | None = None
    """of a scheduler behind the proxy, instead of a message"""
    details: _Details | None = None


class Decoders:
    """One decoder per type, made once: making one costs more than using it."""

    def __init__(self) -> None:
        self._made: dict[Any, msgspec.json.Decoder[Any]] = {}
        self._events: dict[Any, msgspec.json.Decoder[Any]] = {}
        """by the type of the object"""

    def _decoder(self, kind: Any) -> msgspec.json.Decoder[Any]:
        made = self._made.get(kind)
        if made is None:
            made = self._made[kind] = msgspec.json.Decoder(kind)
        return made

    def decode(self, data: bytes, kind: type[T]) -> T:
        try:
            decoded: T = self._decoder(kind).decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise BadResponse(f"the response cannot be decoded: {error}") from error
        return decoded

    def decode_list(self, data: bytes, kind: type[T], on_unreadable: OnUnreadable | None) -> ListBody[T]:
        try:
            page: ListBody[T] = self._decoder(ListBody[kind]).decode(data)  # type: ignore[valid-type]
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            if on_unreadable is None or not isinstance(error, msgspec.ValidationError):
                raise BadResponse(f"the list cannot be decoded: {error}") from error
            return self._decode_items(data, kind, on_unreadable)
        return page

    def _decode_items(self, data: bytes, kind: type[T], on_unreadable: OnUnreadable) -> ListBody[T]:
        """Decode object by object; slower, so only if something is wrong."""
        raw = self.decode(data, ListBody[msgspec.Raw])
        items = [self._decode_object(item, kind, "", on_unreadable) for item in raw.items or ()]
        return ListBody(metadata=raw.metadata, items=[item for item in items if item is not None])

    def decode_event(self, line: bytes, kind: type[T], on_unreadable: OnUnreadable | None) -> WatchEvent[T] | None:
        """The event of a line, or None if its object was unreadable. Raises ApiError for an ERROR event."""
        decoder = self._events.get(kind)
        if decoder is None:
            decoder = self._events[kind] = self._decoder(WatchEvent[kind])  # type: ignore[valid-type]
        try:
            event: WatchEvent[T] | None = decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            event = None
        if event is not None and event.type != "ERROR":
            return event
        # Decode again, more slowly, to find out what is wrong with the line.
        raw = self.decode(line, WatchEvent[msgspec.Raw])
        if raw.type == "ERROR":
            raise api_error(0, bytes(raw.object), {})
        obj = self._decode_object(raw.object, kind, raw.type, on_unreadable)
        return None if obj is None else WatchEvent(raw.type, obj)

    def _decode_object(
        self, raw: msgspec.Raw, kind: type[T], event_type: str, on_unreadable: OnUnreadable | None
    ) -> T | None:
        try:
            decoded: T = self._decoder(kind).decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            if on_unreadable is None or not isinstance(error, msgspec.ValidationError):
                raise BadResponse(f"an object cannot be decoded: {error}") from error
            on_unreadable(self._describe_unreadable(raw, event_type, str(error)))
            return None
        return decoded

    def _describe_unreadable(self, raw: msgspec.Raw, event_type: str, problem: str) -> UnreadableObject:
        try:
            metadata: _Metadata = self._decoder(_Skeleton).decode(raw).metadata
        except msgspec.DecodeError:
            metadata = _Metadata()
        return UnreadableObject(
            event_type, metadata.namespace, metadata.name, metadata.uid, metadata.resource_version, problem
        )


def api_error(status: int, data: bytes, headers: Mapping[str, str]) -> ApiError:
    """From a metav1.Status if the response is one; proxies send other things. Header names are in lower case."""
    try:
        status_body = msgspec.json.decode(data, type=_ApiStatus)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        status_body = _ApiStatus(message=data[: 4 * _EXCERPT].decode("utf-8", "replace").strip()[:_EXCERPT])
    retry_after = _retry_after_seconds(headers.get("retry-after", ""))
    if retry_after is None and status_body.details is not None and status_body.details.retry_after_seconds is not None:
        retry_after = float(max(0, min(status_body.details.retry_after_seconds, 1 << 31)))
    causes = (status_body.details.causes if status_body.details is not None else None) or ()
    # An ERROR event has no HTTP status of its own; without a code it counts as a fault of the server.
    return ApiError(
        status=status or status_body.code or 500,
        reason=status_body.reason or "",
        message=status_body.message or status_body.error or "no message",
        retry_after=None if retry_after is None else min(retry_after, MAX_RETRY_AFTER_S),
        causes=tuple(each.message for each in causes if each.message),
    )


def _retry_after_seconds(text: str) -> float | None:
    """Retry-After in its two forms; the date form counts as a minute, since clocks differ."""
    try:
        value = float(text)
    except ValueError:
        try:
            parsedate_to_datetime(text)
        except ValueError:
            return None
        return 60.0
    return value if math.isfinite(value) and value >= 0 else None
