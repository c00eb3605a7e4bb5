"""What the apiserver sends, decoded: objects, pages of a list, lines of a watch, and refusals.

An object that does not fit the type it is decoded to never spoils its neighbours: it is set aside as Unreadable.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any, Generic, TypeVar

import msgspec

from tessera.kube.errors import ApiError, BadAnswer

T = TypeVar("T")

_EXCERPT = 500
"""characters of an answer that is no Status, in a message"""


@dataclass(frozen=True, slots=True)
class Listing(Generic[T]):
    """All objects of a list."""

    items: list[T]
    resource_version: str


@dataclass(frozen=True, slots=True)
class ListPage(Generic[T]):
    """Some objects of a list."""

    items: list[T]
    resource_version: str
    """of the whole list, so that a watch can follow the last page"""
    afresh: bool
    """the list begins with this page, whatever came before"""


class WatchEvent(msgspec.Struct, Generic[T], frozen=True):
    """One change: a line of a watch."""

    type: str
    """ADDED, MODIFIED, DELETED or BOOKMARK (of which only the version counts)"""
    object: T


@dataclass(frozen=True, slots=True)
class Unreadable:
    """An object of the right resource that could not be decoded."""

    type: str
    """of the watch event; empty in a list"""
    namespace: str
    name: str
    uid: str
    resource_version: str
    problem: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name} (uid {self.uid}) cannot be read: {self.problem}"


OnUnreadable = Callable[[Unreadable], None]


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


class Page(msgspec.Struct, Generic[T]):
    """One answer to a list request."""

    metadata: ListMetadata = msgspec.field(default_factory=ListMetadata)
    items: list[T] | None = None


class _Details(msgspec.Struct, rename="camel"):
    retry_after_seconds: int | None = None


class _Status(msgspec.Struct):
    code: int | None = None
    reason: str | None = None
    message: str | None = None
    details: _Details | None = None


class Decoders:
    """Decoders for each type, made once: making one costs more than using it."""

    def __init__(self) -> None:
        self._made: dict[Any, msgspec.json.Decoder[Any]] = {}
        self._changes: dict[Any, msgspec.json.Decoder[Any]] = {}
        """by the kind of what changes"""

    def _of(self, kind: Any) -> msgspec.json.Decoder[Any]:
        made = self._made.get(kind)
        if made is None:
            made = self._made[kind] = msgspec.json.Decoder(kind)
        return made

    def one(self, data: bytes, kind: type[T]) -> T:
        try:
            decoded: T = self._of(kind).decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise BadAnswer(f"the answer cannot be read: {error}") from error
        return decoded

    def page(self, data: bytes, kind: type[T], on_unreadable: OnUnreadable | None) -> Page[T]:
        try:
            page: Page[T] = self._of(Page[kind]).decode(data)  # type: ignore[valid-type]
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            if on_unreadable is None or not isinstance(error, msgspec.ValidationError):
                raise BadAnswer(f"the list cannot be read: {error}") from error
            return self._sorted_out(data, kind, on_unreadable)
        return page

    def _sorted_out(self, data: bytes, kind: type[T], on_unreadable: OnUnreadable) -> Page[T]:
        """The page again, object by object; slower, so only where something is wrong."""
        raw = self.one(data, Page[msgspec.Raw])
        items = [self._object(item, kind, "", on_unreadable) for item in raw.items or ()]
        return Page(metadata=raw.metadata, items=[item for item in items if item is not None])

    def event(self, line: bytes, kind: type[T], on_unreadable: OnUnreadable | None) -> WatchEvent[T] | None:
        """The event of a line; None for one that was set aside. Raises ApiError for an ERROR event."""
        decoder = self._changes.get(kind)
        if decoder is None:
            decoder = self._changes[kind] = self._of(WatchEvent[kind])  # type: ignore[valid-type]
        try:
            change: WatchEvent[T] | None = decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            change = None
        if change is not None and change.type != "ERROR":
            return change
        # Again, and slower: it is no such object, and what it is decides what becomes of it.
        raw = self.one(line, WatchEvent[msgspec.Raw])
        if raw.type == "ERROR":
            raise api_error(0, bytes(raw.object), {})
        obj = self._object(raw.object, kind, raw.type, on_unreadable)
        return None if obj is None else WatchEvent(raw.type, obj)

    def _object(self, raw: msgspec.Raw, kind: type[T], event: str, on_unreadable: OnUnreadable | None) -> T | None:
        try:
            decoded: T = self._of(kind).decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            if on_unreadable is None or not isinstance(error, msgspec.ValidationError):
                raise BadAnswer(f"an object cannot be read: {error}") from error
            on_unreadable(self._set_aside(raw, event, str(error)))
            return None
        return decoded

    def _set_aside(self, raw: msgspec.Raw, event: str, problem: str) -> Unreadable:
        try:
            found: _Metadata = self._of(_Skeleton).decode(raw).metadata
        except msgspec.DecodeError:
            found = _Metadata()
        return Unreadable(event, found.namespace, found.name, found.uid, found.resource_version, problem)


def api_error(status: int, data: bytes, headers: Mapping[str, str]) -> ApiError:
    """From a metav1.Status where the answer is one; proxies answer with other things. Headers are in lower case."""
    try:
        said = msgspec.json.decode(data, type=_Status)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        said = _Status(message=data[: 4 * _EXCERPT].decode("utf-8", "replace").strip()[:_EXCERPT])
    wait = _seconds(headers.get("retry-after", ""))
    if wait is None and said.details is not None and said.details.retry_after_seconds is not None:
        wait = max(0.0, float(min(said.details.retry_after_seconds, 1 << 31)))
    # An ERROR event has no HTTP status of its own; without a code it is as bad as a server's fault.
    return ApiError(
        status=status or said.code or 500,
        reason=said.reason or "",
        message=said.message or "no message",
        retry_after=wait,
    )


def _seconds(text: str) -> float | None:
    """Retry-After in its two forms; the date form counts as a minute, since the server's clock is not ours."""
    try:
        value = float(text)
    except ValueError:
        try:
            parsedate_to_datetime(text)
        except ValueError:
            return None
        return 60.0
    return value if math.isfinite(value) and value >= 0 else None
